"""The object store: bytes that are written once under keys that `layout` spells.

`folder` is the store of a laptop, `s3.S3Store` that of a cluster; both pass the same tests. `s3` is
imported by whoever needs it, since boto3 takes long to load.
"""

from . import layout
from .folder import FolderStore, ObjectStore

__all__ = ["FolderStore", "ObjectStore", "layout"]
