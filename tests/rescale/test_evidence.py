"""Whether a wrong key or type of a job spec is refused, or at least reported."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.errors import SpecRefused, UnprovenKey
from cdr_core.evidence import spec_evidence as module
from cdr_core.evidence.sample_values import SHOWN_ROWS
from cdr_core.evidence.spec_evidence import ExchangeEvidence, gather_evidence, keys_are_proven
from cdr_core.flink.state.serializers import KeyedHead, StateEntry, read_head
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import make_plan
from cdr_core.verify.keys import murmur, owner
from tests.flink_formats.heads import HEADS
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.generated import KEYED, generated
from tests.support.written import MAX_PARALLELISM, frame, write_checkpoint

SPLIT = 1 << 26


def _evidence(path: str, spec: str, parallelism: str) -> ExchangeEvidence:
    checkpoint = open_checkpoint(path)
    plan = make_plan(checkpoint, parse_spec(spec), parse_parallelism(parallelism), SPLIT)
    return gather_evidence(checkpoint, plan)[0]


def _refusal(found: ExchangeEvidence, *, trusted: bool = False) -> SpecRefused | None:
    return next(iter(found.refusals(trusted=trusted)), None)


@pytest.mark.parametrize(
    ("name", "number"),
    [("a_p3_thr0", 2), ("a_p3_thr1mb", 2), ("e_p4_seg32k", 2), ("f_p3_thr0", 2), ("g_p7_thr0", 2), ("v5_a_p3_thr0", 1)],
)
def test_the_right_key_of_a_real_checkpoint_is_proven(
    fixture_checkpoint: FixtureCheckpoints, name: str, number: int
) -> None:
    fixture = fixture_checkpoint(name, number)
    found = _evidence(str(fixture.path), fixture.spec.read_text(), "2")
    assert found.key is not None
    assert found.key.proven, found.key.reason
    assert _refusal(found) is None
    assert found.sample.records > 0
    assert len(found.sample.rows) == SHOWN_ROWS


@pytest.mark.parametrize(
    ("name", "right", "wrong", "says"),
    [
        ("a_p3_thr0", "[f0]", "[f3]", "is STRING, but the state of its downstream operator is keyed by LONG"),
        ("a_p3_thr0", "[f0]", "[f1]", "is INT, but the state"),
        ("a_p3_thr0", "[f0]", "[f0, f1]", "is TUPLE<LONG, INT>, but the state"),
        ("a_p3_thr0", "[f0]", "[f2]", "belong to other subtasks"),
        ("a_p3_thr0", "TUPLE<LONG,", "TUPLE<DOUBLE,", "is DOUBLE, but the state"),
        ("r_p3_rocks_inc_true", "[f0]", "[f3]", "is STRING, but the state"),
        (
            "f_p3_thr0",
            "[k]",
            "[gen]",
            "is ROWDATA<gen INT>, but the state of its downstream operator is keyed by ROWDATA<BIGINT>",
        ),
        ("f_p3_thr0", "[k]", "[k, seq]", "keyed by ROWDATA<BIGINT>"),
        ("f_p3_thr0", "[k]", "[seq]", "belong to other subtasks"),
        ("a_p2_forst_incremental", "[f0]", "[f3]", "is STRING, but the state"),
        ("a_p2_rocksdb_incremental", "[f0]", "[f3]", "is STRING, but the state"),
        ("a_p2_changelog_files", "[f0]", "[f3]", "is STRING, but the state"),
    ],
)
def test_a_wrong_key_of_a_real_checkpoint_is_refused_also_when_trusted(
    fixture_checkpoint: FixtureCheckpoints, name: str, right: str, wrong: str, says: str
) -> None:
    fixture = fixture_checkpoint(name, 2)
    spec = fixture.spec.read_text()
    assert right in spec
    found = _evidence(str(fixture.path), spec.replace(right, wrong), "5")
    for trusted in (False, True):
        refusal = _refusal(found, trusted=trusted)
        assert refusal is not None
        assert says in str(refusal)


@pytest.mark.parametrize("parallelism", ["1", "2", "3"])
def test_the_wrong_field_of_the_right_type(tmp_path: Path, parallelism: str) -> None:
    checkpoint = generated(tmp_path / "chk-1", parallelism, "200kB")
    found = _evidence(checkpoint, KEYED.replace("[f0]", "[f2]"), "4")
    refusal = _refusal(found)
    assert refusal is not None
    assert found.key is not None
    assert not found.key.proven
    assert isinstance(refusal, UnprovenKey) == (parallelism == "1")
    assert not keys_are_proven([found])


def test_at_parallelism_1_the_right_key_is_unproven_and_can_be_trusted(tmp_path: Path) -> None:
    found = _evidence(generated(tmp_path / "chk-1", "1", "200kB"), KEYED, "3")
    refusal = _refusal(found)
    assert isinstance(refusal, UnprovenKey)
    assert refusal.remedy == ("--trust-key",)
    assert "at parallelism 1" in str(refusal)
    assert _refusal(found, trusted=True) is None


COMPOSITE = KEYED.replace("[f0]", "[f0, f3]")


def test_another_order_of_a_composite_key_is_refused(tmp_path: Path) -> None:
    checkpoint = generated(tmp_path / "chk-1", "3", "200kB", COMPOSITE)
    right, wrong = _evidence(checkpoint, COMPOSITE, "2"), _evidence(checkpoint, KEYED.replace("[f0]", "[f3, f0]"), "2")
    assert right.key is not None
    assert right.key.proven, right.key.reason
    assert "another order of the key's fields" in str(_refusal(wrong))


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    spec = KEYED.replace("TUPLE<LONG, INT, LONG, STRING>", "TUPLE<INT, LONG, STRING>").replace("[f0]", "[f1]")
    right = KEYED.replace("[f0]", "[f2]")
    found = _evidence(generated(tmp_path / "chk-1", "3", "200kB", right), spec, "2")
    assert _refusal(found) is not None


@pytest.mark.parametrize("parallelism", ["same", "slow=3,gen=2"])
def test_where_no_key_decides_an_unproven_one_is_only_reported(tmp_path: Path, parallelism: str) -> None:
    found = _evidence(generated(tmp_path / "chk-1", "3", "200kB"), KEYED.replace("[f0]", "[f2]"), parallelism)
    assert _refusal(found) is None
    assert found.key_is_unproven
    assert not keys_are_proven([found])


def test_6_to_3_divides_no_channel_so_that_an_unproven_key_is_only_reported(tmp_path: Path) -> None:
    found = _evidence(generated(tmp_path / "chk-1", "6", "200kB"), KEYED.replace("[f0]", "[f2]"), "3")
    assert not found.decides
    assert _refusal(found) is None


def test_an_empty_exchange_is_not_refused(fixture_checkpoint: FixtureCheckpoints) -> None:
    fixture = fixture_checkpoint("c_p7_thr0", 2)
    found = _evidence(str(fixture.path), fixture.spec.read_text(), "2")
    assert found.key is not None
    assert not found.key.proven
    assert _refusal(found) is None
    assert keys_are_proven([found])


def test_few_distinct_keys_prove_nothing(fixture_checkpoint: FixtureCheckpoints) -> None:
    fixture = fixture_checkpoint("b_p3_thr0", 2)
    found = _evidence(str(fixture.path), fixture.spec.read_text(), "2")
    refusal = _refusal(found)
    assert isinstance(refusal, UnprovenKey)
    assert "only 9 distinct keys" in str(refusal)


def test_distinct_keys_count_not_records(tmp_path: Path) -> None:
    """Thousands of records of few keys are as good as few records."""
    checkpoint = generated(tmp_path / "chk-1", "3", "1MB", KEYED, keys=4)
    found = _evidence(checkpoint, KEYED, "5")
    assert found.sample.records > 1000
    assert isinstance(_refusal(found), UnprovenKey)


@pytest.mark.parametrize("exchange", ["rebalance", "shuffle"])
def test_other_partitioners_have_no_key_to_prove(tmp_path: Path, exchange: str) -> None:
    spec = KEYED.replace("hash", exchange).replace("    key: [f0]\n", "")
    found = _evidence(generated(tmp_path / "chk-1", "3", "200kB", spec), spec, "2")
    assert found.key is None
    assert _refusal(found) is None


PAIRS = KEYED.replace("TUPLE<LONG, INT, LONG, STRING>", "TUPLE<LONG, LONG>")


def _pairs(folder: Path, parallelism: int, share: float) -> str:
    """Records (key, other), each on the subtask that owns its key; ``share`` of them have the key as the other, too."""
    channels: dict[tuple[int, int], bytes] = {}
    for key in range(600):
        down = owner(murmur(key) % MAX_PARALLELISM, parallelism, MAX_PARALLELISM)
        body = b"\x01" + struct.pack(">qq", key, key if key % 100 < 100 * share else key + 10_000)
        channels[0, down] = channels.get((0, down), b"") + frame(body)
    return write_checkpoint(folder, parallelism, parallelism, channels)


def test_a_field_that_equals_the_key_most_of_the_time_is_not_proven(tmp_path: Path) -> None:
    checkpoint = _pairs(tmp_path / "chk-1", 6, 0.7)
    right = _evidence(checkpoint, PAIRS, "3")
    assert right.key is not None
    assert right.key.proven, right.key.reason
    wrong = PAIRS.replace("[f0]", "[f1]")
    unambiguous, ambiguous = _evidence(checkpoint, wrong, "3"), _evidence(checkpoint, wrong, "4")
    assert unambiguous.key_is_unproven
    assert _refusal(unambiguous) is None
    assert "belong to other subtasks" in str(_refusal(ambiguous, trusted=True))


def test_few_misplaced_keys_make_it_unproven_but_no_contradiction(tmp_path: Path) -> None:
    """They may be damaged records: the user may trust the key and put them aside."""
    found = _evidence(_pairs(tmp_path / "chk-1", 6, 0.99), PAIRS.replace("[f0]", "[f1]"), "4")
    assert isinstance(_refusal(found), UnprovenKey)
    assert _refusal(found, trusted=True) is None


def test_records_too_long_for_a_sample_are_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cdr_core.evidence import sampling

    for name in ("SMALLEST_SHARE", "SAMPLE_BYTES", "LARGEST_RECORD"):
        monkeypatch.setattr(sampling, name, 8)
    found = _evidence(generated(tmp_path / "chk-1", "3", "200kB"), KEYED, "2")
    assert found.sample.records == 0
    assert not found.empty
    assert not keys_are_proven([found])
    assert isinstance(_refusal(found), UnprovenKey)


def test_a_type_that_no_first_record_fits_is_refused_where_values_are_needed(tmp_path: Path) -> None:
    spec = KEYED.replace("TUPLE<LONG, INT, LONG, STRING>", "TUPLE<LONG, INT, STRING>")
    found = _evidence(generated(tmp_path / "chk-1", "3", "200kB"), spec, "2")
    assert _refusal(found) is None, "a checkpoint takes bytes as they are, and the key is right"
    (refusal,) = found.refusals(trusted=False, needs_values=True)
    assert "not even the first records of its 9 sampled channels fit" in str(refusal)


def test_records_longer_than_a_share_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cdr_core.evidence import sampling

    monkeypatch.setattr(sampling, "SMALLEST_SHARE", 16)
    monkeypatch.setattr(sampling, "SAMPLE_BYTES", 16)
    found = _evidence(generated(tmp_path / "chk-1", "3", "200kB"), KEYED, "2")
    assert found.sample.records > 0


def _with_state(monkeypatch: pytest.MonkeyPatch, head: KeyedHead) -> None:
    monkeypatch.setattr(module, "keyed_head", lambda *_: head)


TIMERS = StateEntry("_timer_state/event_window-timers", "", None)
TUPLES = KEYED.replace("TUPLE<LONG, INT, LONG, STRING>", "TUPLE<STRING, LONG>")


@pytest.mark.parametrize("name", ["window list", "window reduced"])
def test_windows_prove_the_record_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    head = read_head(HEADS[name])
    _with_state(monkeypatch, KeyedHead(head.key, (*head.states, TIMERS)))
    right = _evidence(generated(tmp_path / "chk-1", "3", "200kB", TUPLES), TUPLES, "2")
    assert right.types is not None
    assert right.types.proven
    wrong = TUPLES.replace("TUPLE<STRING, LONG>", "TUPLE<STRING, DOUBLE>")
    refusal = _refusal(_evidence(str(tmp_path / "chk-1"), wrong, "same"))
    assert "its records are TUPLE<STRING, DOUBLE> in the job spec, and TUPLE<STRING, LONG> in state" in str(refusal)


def test_an_aggregate_says_nothing_about_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = read_head(HEADS["window aggregated"])
    _with_state(monkeypatch, KeyedHead(None, (*head.states, TIMERS)))
    found = _evidence(generated(tmp_path / "chk-1", "3", "200kB"), KEYED, "2")
    assert found.types is not None
    assert not found.types.proven
    assert found.types.source == "by hand"


ROWS = """
job: rows
exchanges:
  - name: right
    upstream: {operator: gen, partition: 0}
    downstream: {operator: slow, gate: 0}
    partitioner: hash
    record: ROWDATA<k BIGINT, s STRING, x DOUBLE>
    key: [k]
