"""The command itself: what is loaded, where shared options may stand, and how a command line ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.canned import CannedDaemon, InProcess
from tests.cli.command_line import CommandLine
from topics.cli import app, failures
from topics.cli.app import cli, run
from topics.config import SETTINGS

NO_TOPICS: dict[str, Any] = {"topics": []}
SECRET = "tok-4711-nobody-must-see"


@pytest.fixture
def a_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Puts a function in the place of `topics ls`."""

    def replace(act: Callable[[], object]) -> None:
        command = click.Command("ls", callback=act)
        monkeypatch.setattr(app.LazyGroup, "get_command", lambda *_: command)

    return replace


# ----------------------------------------------------------------- what is loaded


def test_ls_loads_neither_what_draws_nor_what_serves(canned: CannedDaemon) -> None:
    canned.on("GET", "/v0/topics", NO_TOPICS)
    script = (
        "import sys; from topics.cli.app import run; code = run(['ls']);"
        "print(code, sorted({'rich', 'trio', 'hypercorn', 'quart', 'topics.storage', 'topics.config', 'topics.daemon',"
        " 'topics.cli.serve', 'topics.client.producers.producer', 'structlog'} & set(sys.modules)))"
    )
    environ = CommandLine(TOPICS_URL=canned.url).environ
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_what_was_kept_from_loading_can_be_loaded_afterwards(canned: CannedDaemon) -> None:
    canned.on("GET", "/v0/topics", NO_TOPICS)
    script = "from topics.cli.app import run; run(['ls']); import trio, rich; trio.run(trio.sleep, 0)"
    environ = CommandLine(TOPICS_URL=canned.url).environ
    subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, check=True)


def leaves(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its whole name."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
        if isinstance(command, click.Group):
            for below, found in leaves(command, context):
                yield f"{name} {below}", found
        else:
            yield name, command


def test_every_command_says_what_it_does_and_shows_an_example() -> None:
    for name, command in leaves(cli, click.Context(cli, info_name="topics")):
        assert command.get_short_help_str(), name
        if name not in {"guide", "help"}:
            assert f"  topics {name}" in (command.epilog or ""), name


def test_no_setting_of_serve_has_the_name_of_an_option_of_the_command() -> None:
    own = {name for param in cli.params for name in param.opts}
    assert not own & {setting.flag for setting in SETTINGS.values()}


# ----------------------------------------------------------------- what is named


def test_without_arguments_the_command_shows_its_help_and_serves_nothing(tmp_path: Path) -> None:
    """As a console script, which calls `main` without arguments; in a directory where it would leave its data."""
    script = "import sys; sys.argv = ['topics']; from topics.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=CommandLine().environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "Usage: topics [OPTIONS] COMMAND" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [("apend t x", "append"), ("help apend", "append"), ("queue wrk q", "work"), ("router craete", "create")],
)
def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(
    here: InProcess, line: str, suggestion: str
) -> None:
    ended = here(*line.split())
    assert ended.code == 2
    assert f"Did you mean '{suggestion}'?" in ended.err


# ----------------------------------------------------------------- options


@pytest.mark.parametrize("line", [["--json", "ls"], ["ls", "--json"]])
def test_json_is_accepted_before_and_after_the_command(here: InProcess, line: list[str]) -> None:
    here.daemon.on("GET", "/v0/topics", NO_TOPICS)
    assert here(*line) == (0, '{"topics":[]}\n', "")


