"""Object access by URI: local paths (plain or ``file://``) and ``s3://``, behind one small interface."""

from cdr_core.storage.access import Storage, join, storage_for

__all__ = ["Storage", "join", "storage_for"]
