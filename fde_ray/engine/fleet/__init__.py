"""The engine as several processes, whatever starts them: plain asyncio, nothing of Ray.

`members` are the processes: a steward, supervisors, pool members. Each opens stores and clients of
its own, begins at its first `kick`, and gives up what it holds at `drain`. `pools` reaches the pool
members from a supervisor; `sizing` says how many there should be. `engine.ray` puts actors around
them.
"""
