"""The link check of ``make check``: a link to a missing file or heading is found, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.conftest import Tool

OTHER = "# Other page\n\n## Where to, and *how*: `cdr plan`\n"


def faults(tool: Tool, root: Path, text: str) -> list[str]:
    (root / "docs").mkdir()
    (root / "docs" / "other.md").write_text(OTHER)
    (root / "docs" / "page.md").write_text(f"# Page\n\n## A part\n\n{text}\n")
    return list(tool("links").faults_of_links(root))


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("[x](gone.md)", "gone.md: no such file"),
        ("![x](images/gone.png)", "images/gone.png: no such file"),
        ("[x](other.md#gone)", "other.md#gone: no such heading"),
        ("[x](#gone)", "#gone: no such heading"),
        ("[x](/docs/other.md)", "/docs/other.md: not relative"),
        ("[x](../../elsewhere.md)", "../../elsewhere.md: outside of the project"),
        ("[x]: gone.md", "gone.md: no such file"),
        ("fine `[x](code)` and [y](gone.md)", "gone.md: no such file"),
    ],
)
def test_a_broken_link_is_found_with_page_and_line(tool: Tool, tmp_path: Path, link: str, fault: str) -> None:
    assert faults(tool, tmp_path, link) == [f"docs/page.md:5 links to {fault}"]


@pytest.mark.parametrize(
    "link",
    [
        "[x](other.md)",
        "[x](other.md#where-to-and-how-cdr-plan)",
        "[x](#a-part)",
        "[x](https://example.org/gone)",
        "`[x](gone.md)`",
        "```\n[x](gone.md)\n```",
    ],
)
def test_a_sound_link_and_code_are_no_fault(tool: Tool, tmp_path: Path, link: str) -> None:
    assert faults(tool, tmp_path, link) == []


def test_no_page_of_the_project_has_a_broken_link(tool: Tool) -> None:
    assert list(tool("links").faults_of_links()) == []


@pytest.mark.parametrize(
    ("link", "page", "in_site"),
    [
        ("docs/page.md#api", "README.md", "page.md#api"),
        ("docker/README.md", "README.md", "docker/README.md"),
        ("../CONTRIBUTING.md#versions", "docs/architecture.md", "CONTRIBUTING.md#versions"),
        ("../architecture.md", "docs/decisions/0001.md", "../architecture.md"),
        ("../docs/airflow.md", "docker/README.md", "../airflow.md"),
        ("#api", "README.md", "#api"),
        ("https://example.org/docs/x", "README.md", "https://example.org/docs/x"),
    ],
)
def test_links_point_to_the_same_page_in_the_site(tool: Tool, link: str, page: str, in_site: str) -> None:
    assert tool("site_pages").link_in_site(link, page) == in_site
