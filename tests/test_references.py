"""Pages and modules that code, tests, scripts and docs refer to exist, and so do the sections and rules they name.

A reference to a page is a path that ends in `.md`, relative to the repository or to the page it stands on. Numbers may
follow it: of sections (headings that begin with a number), or of rules (items of a numbered list) where the page
numbers no headings; `8.3` is rule 3 in section 8. A reference to a module is a path that ends in `.py`, or the end of
one, or a dotted name that begins with `topics.`.

That what is referred to also says what the reference claims is nothing that a test can see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import pytest

from topics.config import CLIENT_VARIABLES, SETTINGS

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS: Final = ("docs", "scripts", "tests", "topics")
SUFFIXES: Final = frozenset({"", ".md", ".py", ".sh", ".toml", ".yml", ".service"})
MADE_FOR: Final = {"scripts/benchmarks/prose": "docs", "topics/cli/guide.py": "docs"}
"""What pages in another folder are made of: its links are relative to that folder."""
PLANNED: Final = "**Planned.** Nothing on this page is built yet"
"""A page with this names files that are still to come."""

_HEADING = re.compile(r"(#+) (.*)")
_NUMBERED_HEADING = re.compile(r"#+ (\d+)\. ")
_RULE = re.compile(r"(\d+)\. ")
_LINK = re.compile(r"\[([^]\[]*)\]\([^()]*\)")

_NUMBERS: Final = r"\d+(?:\.\d+)?(?:(?:,? +and +|,? +or +|, +| +to +)\d+(?:\.\d+)?(?!\w))*"
_PATH: Final = r"(?P<path>(?:[\w.-]+/)*[\w-]+\.md)(?:#(?P<anchor>[\w-]+))?"
# A page stands in quotes, in a link, or has a folder or a number beside it. What is bare in other text names no page.
_BEGINS: Final = r"(?P<quote>[`\"'(]|\b(?=\w[\w.-]*/)|\b(?=[\w-]+\.md +(?:sections? +|rules? +)?\d))"
_UNITS: Final = r"(?:ms|s|us|KiB|MiB|GiB)\b"
_REFERENCE = re.compile(
    rf"(?:\b(?P<kind_before>[Ss]ections?|[Rr]ules?) +(?P<before>{_NUMBERS}) +of +\[?)?"
    rf"{_BEGINS}{_PATH}(?![\w/])[`\"')]*"
    rf"(?:,? +(?:(?P<kind>sections?|rules?) +)?(?P<after>{_NUMBERS})(?![\w%]|\.\d|,\d| {_UNITS})"
    rf"(?:,? +rules? +(?P<rules>{_NUMBERS}))?)?"
)
_OWN_ANCHOR = re.compile(r"\]\(#(?P<anchor>[\w-]+)\)")
_MODULE = re.compile(r"`(?P<path>(?:[\w.-]+/)*\w[\w-]*\.py)`")
_FOLDER = re.compile(rf"`(?P<path>(?:{'|'.join(FOLDERS)})/[\w./-]*)`")
_DOTTED = re.compile(r"`(?P<name>topics(?!\.zip)(?:\.\w+)+)")
# The ends of lines, with what begins the next one: offsets stay as they are when blanks take their place.
_LINE_END = re.compile(r"(?:[ ]?\"\n[ \t]*f?\"|\n[ \t]*(?:#:?[ ]|>[ ])?[ \t]*)")


@dataclass
class Page:
    """What can be named of a Markdown page."""

    sections: dict[int, set[int]] = field(default_factory=dict)
    """The numbers of headings, and of the rules below each."""
    rules: set[int] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)

    def mistakes(self, kind: str, numbers: str, rules: str | None = None) -> Iterator[str]:
        """Why the page has no such sections or rules. `kind` is `section`, `rule`, or empty where only a number is
        given."""
        for section, rule in _numbers(numbers):
            if kind == "rule" or (not kind and not self.sections):
                if section not in self.rules:
                    yield f"has no rule {section}"
            elif section not in self.sections:
                yield f"has no section {section}"
            elif rule is not None and rule not in self.sections[section]:
                yield f"has no rule {rule} in section {section}"
            else:
                for named, _ in _numbers(rules or ""):
                    if named not in self.sections[section]:
                        yield f"has no rule {named} in section {section}"


def parse_page(text: str) -> Page:
    """The headings, rules and anchors of a page; those in code blocks are none."""
    page = Page()
    below: set[int] = set()
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            continue
        elif heading := _HEADING.fullmatch(line):
            anchor = _anchor(heading[2])
            count = 0
            while (unique := f"{anchor}-{count}" if count else anchor) in page.anchors:
                count += 1
            page.anchors.add(unique)
            if number := _NUMBERED_HEADING.match(line):
                below = page.sections.setdefault(int(number[1]), set())
            elif len(heading[1]) < 3:
                below = set()
        elif rule := _RULE.match(line):
            page.rules.add(int(rule[1]))
            below.add(int(rule[1]))
    return page


def _anchor(heading: str) -> str:
    """The anchor that Markdown viewers give to a heading."""
    text = _LINK.sub(r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _numbers(text: str) -> Iterator[tuple[int, int | None]]:
    """Sections, and rules in them, of "1", "1, 8 and 9", "2 to 6", "8.3"."""
    last: int | None = None
    for separator, number, rule in re.findall(r"(\D*?)(\d+)(?:\.(\d+))?(?!\d)", text):
        first = int(number)
        if separator == " to " and last is not None:
            yield from ((between, None) for between in range(last + 1, first))
        yield first, int(rule) if rule else None
        last = first


class References:
    """Finds the references in a repository that name nothing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pages: dict[Path, Page] = {}

    @cached_property
    def files(self) -> Sequence[Path]:
        """Files that may refer to others, as paths below the root of the repository."""
        found = [path for path in self._root.iterdir() if path.is_file()]
        for folder in FOLDERS:
            found += [path for path in (self._root / folder).rglob("*") if path.is_file()]
        return sorted(path for path in found if path.suffix in SUFFIXES and not path.name.startswith("."))

    @cached_property
    def _modules(self) -> frozenset[str]:
        """The paths of modules, and every end of one."""
        ends = set()
        for path in self.files:
            if path.suffix == ".py":
                parts = path.relative_to(self._root).parts
                ends |= {"/".join(parts[i:]) for i in range(len(parts))}
        return frozenset(ends)

    def mistakes_in(self, path: Path) -> list[str]:
        """A line for each reference of the file that names nothing."""
        return self.mistakes(path, path.read_text())

    def mistakes(self, path: Path, original: str) -> list[str]:
        """The same, of a text that would stand in `path`."""
        text = _LINE_END.sub(lambda end: " " * len(end[0]), original)
        found = []
        for offset, message in self._all_mistakes(path, text):
            line = original.count("\n", 0, offset) + 1
            found.append((line, f"{path.relative_to(self._root)}:{line}: {message}"))
        return [message for _, message in sorted(found)]

    def _all_mistakes(self, path: Path, text: str) -> Iterator[tuple[int, str]]:
        for match in references_in(text):
            for message in self._of_page(path, match):
                yield match.start("path"), message
        for match in _OWN_ANCHOR.finditer(text) if path.suffix == ".md" else ():
            if match["anchor"] not in self._page(path).anchors:
                yield match.start(), f"#{match['anchor']}: there is no such heading"
        if PLANNED in text:
            return
        for match in _MODULE.finditer(text):
            if match["path"] not in self._modules and not (path.parent / match["path"]).exists():
                yield match.start(), f"{match['path']}: there is no such module"
        for match in _FOLDER.finditer(text):
            if not match["path"].endswith((".md", ".py")) and not (self._root / match["path"]).exists():
                yield match.start(), f"{match['path']}: there is no such file or folder"
        for match in _DOTTED.finditer(text):
            if wrong := self._of_dotted_name(match["name"]):
                yield match.start(), wrong

    def _of_page(self, path: Path, match: re.Match[str]) -> Iterator[str]:
        name = match["path"]
        own = path.relative_to(self._root).as_posix()
        folders = [self._root / folder for part, folder in MADE_FOR.items() if own.startswith(part)]
        places = [folder / name for folder in (path.parent, self._root, *folders)]
        target = next((found for found in places if found.is_file()), None)
        if target is None:
            # Names in quotes of code are files of tests and programs, unless a folder of the repository is theirs.
            if match["quote"] not in ("'", '"') or name.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
                yield f"{name}: there is no such page"
            return
        page = self._page(target)
        if match["anchor"] and match["anchor"] not in page.anchors:
            yield f"{name}#{match['anchor']}: there is no such heading"
        if match["after"]:
            kind = (match["kind"] or "").rstrip("s")
            yield from (f"{name} {message}" for message in page.mistakes(kind, match["after"], match["rules"]))
        elif match["before"]:
            kind = match["kind_before"].lower().rstrip("s")
            yield from (f"{name} {message}" for message in page.mistakes(kind, match["before"]))

    def _page(self, path: Path) -> Page:
        path = path.resolve()
        if path not in self._pages:
            self._pages[path] = parse_page(path.read_text())
        return self._pages[path]

    def _of_dotted_name(self, name: str) -> str | None:
        """A package or module, or what one of them has."""
        parts = name.split(".")
        path, depth = self._root / parts[0], 1
        while depth < len(parts) and (path / parts[depth]).is_dir():
            path, depth = path / parts[depth], depth + 1
        if depth < len(parts) and (path / f"{parts[depth]}.py").is_file():
            path, depth = path / f"{parts[depth]}.py", depth + 1
        else:
            path = path / "__init__.py"
        if depth == len(parts):
            return None
        if path.is_file() and re.search(rf"\b{parts[depth]}\b", path.read_text()):
            return None
        return f"{name}: {path.relative_to(self._root)} has no {parts[depth]}"


