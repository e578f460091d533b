"""Object access by URI: local paths (plain or ``file://``) and ``s3://``, behind one small interface."""

from cdr_core.addresses import canonical
from cdr_core.storage.base import Stat, Storage, absolute, is_local, join, storage_for

__all__ = ["Stat", "Storage", "absolute", "canonical", "is_local", "join", "storage_for"]
