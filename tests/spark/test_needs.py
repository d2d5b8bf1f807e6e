"""What is missing is said in one sentence."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from topics.spark import needs


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The packages that seem to be there."""
    there = {"pyspark": "4.3.0", "pyarrow": "26.0.1"}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(needs, "version", version)
    return there


def test_what_the_extra_installs_is_enough(installed: dict[str, str]) -> None:
    needs.check_packages()


@pytest.mark.parametrize(
    ("package", "found", "said"),
    [
        (
            "pyspark",
            None,
            "topics.spark needs pyspark 4.3, which is not installed: pip install '.[spark]' in the checkout",
        ),
        (
            "pyspark",
            "3.5.1",
            "topics.spark needs pyspark 4.3, but 3.5.1 is installed: pip install '.[spark]' in the checkout",
        ),
        (
            "pyspark",
            "4.4.0",
            "topics.spark needs pyspark 4.3, but 4.4.0 is installed: pip install '.[spark]' in the checkout",
        ),
        ("pyarrow", "17.0.0", "topics.spark needs pyarrow 18.0 or later, but 17.0.0 is installed: pip install"),
    ],
)
def test_a_package_that_is_missing_or_another_one_is_named(
    installed: dict[str, str], package: str, found: str | None, said: str
) -> None:
    if found is None:
        del installed[package]
    else:
        installed[package] = found
    with pytest.raises(needs.MissingRequirement) as failure:
        needs.check_packages()
    assert str(failure.value).startswith(said)


def java_that_says(home: Path, text: str) -> None:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)


def test_the_java_of_java_home_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java_that_says(tmp_path / "new", 'openjdk version "21.0.2" 2024-01-16')
    java_that_says(tmp_path / "old", 'java version "1.8.0_392"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    needs.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(
        needs.MissingRequirement, match=r"Spark needs Java 17 or later, and .*/old/bin/java is of version 8"
    ):
        needs.check_java()


def test_without_a_java_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        needs.MissingRequirement, match="Spark needs Java 17 or later, and there is neither a `java` in PATH"
    ):
        needs.check_java()
