"""The layout: rooms of a size that can be read, each with a map."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent for path in (ROOT / "topics").rglob("__init__.py"))
MODULES = sorted((ROOT / "topics").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))

MOST_LINES = 800
MOST_CLASS_LINES = 500
MOST_TEST_LINES = 1000
MOST_MODULES = 24
MOST_MODULES_AT_ROOT = 12
MOST_README_LINES = 150


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def length_of(path: Path) -> int:
    return len(path.read_text().splitlines())


@cache
def classes_in(path: Path) -> list[tuple[str, int]]:
    """The classes of a module, and how many lines each has."""
    nodes = ast.walk(ast.parse(path.read_text()))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in classes]


def longest_class(path: Path) -> int:
    return max((lines for _, lines in classes_in(path)), default=0)


def test_files_and_classes_have_a_size_that_can_be_read() -> None:
    long = {name_of(path) for path in MODULES if length_of(path) > MOST_LINES or longest_class(path) > MOST_CLASS_LINES}
    assert not long


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_is_no_larger_than_its_map_and_the_map_names_every_room(package: Path) -> None:
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    assert len(modules) <= (MOST_MODULES_AT_ROOT if package.name == "topics" else MOST_MODULES)
    doc = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert doc, "a package says what it is responsible for"
    assert {room for room in modules | rooms if room not in doc} == set()


def test_a_test_file_has_one_theme() -> None:
    """As far as its length shows."""
    assert {name_of(path): length_of(path) for path in TESTS if length_of(path) > MOST_TEST_LINES} == {}


def test_the_readme_is_for_the_first_minute() -> None:
    assert length_of(ROOT / "README.md") <= MOST_README_LINES


# -- names -------------------------------------------------------------------------------------------------------------

BOTH_SIDES_OF_THE_WIRE = {
    "ApiError",
    "ConsumerState",
    "GroupState",
    "Job",
    "Record",
    "RouterState",
    "ScheduleError",
    "ScheduleState",
    "Tombstone",
    "TopicConfig",
    "TopicState",
    "TopicSummary",
    "WatchedTopic",
}
"""The client's names of what the server calls the same; the client imports nothing of the server."""

NOUNS_IN_ING = {
    "BucketCeiling",
    "Finding",
    "Keyring",
    "SeqCeiling",
    "Setting",
    "bucket_ceiling",
    "forwarding",
    "routing",
    "seq_ceiling",
}
"""What ends like a gerund and is a noun of the field."""

ERRORS_IN_ING = {"ObjectMissing"}
"""Errors that are named by what is wrong."""


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for name, _ in classes_in(path):
            places.setdefault(name, []).append(name_of(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in BOTH_SIDES_OF_THE_WIRE} == {}
    for name in BOTH_SIDES_OF_THE_WIRE:
        assert sum(place.startswith("topics/client/") for place in twice.get(name, [])) == 1, f"{name} is no exception"
        assert len(twice[name]) == 2


def test_classes_and_modules_are_named_by_nouns() -> None:
    modules = {path.stem for path in MODULES} | {package.name for package in PACKAGES}
    names = modules | {name for path in MODULES for name, _ in classes_in(path)}
    assert {name for name in names if name.endswith("ing")} == NOUNS_IN_ING | ERRORS_IN_ING
