"""What tests leave on the disk: nothing if they pass, and no large files if they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.given_back import LARGE_BYTES

pytest_plugins = ["pytester"]

CONTENT = f"""
import pytest

def fill(root):
    (root / "data").mkdir()
    (root / "log").write_text("what went wrong")
    with (root / "data" / "large").open("wb") as file:
        file.truncate({LARGE_BYTES} + 1)
    return root

@pytest.fixture(scope="session")
def of_all(tmp_path_factory):
    root = fill(tmp_path_factory.mktemp("session"))
    yield root
    assert (root / "data" / "large").exists(), "in use until its end"

@pytest.fixture(scope="module")
def of_module(tmp_path_factory, request):
    root = fill(tmp_path_factory.mktemp("module"))
    request.getfixturevalue("of_all")
    yield root
    assert (root / "data" / "large").exists(), "in use until its end"
"""

USES = """
def test_uses_all(of_all, of_module, tmp_path):
    assert of_all.parent == of_module.parent
    assert (of_all / "data" / "large").exists()
    assert (of_module / "data" / "large").exists()
    (tmp_path / "log").write_text("x")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    assert RIGHT
"""

LOOKS = """
def test_looks_at_what_is_left(of_all):
    assert (of_all / "data" / "large").exists()
    assert [path.name for path in sorted(of_all.parent.glob("module*[0-9]"))] == LEFT
"""


def run(pytester: pytest.Pytester, *, right: bool, left: list[str]) -> tuple[pytest.RunResult, list[str]]:
    """Run two files, of which the first passes if `right`; what is left on the disk."""
    pytester.makeconftest(CONTENT)
    first, second = USES.replace("RIGHT", str(right)), LOOKS.replace("LEFT", repr(left))
    pytester.makepyfile(test_a=first, test_b=second)
    root = pytester.path / "base"
    result = pytester.runpytest_inprocess(
        "-p", "tests.given_back", "-o", "tmp_path_retention_policy=failed", f"--basetemp={root}"
    )
    return result, sorted(str(path.relative_to(root)) for path in files_in(root))


def files_in(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


@pytest.mark.slow
def test_a_directory_is_removed_when_the_fixture_that_made_it_ends(pytester: pytest.Pytester) -> None:
    result, left = run(pytester, right=True, left=[])
    result.assert_outcomes(passed=2)
    assert left == []


@pytest.mark.slow
def test_of_a_test_that_fails_all_but_the_large_files_is_kept(pytester: pytest.Pytester) -> None:
    result, left = run(pytester, right=False, left=["module0"])
    result.assert_outcomes(passed=1, failed=1)
    assert left == ["module0/log", "session0/log", "test_uses_all0/log"]
