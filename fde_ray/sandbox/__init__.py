"""Where agents and evaluators run: one interface, the local form of it, one of pods (`kubernetes`),
and a null one for tests.

`local.LocalSandbox` starts sessions (a shim outside, a runner inside) and one-off programs.
`probing` finds a runtime that was seen to work, `packing` makes the zipapp, `processes` tells
living processes from dead ones. `fde_ray.shim.boxes` says what a box looks like from inside.
"""
