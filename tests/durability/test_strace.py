"""The reader of traces on traces made by hand, and one real recovery under strace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durability.strace_recovery import NO_STRACE, is_installed, is_needed, trace_recovery
from tests.durability.trace import faults, history

SOUND = """\
7 mkdir("/w/e1", 0777) = 0
7 fsync(3</w>) = 0
7 openat(AT_FDCWD</>, "/w/e1/.plan.tmp", O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0666) = 5</w/e1/.plan.tmp>
7 write(5</w/e1/.plan.tmp>, ""..., 90) = 90
7 fsync(6</w/e1/.plan.tmp> <unfinished ...>
8 openat(AT_FDCWD</>, "/w/e1/spill-0", O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC, 0600) = 9</w/e1/spill-0>
8 write(9</w/e1/spill-0>, ""..., 90) = 90
7 <... fsync resumed>) = 0
7 link("/w/e1/.plan.tmp", "/w/e1/plan") = 0
8 fsync(9</w/e1/spill-0>) = 0
7 fsync(6</w/e1>) = 0
"""


def judged(trace: str) -> list[str]:
    return faults(history(trace.splitlines(), lambda path: path.startswith("/w")), is_needed)


def test_what_is_synced_before_it_is_named_is_sound() -> None:
    assert judged(SOUND) == []


@pytest.mark.parametrize(
    ("line", "instead", "fault"),
    [
        ("7 <... fsync resumed>) = 0\n", "", "/w/e1/plan got its name before its bytes were synced"),
        ("7 <... fsync resumed>) = 0\n", "7 <... fsync resumed>) = -1 EIO\n", "/w/e1/plan got its name before"),
        (
            "7 <... fsync resumed>) = 0\n",
            '7 <... fsync resumed>) = 0\n7 write(5</w/e1/.plan.tmp>, ""..., 1) = 1\n',
            "/w/e1/plan got its name before its bytes were synced",
        ),
        ("8 fsync(9</w/e1/spill-0>) = 0\n", "", "/w/e1/spill-0 was written and never synced"),
        ("7 fsync(6</w/e1>) = 0\n", "", "/w/e1/plan has a name that was never synced"),
        ("7 fsync(3</w>) = 0\n", "", "directory /w/e1 has a name that was never synced"),
    ],
)
def test_a_sync_that_is_missing_or_too_early_is_a_fault(line: str, instead: str, fault: str) -> None:
    assert line in SOUND
    assert any(each.startswith(fault) for each in judged(SOUND.replace(line, instead)))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason=NO_STRACE)
def test_a_recovery_names_no_file_before_its_bytes_are_on_the_disk(tmp_path: Path) -> None:
    seen = trace_recovery(tmp_path.resolve())
    assert faults(seen, is_needed) == []
    names = [call.paths[1].rpartition("/")[2] for call in seen.named] + [
        path.rpartition("/")[2] for path in seen.created
    ]
    files = ("plan.json", "selection-", "selections.msgpack", "closings.msgpack", "00000.msgpack", "spill-00000")
    for part in (*files, "manifest.json", "manifest-1.json", "ledger.parquet", "receipt.json"):
        assert any(part in name for name in names), f"{part} was not seen, so nothing is proven"
    assert any(name.endswith(".parquet") and name != "ledger.parquet" for name in names), "no file of rows was seen"
