"""When a recovery is published: once at its end, or with every recovery checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdr_core.errors import SettingsRefused
from cdr_core.metadata.recovery_options import AT_END, PER_CHECKPOINT
from cdr_core.targets import Target

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.settings import Settings


def mode_for(target: Target, settings: Settings) -> str:
    """How a new recovery will be published. Where nothing is published (``none:``), it is all the same."""
    if settings.commit == AT_END or not target.kind.keeps:
        return AT_END
    if not target.kind.is_table:
        raise SettingsRefused(f"CDR_COMMIT={settings.commit} cannot publish to {target.kind.name}:", hint="unset it")
    if not settings.checkpoint_during_recovery:
        raise SettingsRefused(
            f"CDR_COMMIT={settings.commit} needs checkpoints, and CDR_CHECKPOINT_DURING_RECOVERY is off",
            hint="unset one of them",
        )
    return settings.commit


def is_per_checkpoint(recovery: Recovery) -> bool:
    """As it was chosen when the recovery was created: it never changes."""
    return recovery.options.commit == PER_CHECKPOINT