def references_in(text: str) -> Iterator[re.Match[str]]:
    """References to pages, but for addresses such as https://host/page.md. Line ends are blanks already."""
    if ".md" in text:
        for match in _REFERENCE.finditer(text):
            start = match.start("path")
            if "://" not in text[max(0, start - 300) : start].rpartition(" ")[2]:
                yield match


# --- the repository --------------------------------------------------------------------------------------------------

REFERENCES = References(REPOSITORY)
FILES = [path for path in REFERENCES.files if path != Path(__file__).resolve()]
"""Without this one, in which most references are made up."""


@pytest.mark.parametrize("folder", [*FOLDERS, "."])
def test_what_is_referred_to_exists(folder: str) -> None:
    files = [path for path in FILES if (path.relative_to(REPOSITORY).parts[:-1] or (".",))[0] == folder]
    assert files
    assert [mistake for path in files for mistake in REFERENCES.mistakes_in(path)] == []


def test_the_specification_is_cited() -> None:
    """The forms in use are those that are looked for: else the test above would find nothing wrong in nothing."""
    cited = 0
    for path in FILES:
        text = _LINE_END.sub(" ", path.read_text())
        cited += sum(bool(match["after"]) for match in references_in(text) if "docs/spec/" in match["path"])
    assert cited > 200


