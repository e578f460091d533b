"""Checks the relative links of every Markdown page: the file must be there, and so must the heading that it names.

Addresses on the network are not looked at, so the check needs none and takes no time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent

_FOLDERS = ("docs", "docker", "sql", "tests", ".github")
_SOURCES = ("docs/benchmarks", "docs/seeds")  # texts that a generated page contains, which is checked itself
_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_HAS_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)

LINK = re.compile(r"(\]\(\s*<?|^\s*\[[^\]]+\]:\s+)([^)\s>]+)")
"""A target of ``[text](target)``, ``![text](target)`` or ``[name]: target``, behind what precedes it."""


def faults_of_links(root: Path = ROOT) -> Iterator[str]:
    """Links to a file or a heading that does not exist, each with its page and line."""
    for page in pages(root):
        for number, line in prose(page.read_text()):
            for _, target in LINK.findall(_CODE.sub("", line)):
                if fault := _fault(root, page, target):
                    yield f"{page.relative_to(root)}:{number} links to {target}: {fault}"


def pages(root: Path = ROOT) -> list[Path]:
    """Return all Markdown pages of the project."""
    below = sorted(path for folder in _FOLDERS for path in (root / folder).rglob("*.md"))
    sources = [root / folder for folder in _SOURCES]
    return [*sorted(root.glob("*.md")), *(path for path in below if path.parent not in sources)]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced code, numbered from 1."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        found = _FENCE.match(line)
        if found and fence in ("", found[1]):
            fence = "" if fence else found[1]
        elif not fence:
            yield number, line


def _fault(root: Path, page: Path, target: str) -> str:
    if _HAS_SCHEME.match(target):
        return ""
    if target.startswith("/"):
        return "not relative"
    name, _, anchor = target.partition("#")
    found = (page.parent / unquote(name)).resolve() if name else page
    if not found.is_relative_to(root):
        return "outside of the project"
    if not found.exists():
        return "no such file"
    if anchor and found.suffix == ".md" and anchor not in _anchors(found):
        return "no such heading"
    return ""


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as forges and the docs site make them."""
    headings = (found[1] for _, line in prose(page.read_text()) if (found := _HEADING.match(line)))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
