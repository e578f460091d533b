"""A recovery into ``checkpoint:DIR``: every element of the source is in it once, on its side, at its new place."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.checkpoint_target.export import export_checkpoint
from cdr_core.errors import PlanRefused, Refused, SettingsRefused
from cdr_core.flink.metadata import SubtaskState, read_metadata, write_metadata
from cdr_core.inspection.what_if import what_if
from cdr_core.metadata import Phase
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.claims import read_claims
from cdr_core.verify.framing import KINDS
from cdr_core.verify.report import Report
from cdr_core.verify.spec import read_spec
from cdr_core.verify.verify import Request, verify
from tests.audit.recovered import spoil_tag
from tests.phases.rewriting import request_of, rewrite
from tests.support import draining, inline
from tests.support.checkpoints import FixtureCheckpoints

RESCALED = [
    ("a_p3_thr0", "2"),
    ("a_p3_thr0", "5"),
    ("a_p3_thr1mb", "2"),
    ("b_p3_thr0", "2"),
    ("c_p7_thr0", "2"),
    ("d_p4_thr0", "3"),
    ("e_p4_seg32k", "6"),
    ("f_p3_thr0", "2"),
    ("g_p7_thr0", "2"),
    ("g_p3_finished_source", "2"),
    ("l_p3_lists", "5"),
    ("t_p3_timers", "2"),
    ("v4_a_p3_back_pressure", "2"),
    ("v5_a_p3_back_pressure", "5"),
]
SAME = [
    "a_p3_thr0",
    "a_p3_thr1mb",
    "r_p3_rocks_inc_true",
    "a_p2_file_merging",
    "a_p2_changelog_files",
    "a_p2_changelog_memory",
    "a_p2_forst_incremental",
]


def verified(source: Path, spec: Path, out: Path, receipt: Mapping[str, Any]) -> Report:
    claims = read_claims(json.dumps(receipt).encode(), "the receipt")
    report = verify(Request(str(source), f"checkpoint:{out}", str(spec), "", claims))
    assert report.differences == ()
    return report


def elements_by_side(checkpoint: Path, spec: Path) -> Counter[tuple[str, str]]:
    """Elements of all exchanges by (from, kind)."""
    found: Counter[tuple[str, str]] = Counter()
    with Checkpoint(str(checkpoint)) as opened:
        for exchange in read_spec(str(spec)):
            for channel in opened.channels(exchange):
                elements = opened.elements(exchange, channel).whole()
                kinds = [KINDS[elements.data[start]] for start in elements.starts]
                found.update((elements.from_state(number), kind) for number, kind in enumerate(kinds))
    return found


@pytest.mark.parametrize(("name", "parallelism"), RESCALED)
def test_every_record_is_in_the_rewritten_checkpoint_once_on_its_side_and_at_its_owner(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, parallelism: str
) -> None:
    source, out = fixture_checkpoint(name), tmp_path / "out"
    receipt = rewrite(source.path, source.spec, parallelism, out)
    report = verified(source.path, source.spec, out, receipt)
    before, after = elements_by_side(source.path, source.spec), elements_by_side(out, source.spec)
    records = sum(count for (_, kind), count in before.items() if kind == "record")
    assert (report.verdict, report.output.records) == ("balanced", records)
    if not name.startswith("t_"):  # an oracle cannot tell its two exchanges apart
        assert records == len(list(source.oracle.records))
    inputs = before["input", "record"] + before["input+output", "record"]
    assert (after["input", "record"], after["output", "record"]) == (inputs, before["output", "record"])
    closing = {kind.removeprefix("closing_"): n for kind, n in receipt["other_elements"]["closing"].items()}
    others = Counter(receipt["other_elements"]["written"]) + Counter(closing)
    written = Counter[str]()
    for (_, kind), count in after.items():
        written[kind] += count
    del written["record"]
    assert written == others
    assert read_metadata((out / "_metadata").read_bytes()).checkpoint_id == 2


@pytest.mark.parametrize("name", SAME)
def test_at_the_same_parallelism_every_handle_stays_whatever_the_backend(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str
) -> None:
    source, out = fixture_checkpoint(name), tmp_path / "out"
    receipt = rewrite(source.path, source.spec, "same", out)
    assert verified(source.path, source.spec, out, receipt).verdict == "balanced"
    old = read_metadata((source.path / "_metadata").read_bytes())
    new = read_metadata((out / "_metadata").read_bytes())
    assert (new.version, new.properties, new.master_states) == (old.version, old.properties, old.master_states)
    for before, after in zip(old.operators, new.operators, strict=True):
        assert after.coordinator_state == before.coordinator_state
        handles = [_handles(operator) for operator in (before, after)]
        assert handles[0] == handles[1]
    for file in receipt["checkpoint"]["copied"]:
        assert (out / file["path"]).read_bytes() == (source.path / file["path"]).read_bytes()


def _handles(operator: Any) -> list[Any]:
    subtasks = [each for each in operator.subtasks if isinstance(each, SubtaskState)]
    return [(s.index, s.managed_operator, s.raw_operator, s.managed_keyed, s.raw_keyed) for s in subtasks]


def test_with_output_recovered_downstream_everything_is_input_state(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_RECOVER_OUTPUT_DOWNSTREAM", "true")
    source, out = fixture_checkpoint("a_p3_thr0"), tmp_path / "out"
    receipt = rewrite(source.path, source.spec, "2", out)
    assert receipt["checkpoint"]["output_state"] == "downstream"
    assert verified(source.path, source.spec, out, receipt).verdict == "balanced"
    assert {side for side, _ in elements_by_side(out, source.spec)} == {"input"}


@pytest.mark.parametrize("parallelism", ["2", "5"])
def test_files_of_many_recovery_checkpoints_become_one_per_subtask(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: str
) -> None:
    draining.make_slow(monkeypatch)
    source, out = fixture_checkpoint("a_p3_thr0"), tmp_path / "out"
    request = request_of(source.path, source.spec, parallelism, out, checkpoint_interval="20ms")
    repository, recovery, settings = draining.spilled(request)
    with repository:
        inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
        parts = {str(path) for path in out.glob("cdr-*")}
        assert len(parts) > int(parallelism)
        inline.run(repository, recovery, Phase.COMMIT, settings)
        receipt = repository.receipt(recovery)
    assert receipt is not None
    assert verified(source.path, source.spec, out, receipt).verdict == "balanced"
    needed = {file["path"] for file in receipt["checkpoint"]["files"]}
    assert {path.name for path in out.glob("cdr-r-*")} == needed, "parts that were joined are gone"


def test_a_damaged_channel_goes_to_quarantine_and_the_rest_becomes_a_checkpoint(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    shipped, out = fixture_checkpoint("a_p3_thr0"), tmp_path / "out"
    source = Path(shutil.copytree(shipped.path, tmp_path / "chk-2"))
    with Checkpoint(str(source)) as checkpoint:
        (exchange,) = read_spec(str(shipped.spec))
        elements = checkpoint.elements(exchange, Channel("main", 1, 2)).whole()
        spoil_tag(source, elements.data[elements.starts[30] : elements.ends[30]])
    receipt = rewrite(source, shipped.spec, "same", out, on_corrupt="quarantine")
    report = verified(source, shipped.spec, out, receipt)
    assert (report.verdict, report.output.records < 1878) == ("partial", True)


def test_records_to_be_left_out_are_and_the_receipt_names_them(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    source, out = fixture_checkpoint("a_p3_thr0"), tmp_path / "out"
    (tmp_path / "list").write_text("# poison\nmain:2:0:5-7\n")
    drops = ("main:1:2:0", "main:1:2:1", str(tmp_path / "list"))
    receipt = rewrite(source.path, source.spec, "2", out, drop_records=drops)
    named = {(d["up"], d["down"], d["pos"]) for d in receipt["proof"]["dropped_by_request"]}
    assert named == {(1, 2, 0), (1, 2, 1), (2, 0, 5), (2, 0, 6), (2, 0, 7)}
    report = verified(source.path, source.spec, out, receipt)
    assert (report.verdict, report.output.records, report.left_out) == ("partial", 1878 - 5, 5)


def test_what_is_no_record_or_not_there_cannot_be_left_out(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    source = fixture_checkpoint("a_p3_thr0")
    other = next(e for e in source.oracle.elements if not e.is_record)
    drops = {
        f"main:{other.channel.up}:{other.channel.down}:{other.pos}": "no record but a",
        "main:1:2:99999": "elements",
    }
    for number, (drop, what) in enumerate(drops.items()):
        request = request_of(source.path, source.spec, "2", tmp_path / str(number), drop_records=(drop,))
        repository, recovery, settings = inline.start(request)
        with repository, pytest.raises(PlanRefused, match=what):
            inline.run_all(repository, recovery, settings)
    for drop in ("main:9:9:1", "nothing:0:0:0", "main:0:0:5-2", "main", "main:0:0:x"):
        with pytest.raises(Refused):
            inline.start(request_of(source.path, source.spec, "2", tmp_path / "no", drop_records=(drop,)))


def test_what_cannot_be_done_is_refused_before_anything_is_done(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fixture_checkpoint("a_p3_thr0")
    with pytest.raises(Refused, match="cdr did not write"):
        inline.start(request_of(source.path, source.spec, "2", source.path))
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")
    with pytest.raises(SettingsRefused, match="checkpoint:"):
        inline.start(request_of(source.path, source.spec, "2", tmp_path / "out"))


def test_a_directory_with_the_checkpoint_of_another_source_is_refused(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    first, second = fixture_checkpoint("a_p3_thr0"), fixture_checkpoint("a_p3_thr1mb")
    rewrite(first.path, first.spec, "2", tmp_path / "out")
    with pytest.raises(Refused, match="another checkpoint"):
        inline.start(request_of(second.path, second.spec, "2", tmp_path / "out"))


def test_state_that_cannot_be_moved_is_in_the_plan_with_its_operator_and_the_way_out(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    """Raw operator state: only its operator knows what is in it. At the same parallelism nobody has to know."""
    shipped, out = fixture_checkpoint("a_p3_thr0"), tmp_path / "out"
    source = shipped.copy(tmp_path / "chk-2")
    old = read_metadata((source / "_metadata").read_bytes())
    operators = tuple(
        replace(operator, subtasks=tuple(map(_made_raw, operator.subtasks))) for operator in old.operators
    )
    (source / "_metadata").write_bytes(write_metadata(replace(old, operators=operators)))
    settings = settings_module.load()
    to = f"checkpoint:{out}"
    found = what_if(str(source), str(shipped.spec), "2", to, settings, exact=False, speed=None)
    raw = [o.label for o in operators if any(getattr(each, "raw_operator", None) is not None for each in o.subtasks)]
    assert [(error.where.operator, "raw operator state" in error.what) for error in found.refusals] == [
        (o, True) for o in raw
    ]
    assert raw
    assert "same parallelism" in found.value["refused"][0]["hint"]
    with pytest.raises(PlanRefused, match="raw operator state"):
        inline.start(request_of(source, shipped.spec, "2", out))
    found = what_if(str(source), str(shipped.spec), "same", to, settings, exact=False, speed=None)
    assert found.refusals == ()
    copied = rewrite(source, shipped.spec, "same", out)["checkpoint"]["copied"]
    assert found.value["state"]["copied_files"] == len(copied) > 0
    assert found.value["state"]["copied_bytes"] == sum(file["bytes"] for file in copied)


def _made_raw(subtask: Any) -> Any:
    return replace(subtask, raw_operator=subtask.managed_operator, managed_operator=None)


@pytest.mark.parametrize("parallelism", ["2", "same"])
def test_an_exported_recovery_checkpoint_has_both_sides_and_all_other_state(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, parallelism: str
) -> None:
    """What is exported and what is published are the same checkpoint but for the names of files."""
    source, out, exported = fixture_checkpoint("a_p3_thr0"), tmp_path / "out", tmp_path / "exported"
    repository, recovery, settings = draining.spilled(request_of(source.path, source.spec, parallelism, out))
    with repository:
        inline.run(repository, recovery, Phase.DRAIN, settings)
        number = max(row.checkpoint_id for row in repository.checkpoints(recovery))
        export_checkpoint(repository, recovery, number, str(exported))
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert verify(Request(str(source.path), f"checkpoint:{exported}", str(source.spec))).differences == ()
    assert elements_by_side(exported, source.spec) == elements_by_side(out, source.spec)
    shapes = [_shape(read_metadata((place / "_metadata").read_bytes())) for place in (exported, out)]
    assert shapes[0] == shapes[1]


def _shape(metadata: Any) -> list[Any]:
    """Which subtask has which kinds of state."""
    return [
        (operator.operator_id, [tuple(type(handle).__name__ for handle in each[1:]) for each in _handles(operator)])
        for operator in metadata.operators
    ]


def test_a_record_that_does_not_fit_can_be_left_out_while_damage_elsewhere_goes_to_quarantine(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    """What is left out is not judged: its channel goes on behind it."""
    shipped, out = fixture_checkpoint("a_p3_thr0"), tmp_path / "out"
    source = Path(shutil.copytree(shipped.path, tmp_path / "chk-2"))
    with Checkpoint(str(source)) as checkpoint:
        (exchange,) = read_spec(str(shipped.spec))
        elements = checkpoint.elements(exchange, Channel("main", 1, 2)).whole()
        poison = elements.data[elements.starts[30] : elements.ends[30]]
        other = checkpoint.elements(exchange, Channel("main", 2, 0)).whole()
        spoil_tag(source, other.data[other.starts[40] : other.ends[40]])
    assert poison[0] == 0, "a record with a timestamp: its key is behind it"
    (file,) = (path for path in source.iterdir() if poison in path.read_bytes())
    elsewhere = poison[:16] + bytes([poison[16] ^ 0x55]) + poison[17:]
    file.write_bytes(file.read_bytes().replace(poison, elsewhere))
    drops = ("main:1:2:30", "main:2:0:45")
    receipt = rewrite(source, shipped.spec, "same", out, on_corrupt="quarantine", drop_records=drops)
    assert [(d["up"], d["down"], d["pos"]) for d in receipt["proof"]["dropped_by_request"]] == [(1, 2, 30)]
    (put_aside,) = receipt["proof"]["quarantine"]
    assert (put_aside["up"], put_aside["down"]) == (2, 0), "and what is behind the damage is in there"
