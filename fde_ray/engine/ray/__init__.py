"""The fleet as Ray actors; only this room imports ray.

`actors` wraps the members, `handles` reaches them, `cluster` starts a local Ray or joins one,
`engine` ties them to the planes of this process.
"""
