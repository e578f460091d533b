"""A hook of mkdocs: puts pages that lie outside of docs/ into the site, and adapts the links between both kinds."""

from __future__ import annotations

import posixpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from links import LINK, ROOT, prose

_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "docker/README.md")
_FILES = ("LICENSE",)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; README.md becomes the first page."""
    for name in (*_PAGES, *_FILES):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change relative links from the places of files in the project to those in the site."""
    source = page.file.src_uri
    in_project = source if source in _PAGES else f"docs/{source}"
    lines = markdown.splitlines()
    for number, line in prose(markdown):
        lines[number - 1] = LINK.sub(lambda found: found[1] + link_in_site(found[2], in_project), line)
    return "\n".join(lines) + "\n"


def link_in_site(target: str, page: str) -> str:
    """Return what ``target`` must be in the site, where the contents of docs/ lie one folder higher."""
    if ":" in target or target.startswith(("#", "/")):
        return target
    absolute = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return posixpath.relpath(absolute.removeprefix("docs/"), posixpath.dirname(page.removeprefix("docs/")) or ".")
