"""The pages as a whole: links lead somewhere, every page can be reached, and tables and figures are those of the code.

Pages are read as files; nothing is started. The blocks on them are run by `recipes/test_recipes.py`,
`test_client_guide.py` and `test_installation.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from topics.config import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
OF_A_PROJECT = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}

FENCE = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)


def links(page: Path) -> list[tuple[Path, str]]:
    """The links of a page to files of the repository: the file, and the heading in it or an empty text."""
    found = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" not in target and not target.startswith("mailto:"):
            name, _, heading = target.partition("#")
            found.append(((page.parent / name).resolve() if name else page, heading))
    return found


def anchors(page: Path) -> set[str]:
    """What a link can name in a page: its headings in small letters, without punctuation, with hyphens for spaces."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_pages_that_a_project_has_are_there() -> None:
    assert {page.name for page in PAGES if page.parent == ROOT} >= OF_A_PROJECT


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, heading in links(page):
        assert target.exists(), target
        assert not heading or heading in anchors(target), f"{target.name}#{heading}"


def test_every_file_of_the_docs_can_be_reached_from_the_readme() -> None:
    reached, left = set[Path](), [README]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        if page.suffix == ".md":
            left.extend(target for target, _ in links(page))
        elif page.is_dir():
            left.extend(page.iterdir())
    files = {path for path in DOCS.rglob("*") if path.is_file()}
    assert len(files) > 40
    assert {str(path.relative_to(ROOT)) for path in files - reached} == set()


def table(page: Path, heading: str) -> list[list[str]]:
    """The cells of the rows below the table head that begins with `heading`."""
    rows = page.read_text().partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    assert rows, heading
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_the_limits_of_the_readme_are_settings_with_their_defaults() -> None:
    known = {f"`{setting.variable}`": setting.default or "not set" for setting in SETTINGS.values()}
    rows = table(README, "setting | default")
    assert len(rows) >= 10
    for name, default, consequence in rows:
        assert known[name] == default
        assert consequence


def test_the_figures_of_the_readme_are_those_of_the_last_run() -> None:
    """Each row of the table names the rows of `docs/performance.md` that its figures are from."""
    performance = (DOCS / "performance.md").read_text()
    measured = dict(re.findall(r"^\| `([a-z]+/[a-z0-9-]+)` \| [^|]+ \| ([^|]+) \|", performance, re.MULTILINE))
    rows = table(README, "| topics | Redis Streams")
    assert len(rows) >= 5
    for row in rows:
        what, *figures, ids = row
        of_these = re.findall(r"`([a-z]+/[a-z0-9-]+)`", ids)
        assert of_these, what
        assert [measured[name] for name in of_these] == [figure for figure in figures if figure], what
    met, of = re.findall(r"^(\d+) of (\d+) targets are met", performance, re.MULTILINE)[0]
    assert f"{met} of {of} targets are met" in README.read_text()
