"""Which file is a leftover, decided on facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdr_core.sweep.decide import Standing, Why, judge

ROOT = "/workspace/r-1"
RUNNING = Standing(
    epoch=5,
    is_final=False,
    named=frozenset({f"{ROOT}/e2/plan.json", f"{ROOT}/e3/spill/set-a", f"{ROOT}/e5/spill/set-c/kept"}),
    released=frozenset({f"{ROOT}/e3/spill/set-b/spill-00000", f"{ROOT}/e5/spill/set-c/spill-00000"}),
    kept=frozenset({f"{ROOT}/e2/plan.json", f"{ROOT}/e7/receipt.json"}),
)


@pytest.mark.seed("000-14", "E12", "E13")
@pytest.mark.parametrize(
    ("epoch", "path", "why"),
    [
        (2, "e2/plan.json", None),
        (2, "e2/read/units.json", Why.OLDER),
        (3, "e3/spill/set-a/spill-00000", None),
        (3, "e3/spill/set-ab/spill-00000", Why.OLDER),
        (3, "e3/spill/set-b/spill-00000", Why.RELEASED),
        (5, "e5/spill/set-c/spill-00000", Why.RELEASED),
        (5, "e5/drain/anything", None),
        (6, "e6/of/a/newer/attempt", None),
    ],
)
def test_while_a_recovery_runs_only_what_nobody_names_goes(epoch: int, path: str, why: Why | None) -> None:
    """Of older attempts, and of released sets; what a row names stays, and the current attempt's."""
    assert judge(RUNNING, epoch, f"{ROOT}/{path}") is why


@pytest.mark.parametrize(
    ("epoch", "path", "why"),
    [
        (2, "e2/plan.json", None),
        (7, "e7/receipt.json", None),
        (3, "e3/spill/set-a/spill-00000", Why.FINISHED),
        (7, "e7/commit/units.json", Why.FINISHED),
    ],
)
def test_of_a_finished_recovery_only_plan_and_receipt_stay(epoch: int, path: str, why: Why | None) -> None:
    assert judge(replace(RUNNING, epoch=7, is_final=True), epoch, f"{ROOT}/{path}") is why


def test_what_an_unreadable_manifest_may_name_stays() -> None:
    unclear = replace(RUNNING, unclear=f"{ROOT}/e3/spill/set-a/manifest.json")
    assert judge(unclear, 2, f"{ROOT}/e2/read/units.json") is None
    assert judge(unclear, 3, f"{ROOT}/e3/spill/set-b/spill-00000") is None


def test_a_released_file_that_something_else_still_names_stays() -> None:
    named = frozenset({f"{ROOT}/e3/spill/set-b/spill-00000"})
    assert judge(replace(RUNNING, named=named), 3, f"{ROOT}/e3/spill/set-b/spill-00000") is None


def test_files_of_a_finished_recovery_that_are_kept_go_when_that_was_long_ago() -> None:
    over = Standing(1, True, frozenset(), frozenset(), frozenset({"/w/plan", "/w/set"}), held=frozenset({"/w/set"}))
    assert judge(over, 1, "/w/plan") is None
    assert judge(over, 1, "/w/else") is Why.FINISHED
    long_over = replace(over, is_old=True)
    assert judge(long_over, 1, "/w/plan") is Why.LONG_OVER
    assert judge(long_over, 1, "/w/set") is None, "somebody reads it"
    lasting = replace(long_over, lasting=frozenset({"/w/plan"}))
    assert judge(lasting, 1, "/w/plan") is None, "nothing else has it"


def test_the_manifest_of_an_expired_recovery_checkpoint_goes_while_its_recovery_runs() -> None:
    running = Standing(3, False, frozenset({"/w/2"}), frozenset(), frozenset(), expired=frozenset({"/w/1", "/w/2"}))
    assert judge(running, 3, "/w/1") is Why.EXPIRED
    assert judge(running, 3, "/w/2") is None, "a row still names it"
    assert judge(replace(running, unclear="/w/m"), 3, "/w/1") is None
