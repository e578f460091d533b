"""Operator state and keyed state at another parallelism: bytes and values, with reading and writing passed in.

``blocks`` returns the reasons against it before anything is changed; ``redistribute`` does it; ``files_behind`` returns
the files of a state. At the same parallelism nothing is blocked and every handle stays as it is.
"""

from cdr_core.flink.state.files import files_behind
from cdr_core.flink.state.redistribute import redistribute
from cdr_core.flink.state.rescale_blockers import Block, BlockKind, blocks
from cdr_core.flink.state.streams import CHUNK, Read, StateFile, Write

__all__ = ["CHUNK", "Block", "BlockKind", "Read", "StateFile", "Write", "blocks", "files_behind", "redistribute"]
