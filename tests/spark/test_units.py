"""One task per unit, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdr_core.errors import CorruptChannelState, Fenced, JobFailed, Refused, Where
from cdr_core.spark.server import ServerHandle
from cdr_core.spark.session import open_session
from cdr_core.spark.units import run_units
from cdr_core.spark.worker import decode, encode
from tests.spark import functions
from tests.spark.conftest import HOME, comes_to_rest, run_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ignore() -> None:
    """A driver that has nothing to record."""


@pytest.fixture(scope="module")
def session(server: ServerHandle) -> Iterator[SparkSession]:
    with open_session("connect", home=HOME, handle=server) as session:
        yield session


def test_every_unit_runs_once_in_a_task_of_its_own(session: SparkSession, tmp_path: Path) -> None:
    units = [f"unit-{number}" for number in range(7)]
    polls: list[int] = []
    run_units(
        session, functions.leave_file, str(tmp_path), units, on_poll=lambda: polls.append(len(list(tmp_path.iterdir())))
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{unit}.0" for unit in units]
    assert polls[-1] == 7, "the last poll must see every unit"


def test_worker_has_what_it_needs_before_its_first_unit_and_nothing_heavier(
    session: SparkSession, tmp_path: Path
) -> None:
    run_units(session, functions.make_an_array, str(tmp_path), ["a"], on_poll=ignore)
    assert (tmp_path / "a").read_text() == "numba pyarrow"


def test_no_units_are_no_job(session: SparkSession) -> None:
    polled: list[None] = []
    run_units(session, functions.die, "", [], on_poll=lambda: polled.append(None))
    assert polled


def test_error_crosses_with_class_where_and_hint_and_is_not_retried(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(CorruptChannelState) as caught:
        run_units(session, functions.is_corrupt, str(tmp_path), ["a"], on_poll=ignore)
    error = caught.value
    assert error.what == "the frame does not end where the channel does"
    assert error.where == Where(checkpoint="chk-7", operator='agg "ä"', subtask=3, offset=12)
    assert error.hint == "run cdr salvage"
    assert [file.name for file in tmp_path.iterdir()] == ["a.0"], "a retry of corrupt input is a waste"


def test_retry_gets_over_a_passing_failure(session: SparkSession, tmp_path: Path) -> None:
    run_units(session, functions.storage_fails_at_first, str(tmp_path), ["a"], on_poll=ignore)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.0", "a.1"]


def test_foreign_exception_is_a_failed_job_with_the_unit_and_the_place(session: SparkSession) -> None:
    with pytest.raises(JobFailed, match=r"unit a failed: ZeroDivisionError: nothing to divide by \(functions.py:\d+\)"):
        run_units(session, functions.divide_by_zero, "", ["a"], on_poll=ignore)


def test_crashing_worker_is_a_failed_job(session: SparkSession) -> None:
    with pytest.raises(JobFailed, match="worker died"):
        run_units(session, functions.die, "", ["a"], on_poll=ignore)


def test_poll_that_raises_stops_the_job(session: SparkSession, tmp_path: Path) -> None:
    def fenced_once_it_runs() -> None:
        if list(tmp_path.iterdir()):
            raise Fenced("a newer attempt took over")

    with pytest.raises(Fenced):
        run_units(session, functions.work_for_long, str(tmp_path), ["a", "b"], on_poll=fenced_once_it_runs)
    assert comes_to_rest(tmp_path, within=10)


def test_function_that_executors_cannot_import_is_refused(session: SparkSession) -> None:
    nested: Callable[[str, str, int], None] = lambda payload, unit, attempt: None  # noqa: E731
    with pytest.raises(Refused, match="cannot import"):
        run_units(session, nested, "", ["a"], on_poll=ignore)


def test_first_of_several_errors_in_a_text_is_taken() -> None:
    text = f"Job aborted:\n  {encode(Fenced('one'))} SQLSTATE\n{encode(JobFailed('two'))}"
    found = decode(text)
    assert isinstance(found, Fenced)
    assert found.what == "one"
    assert decode("nothing of ours") is None


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_classic_session_runs_the_same_units(tmp_path: Path) -> None:
    """In a process of its own: a process is either a Connect client or a classic driver."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cdr_core.errors import CorruptChannelState, Fenced\n"
        "from cdr_core.spark.session import open_session\n"
        "from cdr_core.spark.units import run_units\n"
        "from tests.spark import functions\n"
        "from tests.spark.conftest import comes_to_rest\n"
        "folder = sys.argv[1]\n"
        "with open_session('local[2]', home=Path(sys.argv[2])) as session:\n"
        "    run_units(session, functions.leave_file, folder, ['a', 'b', 'c'], on_poll=lambda: None)\n"
        "    run_units(session, functions.storage_fails_at_first, folder, ['d'], on_poll=lambda: None)\n"
        "    try:\n"
        "        run_units(session, functions.is_corrupt, folder, ['e'], on_poll=lambda: None)\n"
        "    except CorruptChannelState as error:\n"
        "        print(error.where)\n"
        "    def fenced_once_it_runs():\n"
        "        if Path(folder, 'f.running').exists():\n"
        "            raise Fenced('a newer attempt took over')\n"
        "    try:\n"
        "        run_units(session, functions.work_for_long, folder, ['f'], on_poll=fenced_once_it_runs)\n"
        "    except Fenced:\n"
        "        print('at rest' if comes_to_rest(Path(folder), within=10) else 'still running')\n"
    )
    done = run_python(script, str(tmp_path), str(HOME))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.0", "b.0", "c.0", "d.0", "d.1", "e.0", "f.running"]
    assert "offset 12" in done
    assert "at rest" in done
