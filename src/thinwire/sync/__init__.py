"""Versions of weights from one trainer to many readers, through any store of named objects (PULSESync)."""

from thinwire.sync.chain import Manifest
from thinwire.sync.publisher import Publisher
from thinwire.sync.store import DirectoryStore, MemoryStore, MissingError, ShapedStore, Store, SyncError
from thinwire.sync.subscriber import Subscriber

__all__ = [
    "DirectoryStore",
    "Manifest",
    "MemoryStore",
    "MissingError",
    "Publisher",
    "ShapedStore",
    "Store",
    "Subscriber",
    "SyncError",
]