def test_settings_that_pages_name_exist() -> None:
    known = CLIENT_VARIABLES | {setting.variable for setting in SETTINGS.values()}
    pages = [path for path in FILES if path.suffix == ".md" and PLANNED not in path.read_text()]
    unknown = {
        (path.name, name)
        for path in pages
        for name in re.findall(r"\bTOPICS_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())
        if name not in known and not name.startswith("TOPICS_JOB_")  # which commands are run with
    }
    assert unknown == set()


# --- the checker -----------------------------------------------------------------------------------------------------

RULES = "# Rules\n\nText.\n\n## Heads\n\n1. One.\n2. Two.\n\n## Copies\n\n3. Three.\n"
CONTRACT = (
    "# Contract\n\n## 1. Calls\n\n## 2. What holds\n\n1. Never.\n2. Always.\n\n## 3. `Code` — and more\n\n## Notes\n"
)


@pytest.fixture
def references(tmp_path: Path) -> References:
    files = {
        "docs/spec/rules.md": RULES,
        "docs/spec/contract.md": CONTRACT,
        "docs/guide.md": "# Guide\n",
        "topics/__init__.py": "",
        "topics/engine/__init__.py": "from topics.engine.engine import Engine\n",
        "topics/engine/loader.py": "class Loader:\n    pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return References(tmp_path)


def found(references: References, text: str, name: str = "topics/engine/loader.py") -> list[str]:
    """Mistakes in a text, without where they are."""
    path = references._root / name
    return [mistake.partition(": ")[2] for mistake in references.mistakes(path, text)]


@pytest.mark.parametrize(
    "text",
    [
        "`docs/spec/contract.md` section 2",
        "`docs/spec/contract.md` sections 1 to 3",
        "`docs/spec/contract.md`, sections 1, 2 and 3",
        "(`docs/spec/contract.md` 1 and 2.2)",
        "`docs/spec/contract.md` section 2, rules 1 and 2",
        "`docs/spec/contract.md` 2 rule 1, `docs/spec/rules.md` 1 to 3",
        "section 3 of `docs/spec/contract.md`; rule 2 of `docs/spec/rules.md`",
        "docs/spec/rules.md 3",
        "`docs/spec/rules.md` rule 3",
        "`docs/guide.md` takes 5 s, and `docs/guide.md`: 20,000 of them",
        "https://example.org/other.md 7",
        "`topics/engine/loader.py`, `engine/loader.py` and `loader.py` in `topics/engine/`",
        "`topics.engine.loader`, `topics.engine.loader.Loader` and `topics.engine.Engine.start`",
        'path / "page.md"',
    ],
)
def test_what_exists_is_no_mistake(references: References, text: str) -> None:
    assert found(references, text) == []


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("`docs/spec/contracts.md`", ["docs/spec/contracts.md: there is no such page"]),
        ("`rules.md` 3", ["rules.md: there is no such page"]),
        ("rules.md 3", ["rules.md: there is no such page"]),
        ('"docs/rules.md"', ["docs/rules.md: there is no such page"]),
        ("`docs/spec/contract.md` section 4", ["docs/spec/contract.md has no section 4"]),
        ("`docs/spec/contract.md` 4", ["docs/spec/contract.md has no section 4"]),
        ("`docs/spec/contract.md` sections 3 to 5", [f"docs/spec/contract.md has no section {n}" for n in (4, 5)]),
        ("`docs/spec/contract.md` 1, 2 and 7", ["docs/spec/contract.md has no section 7"]),
        ("`docs/spec/contract.md` 2.3", ["docs/spec/contract.md has no rule 3 in section 2"]),
        ("`docs/spec/contract.md` section 1, rule 1", ["docs/spec/contract.md has no rule 1 in section 1"]),
        ("`docs/spec/rules.md` 2 to 4", ["docs/spec/rules.md has no rule 4"]),
        ("`docs/spec/rules.md` section 1", ["docs/spec/rules.md has no section 1"]),
        ("rule 9 of `docs/spec/rules.md`", ["docs/spec/rules.md has no rule 9"]),
        ("`topics/engine/loading.py`", ["topics/engine/loading.py: there is no such module"]),
        ("`oader.py`", ["oader.py: there is no such module"]),
        ("`topics/motor/`", ["topics/motor/: there is no such file or folder"]),
        ("`topics.engine.loading`", ["topics.engine.loading: topics/engine/__init__.py has no loading"]),
        ("`topics.engine.loader.Motor`", ["topics.engine.loader.Motor: topics/engine/loader.py has no Motor"]),
    ],
)
def test_what_does_not_exist_is_one(references: References, text: str, mistakes: list[str]) -> None:
    assert found(references, text) == mistakes


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("[what holds](spec/contract.md#2-what-holds), [more](spec/contract.md#3-code--and-more)", []),
        ("[what holds](spec/contract.md) 2, ([rules](spec/rules.md), 3)", []),
        ("[here](#guide)", []),
        ("[there](#there)", ["#there: there is no such heading"]),
        ("[what held](spec/contract.md#2-what-held)", ["spec/contract.md#2-what-held: there is no such heading"]),
        ("[what holds](contract.md)", ["contract.md: there is no such page"]),
        ("[what holds](spec/contract.md) section 9", ["spec/contract.md has no section 9"]),
        ("([rules](spec/rules.md), 4)", ["spec/rules.md has no rule 4"]),
    ],
)
def test_links_of_pages(references: References, text: str, mistakes: list[str]) -> None:
    assert found(references, text, "docs/guide.md") == mistakes


def test_a_reference_may_go_on_in_the_next_line(references: References) -> None:
    text = '"""One.\n\n    Two (`docs/spec/contract.md`\n    section 9).\n    """\n'
    text += "# and `docs/spec/contract.md` sections 1 and\n# 8 of it\n"
    path = references._root / "topics/engine/loader.py"
    assert references.mistakes(path, text) == [
        "topics/engine/loader.py:3: docs/spec/contract.md has no section 9",
        "topics/engine/loader.py:6: docs/spec/contract.md has no section 8",
    ]


def test_headings_and_rules_in_blocks_of_code_are_none() -> None:
    page = parse_page("## 1. One\n\n```\n## 2. Two\n3. Three\n```\n")
    assert page.sections == {1: set()}
    assert page.anchors == {"1-one"}
