"""Java's modified UTF-8: U+0000 is C0 80, a character above U+FFFF is two three-byte surrogates."""

from __future__ import annotations


def decode(raw: bytes) -> str:
    """Return the text of ``raw``, such that :func:`encode` returns ``raw``; ``ValueError`` if there is no such text.

    Surrogate pairs become one character, unpaired surrogates stay as they are. Four-byte, overlong and bare-zero forms
    are refused: Java's writer never makes them, so they could not be written back.
    """
    if raw.isascii() and 0 not in raw:
        return raw.decode("ascii")
    units = raw.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
    text = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    if encode(text) != raw:
        raise ValueError("not canonical modified UTF-8")
    return text


def encode(text: str) -> bytes:
    """Return the bytes Java's ``writeUTF`` puts after the length; any text can be encoded."""
    if text.isascii() and "\x00" not in text:
        return text.encode("ascii")
    halves = "".join(_surrogates(character) for character in text)
    return halves.encode("utf-8", "surrogatepass").replace(b"\x00", b"\xc0\x80")


def _surrogates(character: str) -> str:
    above = ord(character) - 0x10000
    return character if above < 0 else chr(0xD800 + (above >> 10)) + chr(0xDC00 + (above & 0x3FF))
