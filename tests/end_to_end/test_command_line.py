"""The command line as an operator meets it: help, versions, and starts that are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from topics import __version__
from topics.config import SETTINGS


def topics(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m topics` to its end with no settings in its environment but `environ`."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    return subprocess.run(
        [sys.executable, "-m", "topics", *arguments],
        cwd=cwd,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("-h",)])
def test_the_help_lists_every_setting_with_its_flag_variable_and_default(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = topics(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for setting in SETTINGS.values():
        flag = "" if setting.secret else f"{setting.flag}, "
        assert f"  {flag}{setting.variable}  [{setting.default or 'not set'}]" in done.stdout


def test_the_version(tmp_path: Path) -> None:
    assert __version__ in topics("--version", cwd=tmp_path).stdout


@pytest.mark.parametrize("command", [(), ("serve",)])
def test_a_refused_start_names_all_mistakes_exits_2_and_leaves_nothing_behind(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = topics(*command, "--port", "70000", cwd=tmp_path, TOPICS_RECOVERY="hope", TOPICS_PORT="x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--port=70000: must be an integer from 0 to 65535" in done.stderr
    assert "TOPICS_RECOVERY=hope: must be one of strict, salvage" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_bind_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    done = topics("--host", "0.0.0.0", cwd=tmp_path)
    assert done.returncode == 2
    assert "--host" in done.stderr or "TOPICS_HOST" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_malformed_api_keys_refuse_the_start_and_are_not_printed(tmp_path: Path) -> None:
    done = topics(cwd=tmp_path, TOPICS_API_KEYS="s3cr3t:everything")
    assert done.returncode == 2
    assert "TOPICS_API_KEYS" in done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr


def test_there_is_no_flag_for_a_secret(tmp_path: Path) -> None:
    done = topics("--api-keys", "s3cr3t", cwd=tmp_path)
    assert done.returncode == 2
    assert "s3cr3t" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("--no-such-flag", "1"), ("no-such-command",)])
def test_what_is_not_understood_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = topics(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "no-such" in done.stderr
