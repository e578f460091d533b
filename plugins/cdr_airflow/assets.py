"""Asset events: a target has new data, announced once, and only when the commit log contains the publication.

The task ``commit`` has the alias :data:`RECOVERED` as its outlet and adds the target's asset to it. It first looks up
earlier announcements, so neither a try that died between publishing and its end loses the event, nor does a cleared
task repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias

from cdr_core.targets import Target

if TYPE_CHECKING:
    from airflow.sdk import Context

RECOVERED = AssetAlias("cdr_recovered", group="cdr")

LOOKED_BACK = 500
"""Events of the alias that are searched, newest first. A repeat of an older one would be announced again."""


@dataclass(frozen=True, slots=True)
class Publication:
    """The contents of an event: the recovery, its last commit, its location and the hash of its proof."""

    recovery: str
    commit_id: int
    target: str
    location: str
    proof_sha256: str


def asset_for(target: str) -> Asset:
    """Return the asset of a target: a path or an object prefix by its own address, a table by its catalog and name."""
    parsed = Target.parse(target)
    kind, address = parsed.kind.name, parsed.address
    if parsed.kind.has_manifests or parsed.kind.is_checkpoint:
        uri = address if "://" in address else f"file://{address}"
    elif address.startswith("s3://"):
        uri = f"{kind}+{address}"
    else:
        uri = f"{kind}://{address.removeprefix('file://').lstrip('/')}"
    scheme, _, rest = uri.partition("://")
    plain = f"{scheme}://{quote(rest, safe='/@:.=+-_~')}"
    return Asset(name=quote(target, safe="/@:.=+-_~ "), uri=plain)


def announce(context: Context, publication: Publication) -> bool:
    """Add the event, unless it was announced before; return whether it was added."""
    events = context["inlet_events"][RECOVERED].ascending(False).limit(LOOKED_BACK)
    if _was_announced(publication, (event.extra for event in events)):
        return False
    extra: dict[str, Any] = asdict(publication)
    context["outlet_events"][RECOVERED].add(asset_for(publication.target), extra=extra)
    return True


def _was_announced(publication: Publication, extras: Iterable[Any]) -> bool:
    key = (publication.recovery, publication.commit_id)
    return any((extra.get("recovery"), extra.get("commit_id")) == key for extra in extras if extra)
