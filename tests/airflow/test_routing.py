"""Real runs of ``cdr_recover`` whose bytes take each way to the output: in place, over scratch disk while the output
stalls, and through less room than the source needs. Counters, system calls and requests to the store tell the same.

One instance for all of them. A drain is caught before its first segment, so that strace sees all that its tasks do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from cdr_core.metadata import Phase
from cdr_core.spark.server import find_server
from cdr_core.spill.router import ROUTING
from tests.airflow.live import Live, Run, wait_for
from tests.seeds.expected import Compared, compare, records_of
from tests.support import output
from tests.support.bucket import NAME, Bucket
from tests.support.generated import KEYED, generated
from tests.support.moved import Stretch, Trace, attached, can_trace, chunk_begins, payload
from tests.support.stuck import HoldingProxy

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]  # some find their fixtures by a parameter

MIB = 1 << 20
CORES = 2
SEGMENT = MIB // 2
BUDGET, SCRATCH, SPILL_ROOM = 8 * SEGMENT, 6 * MIB, 2 * MIB
"""What a task may hold in memory and on scratch disk, and what all of them may spill."""
WORKSPACE = MIB
"""More than the plans, indexes and results of a run take, which no setting bounds; far less than its records."""
SMALL, LARGE = 16 * MIB, 40 * MIB
EXACT = Compared(0, 0, 0)
WORKER = "cdr_core.spark.daemon"
LOOK_SECONDS = 0.1
needs_strace = pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not attach to a process")


@dataclass(frozen=True)
class Source:
    """A checkpoint on a disk, and the address of its copy on S3."""

    path: str
    uri: str

    @property
    def file(self) -> str:
        (found,) = (path.name for path in Path(self.path).iterdir() if path.name != "_metadata")
        return found


@dataclass
class Held:
    """The most bytes that were seen at once, by where they lay."""

    scratch: int = 0
    others: int = 0
    """Files without a name that are no drain's."""
    spilled: int = 0
    workspace: int = 0

    def beyond(self, most: Held) -> dict[str, int]:
        """What is more than it may be."""
        return {name: value for name, value in asdict(self).items() if value > getattr(most, name)}


@dataclass
class Routed:
    """A run that is over: what it counted, what the system and the store saw of its drain, and the rows."""

    elements: int
    """Bytes that `spill` accounted for."""
    result: Mapping[str, int]
    receipt: Mapping[str, int]
    """The counters as drain and as the receipt say them."""
    trace: Trace | None
    fetched: list[Stretch]
    rows: list[dict[str, Any]]
    held: Held = field(default_factory=Held)


@dataclass(frozen=True)
class Stage:
    """A running Airflow, and a store whose uploads can be held back."""

    live: Live
    proxy: HoldingProxy
    bucket: Bucket
    folder: Path

    @property
    def workspace(self) -> Path:
        return self.live.home.root / "workspace"

    @property
    def tier(self) -> Path:
        return self.folder / "tier"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, _s3: Bucket) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("routing")
    (folder / "tier").mkdir()
    proxy = HoldingProxy(int(_s3.endpoint.rpartition(":")[2]))
    settings = {
        **_s3.environment,
        "CDR_S3_ENDPOINT": proxy.endpoint,
        "CDR_SPARK_CORES": str(CORES),
        "CDR_SEGMENT_SIZE": str(SEGMENT),
        "CDR_MEMORY_BUDGET": str(BUDGET),
        "CDR_DRAIN_SCRATCH": str(SCRATCH),
        "CDR_SPILL_DIRS": f"{folder / 'tier'}:{SPILL_ROOM}",
        "CDR_OUTPUT_FILE_SIZE": "2MiB",
        "CDR_TABLE_RAW": "true",
    }
    live = Live.make(folder, **settings)
    try:
        with live.guarded():
            up = live.command("up", "--port", "0")
            assert up.returncode == 0, up.stderr
            yield Stage(live, proxy, _s3, folder)
    finally:
        proxy.close()


def make_source(stage: Stage, name: str, size: int) -> Source:
    """Four channels; the seed makes the last segment of each long enough to be read in place."""
    path = generated(stage.folder / name, "2", str(size), record_bytes="2000-4000", seed=1)
    return Source(path, stage.bucket.upload(Path(path)))


@pytest.fixture(scope="module")
def small(stage: Stage) -> Source:
    return make_source(stage, "small", SMALL)


