"""The fence around run pods: everything that a cluster holds before the first of them starts.

`fence_objects` is the way in. `settings` is what an operator decides, `weaknesses` the list of
what no run pod may have, `reserve` whether grading has its places, and the other modules each build
one part.
"""

from .documents import as_files, as_list, as_yaml
from .everything import fence_objects
from .reserve import Grading, grades_held, grading_of, reserve_of, shortage
from .settings import FenceSettings, parsed_peer

__all__ = [
    "FenceSettings",
    "Grading",
    "as_files",
    "as_list",
    "as_yaml",
    "fence_objects",
    "grades_held",
    "grading_of",
    "parsed_peer",
    "reserve_of",
    "shortage",
]
