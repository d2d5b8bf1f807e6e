"""Gives back the room that tests take on the disk, as soon as they need it no more (a plugin of pytest).

A data directory has 64 MiB preallocated for each shard, so those of some dozens of daemons fill a disk. pytest removes
the `tmp_path` of a test that has passed. This plugin also removes the directories that other fixtures have asked
`tmp_path_factory` for, when the fixture ends. If a test has failed meanwhile, it removes only large files: the logs are
left for diagnosis.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

LARGE_BYTES: Final = 1 << 20
"""Larger files of a test that has failed are removed: files of the log, which are mostly empty, and test data."""

_BEING_MADE: Final[list[list[Path]]] = []
"""The directories that each fixture which is being set up has made; the innermost is the last."""


def pytest_configure(config: pytest.Config) -> None:
    """Note every directory that a fixture makes."""
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    mktemp = pytest.TempPathFactory.mktemp

    def noted(factory: pytest.TempPathFactory, basename: str, numbered: bool = True) -> Path:
        path = mktemp(factory, basename, numbered)
        if _BEING_MADE:
            _BEING_MADE[-1].append(path)
        return path

    patch.setattr(pytest.TempPathFactory, "mktemp", noted)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Let a fixture give back its directories at its end."""
    session, made = request.session, list[Path]()
    failed_before = session.testsfailed

    def give_back() -> None:
        for path in made:
            if session.testsfailed == failed_before:
                shutil.rmtree(path, ignore_errors=True)
            else:
                remove_large_files(path)

    fixturedef.addfinalizer(give_back)  # finalizers run in reverse order: this one when the fixture has ended
    _BEING_MADE.append(made)
    try:
        return (yield)
    finally:
        _BEING_MADE.pop()


def remove_large_files(root: Path) -> None:
    """Remove the large files below a directory."""
    for where, _, names in os.walk(root):
        for path in (Path(where, name) for name in names):
            try:
                if path.lstat().st_size > LARGE_BYTES:
                    path.unlink()
            except OSError:  # nothing depends on it
                continue
