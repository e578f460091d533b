"""Parameters of the filter, fixed before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from cdr_core.errors import SettingsRefused
from cdr_core.settings import DEFAULT_PAGE_SIZE


@dataclass(frozen=True, slots=True)
class FilterContext:
    """Parameters of the filter. ``enabled``: records have to be read, because some channel has several possible owners.

    ``page_size`` is that of the read page, in bytes, always positive. ``spill_dirs`` are the directories in which a
    record too long for memory gets a file of its own: at least one when enabled, since such a record cannot be
    excluded.
    """

    enabled: bool
    page_size: int
    spill_dirs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.page_size <= 0:
            raise SettingsRefused(f"a read page of {self.page_size} bytes cannot be filled", hint="set CDR_PAGE_SIZE")
        if self.enabled and not self.spill_dirs:
            raise SettingsRefused("filtering needs a directory for very long records", hint="set CDR_WORKSPACE")

    @classmethod
    def disabled(cls) -> FilterContext:
        """Return the parameters for a plan in which every record has one possible owner: the page is never
        allocated.
        """
        return cls(enabled=False, page_size=DEFAULT_PAGE_SIZE)
