"""The object store: bytes that are written once under keys that `layout` spells.

`folder` is the store of a laptop; every other one passes the same tests.
"""

from . import layout
from .folder import FolderStore, ObjectStore

__all__ = ["FolderStore", "ObjectStore", "layout"]
