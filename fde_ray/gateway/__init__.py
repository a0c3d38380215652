"""What solving and grading runs talk to, and what the CLI may ask of sweeps.

`plane.Plane` has one method per route of the wire API; `app` puts HTTP around it, `serve` puts the
app on a socket. `tokens` and `access` say who may do what, `pauses` (pure) and `clocks` keep the
agent's time, `turns`, `calls` and `collection` carry out the three kinds of traffic, and `faults`
is the one table from an error to its status. `control` is the app that pods never reach.
"""
