"""Libraries that an installed cdr may lack, because they belong to an extra of the package."""

from __future__ import annotations

from importlib.util import find_spec

from cdr_core.errors import Refused

EXTRAS = {"iceberg": "pyiceberg", "paimon": "pypaimon", "postgres": "psycopg", "spark": "pyspark"}
"""The library that shows whether an extra is installed."""
THEN = {"paimon": ' and then pip install --no-deps "pypaimon==2.1.0"'}
"""What no resolver can install together with the rest of an extra."""


def require_extra(extra: str, what: str) -> None:
    """Raise :class:`Refused` where the library of an extra is absent; ``what`` needs it."""
    library = EXTRAS[extra]
    if find_spec(library) is None:
        hint = f'run: pip install "cdr[{extra}]"{THEN.get(extra, "")}'
        raise Refused(f"{what} needs {library}, which is not installed", hint=hint)
