"""Who may start, and why the others wait. Takeovers never come here: they spend nothing.

`policy` decides over a snapshot, `rates`, `providers` and `breakers` follow what goes wrong; all
four are pure. `scheduler` reads the store, lets them decide and writes the grants.
"""

from .policy import Decision
from .scheduler import Scheduler

__all__ = ["Decision", "Scheduler"]