@contextmanager
def draining(
    stage: Stage, source: str, to: str, name: str, before: Callable[[], None] = lambda: None
) -> Iterator[tuple[Run, Path | None]]:
    """A run whose drain begins with the block, under strace where that can be; it is over behind the block. ``before``
    is called when its first task waits to begin.
    """
    with ExitStack() as stack:
        with stage.live.paused("drain") as wait_until_caught:
            conf = {"checkpoint": source, "spec": KEYED, "parallelism": "same", "to": f"parquet:{to}"}
            run = Run(stage.live, stage.live.client.trigger(conf), Path(to))
            wait_until_caught()
            file = stage.folder / f"{name}.trace" if can_trace() else None
            if file is not None:
                stack.enter_context(attached(workers_of(stage.live, run.recovery), file))
            before()
        yield run, file
        assert run.wait_until_over() == "success"


def workers_of(live: Live, recovery: str) -> list[int]:
    """The Python processes of the recovery's Spark server: one that forks, and those that run tasks."""
    server = find_server(live.home.root / "spark" / recovery)
    assert server is not None
    found = [each for each in psutil.Process(server.pid).children(recursive=True) if WORKER in each.cmdline()]
    assert found
    return [process.pid for process in found]


def without_name(stage: Stage) -> tuple[int, int]:
    """Bytes on disk of files in the workspace that have no name any more: those of drains, and others. They are found
    by who has them open.
    """
    found: dict[int, tuple[bool, int]] = {}
    for process in psutil.process_iter(["cmdline"]):
        for descriptor in descriptors(process.pid) if WORKER in (process.info["cmdline"] or ()) else ():
            try:
                link = str(descriptor.readlink())
                if link.startswith(str(stage.workspace)) and link.endswith(" (deleted)"):
                    status = descriptor.stat()
                    found[status.st_ino] = "/drain/" in link, min(status.st_size, 512 * status.st_blocks)
            except OSError:
                continue
    scratch = sum(size for is_drains, size in found.values() if is_drains)
    return scratch, sum(size for _, size in found.values()) - scratch


