"""What is taken of hypercorn, h11, h2 and hpack beyond their public interfaces is listed, and is as it was."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "design" / "hypercorn.md"
CONNECTIONS = ROOT / "topics" / "http" / "connections"
SOURCES = sorted((CONNECTIONS / "protocols").glob("*.py"))

DIGESTS = {
    "h11._readers": "6b8472a4e454",
    "h11._connection": "93d61155fea4",
    "h11._receivebuffer": "c6bb29b1db0d",
    "hypercorn.protocol.h11": "5d2cfe635578",
    "hypercorn.protocol.h2": "4023f69abd22",
    "hypercorn.protocol.ws_stream": "5eb34e4ac40b",
    "hypercorn.trio.tcp_server": "fbec50b5df48",
    "h2.frame_buffer": "37febf771e38",
    "hpack.hpack": "4ab14aab1a85",
}
"""The first 12 digits of the SHA-256 of each module whose private members are used."""


def table() -> dict[str, set[str]]:
    """By module of a library, the members that the page lists."""
    rows: dict[str, set[str]] = {}
    for module, members in re.findall(r"^\| `([a-z0-9_.]+)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE):
        rows.setdefault(module, set()).update(re.findall(r"`(\w+)`", members))
    return rows


def source_of(module: ModuleType) -> str:
    return inspect.getsource(module)


def defined_here(trees: list[ast.Module]) -> set[str]:
    """Names of functions and attributes that are ours, but for overridden ones."""
    theirs = {member for members in table().values() for member in members}
    names: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return names - theirs


def test_every_private_member_of_a_library_that_is_used_is_on_the_page() -> None:
    trees = [ast.parse(path.read_text()) for path in SOURCES]
    used = {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr)
    }
    listed = {member for members in table().values() for member in members}
    assert used - defined_here(trees) <= listed
    overridden = {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert listed <= used | overridden, "the page lists what is not used any more"


@pytest.mark.parametrize(("module", "members"), table().items())
def test_every_member_on_the_page_is_in_its_library(module: str, members: set[str]) -> None:
    source = source_of(importlib.import_module(module))
    assert {member for member in members if not re.search(rf"\b{member}\b", source)} == set()


@pytest.mark.parametrize("module", table())
def test_the_libraries_are_those_that_the_subclasses_were_written_for(module: str) -> None:
    digest = hashlib.sha256(source_of(importlib.import_module(module)).encode()).hexdigest()[:12]
    assert DIGESTS.get(module) == digest, f"{module} has changed: read docs/design/hypercorn.md"
