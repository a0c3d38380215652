"""The programs around an agent: shim (outside), runner (inside, PID 1), our own agents.

Standard library only, Python 3.10+, packed into one zipapp by `fde_ray.sandbox.packing`. `__main__`
names the entry points; `session` is the shim's loop, `runner` its counterpart behind the one
control connection. All that crosses from inside is a claim; the shim alone holds the token.
"""
