"""Columns in files: what was changed, or is of another version, is never read as if it was sound."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from cdr_core.errors import Refused, StorageError
from cdr_core.storage.column_codec import Column, ColumnFile, decode_columns, read_columns, write_columns


def test_columns_come_back_and_a_file_that_was_changed_is_an_error(tmp_path: Path) -> None:
    uri = str(tmp_path / "columns")
    sha256 = write_columns(uri, {"lines": np.arange(6).reshape(2, 3)})
    assert read_columns(uri, sha256)["lines"].tolist() == [[0, 1, 2], [3, 4, 5]]
    data = Path(uri).read_bytes()
    Path(uri).write_bytes(data.replace(bytes([5, 0, 0]), bytes([6, 0, 0])))
    assert decode_columns(Path(uri).read_bytes())[1]["lines"].tolist() == [[0, 1, 2], [3, 4, 6]]
    with pytest.raises(StorageError, match="was changed since it was written"):
        read_columns(uri, sha256)
    Path(uri).unlink()
    with pytest.raises(StorageError, match="is gone"):
        read_columns(uri, sha256)


def test_columns_of_another_version_are_refused() -> None:
    file = ColumnFile(99, {}, {"lines": Column.of(np.arange(3))})
    with pytest.raises(Refused, match="version 99"):
        decode_columns(msgspec.msgpack.encode(file))
