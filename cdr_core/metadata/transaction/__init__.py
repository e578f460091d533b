"""The fenced transaction: what an attempt may write, one file per concern."""

from __future__ import annotations

from cdr_core.metadata.transaction.checkpoints import Checkpoints
from cdr_core.metadata.transaction.commands import Commands
from cdr_core.metadata.transaction.commits import Commits
from cdr_core.metadata.transaction.progress import Progress
from cdr_core.metadata.transaction.spill import Spill


class FencedTransaction(Progress, Spill, Checkpoints, Commits, Commands):
    """Everything an attempt may write, all or nothing, while its epoch is the recovery's.

    Made by ``Repository.fenced``, which has passed the fence before the first method can be called. Not usable after
    its ``with`` block. Keep the block short and free of file and network I/O: it holds the recovery's row (on SQLite,
    the whole database) for as long as it lasts.
    """


__all__ = ["FencedTransaction"]
