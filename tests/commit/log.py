"""Commit logs for tests of the protocol: in memory, and in a file that outlives a killed process."""

from __future__ import annotations

from pathlib import Path

from cdr_core.commit.sinks import Published
from cdr_core.errors import Fenced


class Log:
    """See :class:`cdr_core.commit.publish_once.CommitLog`."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.fenced = False

    def intended_on(self) -> str | None:
        return next((row.removeprefix("intent on ") for row in reversed(self.rows) if row.startswith("intent")), None)

    def intend(self, base: str) -> None:
        self.rows.append(f"intent on {base}")

    def require_current(self) -> None:
        if self.fenced:
            raise Fenced("a newer attempt owns the recovery")

    def record(self, published: Published) -> None:
        self.rows.append(f"published {published.commit_id}")


class FileLog(Log):
    """One process at a time writes to it, as only the owner of an epoch writes rows."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self.rows = file.read_text().splitlines() if file.exists() else []

    def intend(self, base: str) -> None:
        super().intend(base)
        self._file.write_text("\n".join(self.rows))

    def record(self, published: Published) -> None:
        super().record(published)
        self._file.write_text("\n".join(self.rows))
