"""Grading of a finished run: extraction, provenance, scoring, judging.

`workspace` unpacks what was collected; `passthrough` spares the panel where nothing is in doubt;
`extraction` surrounds a panel session and makes it a route, with `provenance` (and its sandboxed
half, `checker`) and `scoring`; `judging` asks the coverage panel. The votes are `protocol.votes`.
"""
