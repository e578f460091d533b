"""From the uid that a user gives an operator to the id that Flink stores: MurmurHash3, x64, 128 bits, seed 0."""

from __future__ import annotations

import mmh3


def operator_id_of_uid(uid: str) -> str:
    """Return the 32-hex operator id of a uid; finds an operator also where the metadata stores no uid (versions 3
    and 4).
    """
    # Java turns a lone surrogate into a question mark; any other text has a UTF-8 form.
    return mmh3.hash_bytes(uid.encode("utf-8", "replace")).hex()