"""


@pytest.mark.parametrize("name", ["join value", "join unique"])
def test_a_sql_join_proves_the_types_of_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _with_state(monkeypatch, read_head(HEADS[name]))
    checkpoint = generated(tmp_path / "chk-1", "3", "200kB", ROWS)
    right = _evidence(checkpoint, ROWS, "2")
    assert right.types is not None
    assert right.types.proven
    for wrong in ("ROWDATA<k BIGINT, s STRING, x BIGINT>", "ROWDATA<k BIGINT, x DOUBLE>"):
        refusal = _refusal(_evidence(checkpoint, ROWS.replace("ROWDATA<k BIGINT, s STRING, x DOUBLE>", wrong), "same"))
        assert refusal is not None, wrong


def test_values_can_be_kept_from_view(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(generated(tmp_path / "chk-1", "3", "200kB"))
    plan = make_plan(checkpoint, parse_spec(KEYED), parse_parallelism("2"), SPLIT)
    (found,) = gather_evidence(checkpoint, plan, shown=False)
    assert found.key is not None
    assert found.key.proven
    assert found.sample.records > 0
    assert (found.sample.rows, found.sample.ranges) == ((), {})


def test_evidence_survives_its_json(fixture_checkpoint: FixtureCheckpoints) -> None:
    fixture = fixture_checkpoint("f_p3_thr0", 2)
    found = _evidence(str(fixture.path), fixture.spec.read_text(), "2")
    assert ExchangeEvidence.from_json(found.to_json()).to_json() == found.to_json()
