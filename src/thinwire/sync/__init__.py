"""Versions of weights from one trainer to many readers, through any store of named objects (PULSESync)."""

from .chain import Manifest
from .store import DirectoryStore, MemoryStore, MissingError, ShapedStore, Store, SyncError

__all__ = ["DirectoryStore", "Manifest", "MemoryStore", "MissingError", "ShapedStore", "Store", "SyncError"]
