"""Words and signs of a type description, each with its column, and the refusals that point at them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from cdr_core.errors import SpecRefused

MAX_TEXT = 100_000
"""Characters of a description; far beyond any real one, so that a pasted file is refused at once."""
MAX_FIELDS = 4096
MAX_DEPTH = 32
"""Nesting of types; keeps the parser's recursion and the decoder's registers small."""

_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)|`(?P<quoted>(?:[^`]|``)+)`|(?P<number>[0-9]{1,10})"
    r"|'(?P<literal>(?:[^']|'')*)'|(?P<sign>[<>(),]))"
)


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is word, quoted, number, literal, sign or end; ``column`` counts from 1."""

    kind: str
    value: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.value)


class Scanner:
    """Reads tokens of one description in order."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            raise SpecRefused(
                f"a type description of {len(text)} characters is not one", hint=f"at most {MAX_TEXT} are read"
            )
        self._text = text
        self._at = 0
        self.depth = 0
        self.token = self._next()

    def _next(self) -> Token:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :]
            column = len(self._text) - len(rest.lstrip()) + 1
            if rest.strip():
                self.refuse(f"{rest.strip()[0]!r} has no meaning", column, "names with other signs go in backquotes")
            return Token("end", "", column)
        self._at = match.end()
        kind = str(match.lastgroup)
        value = match[kind].replace("``", "`") if kind == "quoted" else match[kind]
        return Token(kind, value, match.start(kind) + (0 if kind in ("quoted", "literal") else 1))

    def refuse(self, what: str, column: int, hint: str) -> NoReturn:
        """Raise with the text, shortened around the column."""
        begin = max(0, column - 40)
        shown = ("…" if begin else "") + self._text[begin : begin + 80]
        if begin + 80 < len(self._text):
            shown += "…"
        raise SpecRefused(f"type {shown!r}, column {column}: {what}", hint=hint)

    def expected(self, what: str) -> NoReturn:
        """Raise because the present token may not stand here."""
        self.refuse(f"expected {what}, found {self.token}", self.token.column, "see the types of the job spec")

    def advance(self) -> Token:
        """Return the present token; the next one becomes present."""
        token = self.token
        self.token = self._next()
        return token

    def take(self, sign: str) -> bool:
        """Step over the sign if it is here."""
        if self.token.kind == "sign" and self.token.value == sign:
            self.advance()
            return True
        return False

    def need(self, sign: str) -> None:
        """Step over the sign or refuse."""
        if not self.take(sign):
            self.expected(repr(sign))

    def take_word(self, word: str) -> bool:
        """Step over the keyword, in any case, if it is here."""
        if self.token.kind == "word" and self.token.value.upper() == word:
            self.advance()
            return True
        return False

    def number(self, least: int, most: int, what: str) -> int:
        """Step over a number in these bounds or refuse."""
        if self.token.kind != "number":
            self.expected(what)
        token = self.advance()
        if not least <= int(token.value) <= most:
            self.refuse(f"{what} must be from {least} to {most}, not {token.value}", token.column, "correct it")
        return int(token.value)

    def name(self) -> Token:
        """Step over a field name or refuse."""
        if self.token.kind not in ("word", "quoted"):
            self.expected("a field name")
        return self.advance()

    def new_name(self, names: Sequence[str]) -> str:
        """Step over the name of a further field beside these, or refuse."""
        name = self.name()
        if name.value in names:
            self.refuse(f"field {name.value!r} appears twice", name.column, "each name may appear once")
        if len(names) == MAX_FIELDS:
            self.refuse(f"more than {MAX_FIELDS} fields", name.column, "describe fewer")
        return name.value

    def enter(self) -> None:
        """Go one level deeper, or refuse; every caller leaves again."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.refuse(f"nested deeper than {MAX_DEPTH} types", self.token.column, "flatten it or use OPAQUE")

    def leave(self) -> None:
        """Go one level up."""
        self.depth -= 1
