"""What the rows of a recovery still need: every path they name, and every path that the manifests among those name.

Rows are read twice and both readings count: a name that moves from one row to another between two queries is seen in at
least one of them. Nothing that no row named can come to be named later, because older attempts cannot write rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cdr_core.errors import CdrError, Unreadable
from cdr_core.metadata import Phase, Recovery, RecoveryCheckpointState, Repository, SpillSet
from cdr_core.spill.set_cleanup import attempt_of, is_address, is_needed, names_of
from cdr_core.storage import canonical, is_local, storage_for
from cdr_core.storage.local import RealNames
from cdr_core.sweep.decide import Standing


@dataclass(frozen=True, slots=True)
class _Rows:
    """Paths in rows. ``firm`` counts whatever became of a spill set; ``loose`` only while its set is needed.

    ``cuts`` are manifests of complete checkpoints. ``results`` are manifests of units, whose rows say all that is in
    them: on S3 it would cost a request to read each.
    """

    firm: frozenset[str]
    cuts: frozenset[str]
    loose: frozenset[str]
    results: frozenset[str]
    released: frozenset[str]
    held: frozenset[str]
    expired: frozenset[str]


def is_over(repository: Repository, recovery: Recovery) -> bool:
    """Whether it will not go on: it ended for good, or it was a drill's, and that has its verdict."""
    if recovery.state.is_final:
        return True
    drill = repository.drill_of(recovery.id)
    return drill is not None and drill.result is not None


def standing_of(repository: Repository, recovery: Recovery, keep_s: float = math.inf) -> Standing:
    """The facts by which files of this recovery are judged; ``recovery`` was read before the disk was listed.

    ``keep_s``: seconds after its end for which plan and receipt stay.
    """
    names = _Names()
    first, second = _rows(repository, recovery, names), _rows(repository, recovery, names)
    released = first.released & second.released
    unclear: list[str] = []
    named = _follow(recovery.id, first.firm | second.firm, frozenset(), names, unclear, first.cuts | second.cuts)
    named |= _follow(recovery.id, (first.loose | second.loose) - released, released, names, unclear)
    named |= first.results | second.results
    kept = frozenset(names.among([recovery.plan_uri or "", *_phase_names(repository, recovery.id, names)]))
    return Standing(
        epoch=recovery.epoch,
        is_final=is_over(repository, recovery),
        named=named,
        released=released,
        kept=kept,
        lasting=frozenset(names.among(_ledger_files(repository, recovery.id))),
        unclear=unclear[0] if unclear else None,
        held=first.held | second.held,
        expired=first.expired & second.expired,
        is_old=(datetime.now(UTC) - recovery.updated_at).total_seconds() > keep_s,
    )


def _rows(repository: Repository, recovery: Recovery, names: _Names) -> _Rows:
    sets = repository.spill_sets(recovery.id)
    needed = [each for each in sets if is_needed(each)]
    planned = repository.recovery(recovery.id)
    firm = [recovery.plan_uri or "", planned.sources, *_phase_names(repository, recovery.id, names)]
    firm += [name for each in needed for name in (each.manifest, *(file.path for file in each.files))]
    checkpoints = repository.checkpoints(recovery.id)
    for checkpoint in checkpoints:
        if checkpoint.state is RecoveryCheckpointState.COMPLETED:
            firm += [checkpoint.manifest or "", *names.inside(checkpoint.result)]
    for prepared in repository.prepared(recovery.id):
        firm.append(prepared.manifest)
        with suppress(ValueError):
            firm += names.inside(json.loads(prepared.manifest))
    units = [unit for phase in Phase for unit in repository.units(recovery.id, phase)]
    return _Rows(
        firm=frozenset(names.among(firm)),
        cuts=frozenset(
            names.among(each.manifest or "" for each in checkpoints if each.state is RecoveryCheckpointState.COMPLETED)
        ),
        loose=frozenset(name for unit in units for name in names.inside(unit.result)),
        results=frozenset(names.among(unit.manifest for unit in units)),
        released=frozenset(name for each in sets if each not in needed for name in names_of(each)),
        held=frozenset(name for each in sets if _at_work(each) for name in names_of(each)),
        expired=frozenset(
            names.among(each.manifest or "" for each in checkpoints if each.state is RecoveryCheckpointState.EXPIRED)
        ),
    )


def _at_work(spill_set: SpillSet) -> bool:
    """Whether a set is being read right now. Durable grants serve a resumption, which a finished recovery has not."""
    return any(grant.live and not grant.durable for grant in spill_set.grants)


def _phase_names(repository: Repository, recovery_id: str, names: _Names) -> Iterator[str]:
    for phase in repository.phases(recovery_id):
        yield from names.inside(phase.result)


def _ledger_files(repository: Repository, recovery_id: str) -> Iterator[str]:
    """The lines of the receipt's ledgers: the database has the receipt, which cannot be verified without them. What a
    drill wrote is gone, so there is nothing to verify.
    """
    if repository.drill_of(recovery_id) is not None:
        return
    for phase in repository.phases(recovery_id):
        if phase.name is Phase.COMMIT and phase.result:
            yield str(phase.result.get("ledger", ""))


class _Names:
    """Finds addresses in rows and gives each its real name: a tier may have one name in a row, another in a setting."""

    def __init__(self) -> None:
        self._real = RealNames()

    def among(self, texts: Iterable[str]) -> Iterator[str]:
        return (self._real.of(text) for text in texts if is_address(text))

    def inside(self, value: object) -> list[str]:
        """Every path and object that a JSON value names. A loop over all that waits, because results of units hold
        ledgers of thousands of numbers and the driver looks through all of them while no task works.
        """
        texts: list[str] = []
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                texts.append(each)
            elif isinstance(each, dict):
                waiting += [inner for inner in each.values() if type(inner) is not int]
            elif isinstance(each, (list, tuple)):
                waiting += [inner for inner in each if type(inner) is not int]
        return list(self.among(texts))


def _follow(
    recovery_id: str,
    named: Iterable[str],
    without: frozenset[str],
    names: _Names,
    unclear: list[str],
    cuts: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """The names and, of those that are manifests of this recovery, what they name in turn.

    One of ``cuts`` that is gone has expired since the rows were read: a newer one, which names what is needed now, took
    its place, so nothing can be told by these rows.
    """
    found: set[str] = set()
    waiting = list(named)
    while waiting:
        name = waiting.pop()
        if name in found or name in without:
            continue
        found.add(name)
        if name.endswith(".json") and attempt_of(name, recovery_id) is not None:
            try:
                waiting += names.inside(json.loads(_read(name)))
            except (FileNotFoundError, Unreadable):
                if name in cuts:
                    unclear.append(name)
                # Any other manifest names nothing any more; the phase that needs it reports the loss.
            except (CdrError, OSError, ValueError):
                unclear.append(name)
    return frozenset(found)


def _read(name: str) -> bytes:
    """A manifest on a disk as it is there: what is no file is not taken for one that is gone."""
    return Path(name).read_bytes() if is_local(name) else storage_for(name).read(name)


def remote_root(recovery: Recovery) -> str | None:
    """The recovery's own place in a workspace on S3, if it bears the recovery's name."""
    root = canonical(recovery.workspace).rstrip("/")
    return root if not is_local(root) and root.rpartition("/")[2] == recovery.id else None


def local_root(recovery: Recovery) -> Path | None:
    """The recovery's own directory in the workspace, if it is on local disks and bears the recovery's name."""
    if not is_local(recovery.workspace):
        return None
    root = Path(RealNames().of(recovery.workspace))
    return root if root.name == recovery.id else None
