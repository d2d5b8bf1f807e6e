"""The code of an earlier commit, for a daemon that is measured in turn with that of the checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import earlier
from benchmarks.bench import Bench

COMMIT = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "one")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose `topics` had another line in its first commit."""
    directory = tmp_path / "repository"
    (directory / "topics").mkdir(parents=True)
    for text in ("old", "new"):
        (directory / "topics" / "__init__.py").write_text(text)
        for words in (("init", "-q"), ("add", "-A"), COMMIT):
            subprocess.run(["git", "-C", str(directory), *words], check=True, capture_output=True)
    monkeypatch.setattr(earlier, "REPOSITORY", directory)
    return directory


def test_the_code_of_a_commit_is_as_it_was(repository: Path, tmp_path: Path) -> None:
    assert earlier.extract("HEAD^", tmp_path / "code")
    assert (tmp_path / "code" / "topics" / "__init__.py").read_text() == "old"
    assert (repository / "topics" / "__init__.py").read_text() == "new"


def test_without_the_commit_there_is_no_daemon(repository: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path, Console(quiet=True), quick=True)
    with earlier.earlier_daemon(bench, "0" * 40) as daemon:
        assert daemon is None
    assert list(tmp_path.iterdir()) == [repository]