def test_an_option_after_the_command_wins_over_the_same_before_it(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/routers", {"routers": []})
    for line in (
        ["--url", "http://127.0.0.1:1", "router", "ls", "--url", here.daemon.url],
        ["router", "--url", here.daemon.url, "ls"],
        [f"--url={here.daemon.url}", "router", "ls"],
    ):
        assert here(*line).code == 0


@pytest.mark.parametrize(
    "url", ["", "localhost:4000", "ftp://x", "http://", "http://x:y", "http://u:pass@x", "http://x/?token=pass", "x y"]
)
def test_a_url_that_is_none_is_refused_and_not_repeated(here: InProcess, url: str) -> None:
    ended = here("ls", "--url", url)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("topics: --url must ")
    assert "pass@" not in ended.err
    assert "token=" not in ended.err


def test_help_shows_the_help_of_a_command(here: InProcess) -> None:
    assert here("help", "router", "create").out == here("router", "create", "--help").out
    assert here("help", "nonsense").code == 2
    assert here("help", "ls", "more").code == 2


# ----------------------------------------------------------------- keys


def test_a_key_comes_from_the_environment_or_from_a_file_which_wins(
    here: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.daemon.on("GET", "/v0/topics", NO_TOPICS)
    (tmp_path / "key").write_text("of-the-file\n")
    here("ls")
    monkeypatch.setenv("TOPICS_TOKEN", "of-the-environment")
    here("ls")
    here("ls", "--token-file", str(tmp_path / "key"))
    here("--token-file", str(tmp_path / "key"), "ls")
    tokens = [asked.token for asked in here.daemon.asked]
    assert tokens == [None, "Bearer of-the-environment", "Bearer of-the-file", "Bearer of-the-file"]


@pytest.mark.parametrize("content", [f"{SECRET}\nsecond", f"{SECRET} x", f"{SECRET}\x1b", f"{SECRET}ü", SECRET * 1000])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(
    here: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "key").write_text(content)
    of_file = here("ls", "--token-file", str(tmp_path / "key"))
    monkeypatch.setenv("TOPICS_TOKEN", content)
    for ended in (of_file, here("ls")):
        assert ended.code == 2
        assert "does not hold one key" in ended.err
        assert SECRET not in ended.err
    assert here.daemon.asked == []


def test_a_file_without_a_key_is_refused(here: InProcess, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    assert here("ls", "--token-file", str(tmp_path / "empty")).code == 2
    ended = here("ls", "--token-file", str(tmp_path / "none"))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "No such file" in ended.err


# ----------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 1), (401, 4), (403, 4), (404, 3), (405, 1), (409, 5), (413, 1), (422, 5), (429, 6), (500, 1), (503, 6)],
)
def test_a_refusal_is_one_line_and_has_its_exit_code(here: InProcess, status: int, code: int) -> None:
    here.daemon.refuse("GET", "/v0/topics", status, "some_code", "something\nis\x1b[31m wrong")
    ended = here("ls")
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("topics: something\\x0ais\\x1b[31m wrong")
    assert ended.err.count("\n") == 1


def test_a_refusal_says_what_to_do_about_it(here: InProcess) -> None:
    here.daemon.on(
        *("GET", "/v0/topics", {"error": {"code": "throttled", "message": "too much", "detail": {}}}),
        status=429,
        Retry_After="7",
    )
    assert here("ls").err == "topics: too much (try again in 7 s)\n"
    here.daemon.refuse("PUT", "/v0/routers/r", 409, "router_cycle", "a cycle", cycle=["a", "b", "a"])
    assert here("router", "create", "r", "a", "b").err == "topics: a cycle: a -> b -> a\n"
    here.daemon.refuse("DELETE", "/v0/topics/t", 401, "unauthorized", "no key")
    assert "TOPICS_TOKEN or --token-file" in here("rm", "t").err


def test_a_daemon_that_is_not_there_is_told_at_once_with_its_address(here: InProcess) -> None:
    assert here("ls", "--url", "http://127.0.0.1:1") == (6, "", "topics: http://127.0.0.1:1: Connection refused\n")


def test_a_daemon_that_does_not_answer_is_waited_for_as_long_as_was_said(here: InProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ended = here("--timeout", "50ms", "ls", "--url", url)
    assert (ended.code, ended.err) == (6, f"topics: {url}: timed out\n")
    assert here("ls", "--timeout", "0").code == 2


def test_an_answer_that_is_none_is_a_failure_of_one_line(here: InProcess) -> None:
    here.daemon.on("GET", "/v0/topics", b"<html>hello</html>", Content_Type="text/html")
    ended = here("ls")
    assert (ended.code, ended.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (failures.CommandFailure("no luck"), 1, "topics: no luck\n"),
        (failures.CommandFailure("gone", 3), 3, "topics: gone\n"),
        (failures.UsageRefusal("not so"), 2, "topics: not so\n"),
        (click.UsageError("not so"), 2, "topics: not so\nTry 'topics ls --help'.\n"),
        (ExceptionGroup("", [ExceptionGroup("", [failures.CommandFailure("deep")])]), 1, "topics: deep\n"),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), 130, ""),
        (click.Abort(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (FileNotFoundError(2, "No such file", "/x\n"), 1, "topics: /x\\x0a: No such file\n"),
        (SystemExit(7), 7, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_what_a_command_raises_becomes_a_line_and_an_exit_code(
    a_command: Callable[[Callable[[], object]], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    def act() -> None:
        raise error

    a_command(act)
    assert run(["ls"]) == code
    assert capsys.readouterr() == ("", said)


def test_a_defect_is_told_with_its_place_and_without_a_traceback(
    a_command: Callable[[Callable[[], object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    a_command(lambda: next(iter(())))
    assert run(["ls"]) == 1
    assert capsys.readouterr().err.startswith("topics: unexpected StopIteration:  (test_app.py:")


def test_of_several_things_all_are_tried_and_the_first_failure_counts(here: InProcess) -> None:
    answer = {"topic": "t", "deleted": True, "routers_removed": []}
    here.daemon.refuse("DELETE", "/v0/topics/a", 409, "topic_not_empty", "it is not empty")
    here.daemon.refuse("DELETE", "/v0/topics/b", 403, "forbidden", "you may not delete b")
    here.daemon.on("DELETE", "/v0/topics/c", answer)
    ended = here("rm", "a", "b", "c")
    assert ended == (5, "c: deleted\n", "topics: a: it is not empty\ntopics: you may not delete b\n")
    ended = here("rm", "a", "b", "--url", "http://127.0.0.1:1")
    assert (ended.code, ended.err.count("\n")) == (6, 1)


# ----------------------------------------------------------------- signals and pipes


def test_a_reader_that_has_gone_ends_it_quietly(canned: CannedDaemon) -> None:
    canned.on("GET", "/v0/topics", NO_TOPICS)
    reader, writer = os.pipe()
    os.close(reader)
    process = CommandLine(TOPICS_URL=canned.url).start("ls", stdout=writer, stdin=subprocess.DEVNULL)
    os.close(writer)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (141, b"")


def test_a_full_disk_under_the_output_is_a_failure(canned: CannedDaemon) -> None:
    canned.on("GET", "/v0/topics", NO_TOPICS)
    with Path("/dev/full").open("wb") as full:
        process = CommandLine(TOPICS_URL=canned.url).start("ls", stdout=full, stdin=subprocess.DEVNULL)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"No space left" in err
    assert err.count(b"\n") == 1


def test_ctrl_c_ends_a_command_with_130_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        line = CommandLine(TOPICS_URL=f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = line.start("ls", stdin=subprocess.DEVNULL)
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(30)
            assert connection.recv(4) == b"GET "
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")
