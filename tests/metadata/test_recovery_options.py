"""Options, settings and the plan's summary in a recovery's row: options are compared with those of other versions."""

from __future__ import annotations

import msgspec
import pytest

from cdr_core.metadata import PlannedEnds, PlanSummary, RecoveryOptions, RecoverySettings

OPTIONS = {
    '{"on_corrupt":"fail"}': RecoveryOptions(on_corrupt="fail"),
    '{"on_corrupt":"fail","commit":"per-checkpoint","table_shape":"values"}': RecoveryOptions(
        on_corrupt="fail", commit="per-checkpoint", table_shape="values"
    ),
    '{"on_corrupt":"quarantine","table_raw":false}': RecoveryOptions(on_corrupt="quarantine", table_raw=False),
    '{"on_corrupt":"fail","drop_records":["main:0:0:0-1"],"drain_order":["b","a"],"recover_output_downstream":true}': (
        RecoveryOptions(
            on_corrupt="fail",
            drop_records=("main:0:0:0-1",),
            drain_order=("b", "a"),
            recover_output_downstream=True,
        )
    ),
}


@pytest.mark.parametrize("text", OPTIONS)
def test_options_are_stored_without_their_defaults(text: str) -> None:
    assert msgspec.json.encode(OPTIONS[text]).decode() == text
    assert msgspec.json.decode(text, type=RecoveryOptions) == OPTIONS[text]


def test_options_without_a_rule_for_damage_are_not_read() -> None:
    with pytest.raises(msgspec.ValidationError, match="on_corrupt"):
        msgspec.json.decode("{}", type=RecoveryOptions)


def test_settings_of_an_earlier_release_have_no_evidence() -> None:
    stored = '{"checkpoint_interval":"","evidence":[],"later":1}'
    assert msgspec.json.decode(stored, type=RecoverySettings) == RecoverySettings(evidence=())
    assert msgspec.json.decode("{}", type=RecoverySettings).evidence is None


def test_a_summary_keeps_its_zeros() -> None:
    summary = PlanSummary(exchanges=(PlannedEnds("main", (3, 3), (3, 2), "hash"),), subtasks=2)
    stored = msgspec.to_builtins(summary)
    assert stored["ambiguous"] == 0
    assert msgspec.convert(stored, PlanSummary) == summary