def descriptors(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


def on_disk(folder: Path) -> int:
    """Bytes of the files below a directory that have a name; some go while they are looked at."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(directory) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


@contextmanager
def watching(stage: Stage) -> Iterator[Held]:
    """The most that lies on disks while the block runs, beyond what earlier runs left in the workspace."""
    held, over, before = Held(), threading.Event(), on_disk(stage.workspace)

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            scratch, others = without_name(stage)
            held.scratch, held.others = max(held.scratch, scratch), max(held.others, others)
            held.spilled = max(held.spilled, on_disk(stage.tier))
            held.workspace = max(held.workspace, on_disk(stage.workspace) - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield held
    finally:
        over.set()
        thread.join()


def routed(stage: Stage, run: Run, trace: Path | None, fetched: list[Stretch], rows: list[dict[str, Any]]) -> Routed:
    with stage.live.repository() as repository:
        receipt = repository.receipt(run.recovery)
        elements = sum(unit.bytes for unit in repository.units(run.recovery, Phase.SPILL))
        (result,) = (row.result for row in repository.phases(run.recovery) if row.name is Phase.DRAIN)
    assert receipt is not None
    assert result is not None
    assert receipt["verdict"] == "balanced"
    counted = Trace(trace) if trace is not None else None
    return Routed(elements, result[ROUTING], receipt["run"][ROUTING], counted, fetched, rows)


def drained_while_held(stage: Stage, source: Source, name: str, is_stalled: Callable[[int, int], bool]) -> Routed:
    """A run from S3 to S3 whose uploads are held back until ``is_stalled``, given bytes fetched and on scratch disk."""
    to, proxy = stage.bucket.uri(), stage.proxy
    begins: list[int] = []

    def fetched() -> list[Stretch]:
        return [Stretch(low, high) for key, low, high in proxy.fetched[begins[0] :] if key.endswith(source.file)]

    def hold() -> None:
        begins.append(len(proxy.fetched))
        proxy.held.clear()
        proxy.hold()

    with watching(stage) as held, draining(stage, source.uri, to, name, hold) as (run, trace):
        try:
            wait_for("an upload", proxy.held.is_set)
            wait_for(
                "what is fetched meanwhile",
                lambda: is_stalled(sum(each.end - each.begin for each in fetched()), without_name(stage)[0]),
            )
        finally:
            proxy.release()
    found = routed(stage, run, trace, fetched(), published(stage.bucket, to))
    found.held = held
    return found


def published(bucket: Bucket, table: str) -> list[dict[str, Any]]:
    """The rows of a table on S3, in the order of its files."""
    newest = max((key for key in bucket.keys(f"{table}/_cdr/manifest-") if key.endswith(".json")), key=len)
    files = output.files_of(bucket.get(f"s3://{NAME}/{newest}"))
    return [row for file in files for row in pq.read_table(BytesIO(bucket.get(f"{table}/{file}"))).to_pylist()]


def assert_exact(rows: list[dict[str, Any]], source: Source) -> None:
    """Every record once, its bytes, at its owner, in the order of its channel."""
    assert compare(rows, records_of(source.path, KEYED), 2) == EXACT


@pytest.fixture(scope="module")
def in_place(stage: Stage, small: Source) -> Routed:
    to = stage.folder / "in-place"
    with draining(stage, small.path, str(to), "in-place") as (run, trace):
        pass
    return routed(stage, run, trace, [], output.rows(to))


def test_at_the_same_parallelism_nothing_takes_the_way_over_a_disk(in_place: Routed, small: Source) -> None:
    total = in_place.elements
    assert total >= SMALL
    assert in_place.result == {"by_reference": total, "handed_over": total, "spilled": 0, "replayed": 0}
    assert in_place.receipt == in_place.result
    assert_exact(in_place.rows, small)


@needs_strace
def test_what_was_read_in_place_is_what_the_system_read_of_the_pinned_files(in_place: Routed, small: Source) -> None:
    assert in_place.trace is not None
    read = payload(in_place.trace.read("/pins/"), chunk_begins(small.path, KEYED))
    assert read == in_place.result["by_reference"]
    assert in_place.trace.bytes_read(small.path) == 0
    assert moved_by_disk(in_place.trace) == (0, 0)


@pytest.fixture(scope="module")
def stalled(stage: Stage, small: Source) -> Routed:
    """Everything was fetched before the output took its second file."""
    return drained_while_held(stage, small, "stalled", lambda fetched, _: fetched >= SMALL)


def test_while_the_output_stalls_what_is_fetched_waits_on_scratch_disk_and_is_replayed_in_order(
    stalled: Routed, small: Source
) -> None:
    found = stalled.result
    assert found["by_reference"] == stalled.elements
    assert found["spilled"] == found["replayed"] > 0
    assert found["handed_over"] + found["replayed"] == stalled.elements
    assert stalled.receipt == found
    assert_exact(stalled.rows, small)


@pytest.fixture(scope="module")
def large(stage: Stage) -> Source:
    return make_source(stage, "large", LARGE)


@pytest.fixture(scope="module")
def crowded(stage: Stage, large: Source) -> Routed:
    """The scratch disk of every task was full before the output went on."""
    full = CORES * (SCRATCH - SEGMENT)
    return drained_while_held(stage, large, "crowded", lambda _, scratch: scratch > full)


def test_a_source_larger_than_all_room_is_recovered_and_never_takes_more_than_that(
    crowded: Routed, large: Source
) -> None:
    found, held = crowded.result, crowded.held
    assert crowded.elements > CORES * (BUDGET + SCRATCH) + SPILL_ROOM
    assert held.beyond(Held(CORES * SCRATCH, WORKSPACE, SPILL_ROOM, WORKSPACE)) == {}
    assert held.scratch > CORES * (SCRATCH - SEGMENT), "it was full"
    assert found["by_reference"] == crowded.elements
    assert found["spilled"] == found["replayed"] > held.scratch, "room on scratch disk is used again"
    assert found["handed_over"] + found["replayed"] == crowded.elements
    assert_exact(crowded.rows, large)


@pytest.mark.parametrize("run", ["stalled", "crowded"])
def test_what_was_read_in_place_is_what_the_store_was_asked_for(request: pytest.FixtureRequest, run: str) -> None:
    """No byte twice, and nothing but the length fields of chunks besides."""
    found: Routed = request.getfixturevalue(run)
    source: Source = request.getfixturevalue({"stalled": "small", "crowded": "large"}[run])
    assert payload(found.fetched, chunk_begins(source.path, KEYED)) == found.result["by_reference"]


@needs_strace
@pytest.mark.parametrize("run", ["stalled", "crowded"])
def test_what_was_spilled_and_replayed_is_what_the_system_wrote_and_read(
    request: pytest.FixtureRequest, run: str
) -> None:
    found: Routed = request.getfixturevalue(run)
    assert found.trace is not None
    assert moved_by_disk(found.trace) == (found.result["spilled"], found.result["replayed"])


def moved_by_disk(trace: Trace) -> tuple[int, int]:
    """Bytes that tasks of a drain wrote to and read from files of cdr that hold elements."""
    files = ("/spill-", "/drain/#", "/cdr-scratch-")
    return sum(map(trace.bytes_written, files)), sum(map(trace.bytes_read, files))
