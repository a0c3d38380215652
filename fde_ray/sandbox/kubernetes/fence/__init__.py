"""The fence around run pods: everything that a cluster holds before the first of them starts.

`fence_objects` is the way in. `settings` is what an operator decides, `weaknesses` the list of
what no run pod may have, and the other modules each build one part.
"""

from .documents import as_files, as_list, as_yaml
from .everything import fence_objects
from .settings import FenceSettings, parsed_peer

__all__ = ["FenceSettings", "as_files", "as_list", "as_yaml", "fence_objects", "parsed_peer"]
