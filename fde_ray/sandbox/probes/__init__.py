"""What an agent may try from inside its pod, tried on a real cluster; and what came of it.

`catalogue` lists the attempts, `programs/` holds what is run inside, `running.Suite` runs it, and
`judging` says what it proves. `python -m fde_ray.sandbox.probes --help` is the way in.
"""
