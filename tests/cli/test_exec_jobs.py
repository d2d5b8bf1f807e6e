"""A command for each job: what it is given, and what becomes of the job."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from tests.conformance.client import until
from topics.cli import exec_jobs
from topics.cli.exec_jobs import Command, CommandOutcome, CommandRunner, job_environment, result_of
from topics.client.results import Job
from topics.client.workers.held_jobs import Nack


def job(**fields: object) -> Job:
    facts = {"$seq": 7, "$ts": 1, "lease_id": "lease_1", "deadline": 2, "deliveries": 3, "data": {"to": "ann"}}
    return msgspec.json.decode(msgspec.json.encode(facts | {"topic": "mails"} | fields), type=Job)


# --- what a command is given ---


def test_the_environment_tells_of_the_job() -> None:
    made = job(**{"$tag": "t", "$node": "n", "meta": {"a-b": "1", "$Über": "ü\0x"}})
    assert job_environment(made, {"PATH": "/bin"}) == {
        "PATH": "/bin",
        "TOPICS_JOB_TOPIC": "mails",
        "TOPICS_JOB_SEQ": "7",
        "TOPICS_JOB_DELIVERIES": "3",
        "TOPICS_JOB_TAG": "t",
        "TOPICS_JOB_NODE": "n",
        "TOPICS_JOB_META_A_B": "1",
        "TOPICS_JOB_META___BER": os.fsdecode("üx".encode()),
    }


def test_what_a_job_does_not_have_is_not_left_over_from_another_one() -> None:
    found = job_environment(job(), {"TOPICS_JOB_TAG": "old", "TOPICS_JOB_META_A": "old"})
    assert sorted(found) == ["TOPICS_JOB_DELIVERIES", "TOPICS_JOB_SEQ", "TOPICS_JOB_TOPIC"]


def test_the_token_is_only_passed_on_when_asked_for() -> None:
    inherited = {"TOPICS_TOKEN": "s3cr3t", "TOPICS_URL": "http://x"}
    assert "TOPICS_TOKEN" not in job_environment(job(), inherited)
    assert job_environment(job(), inherited)["TOPICS_URL"] == "http://x"
    assert job_environment(job(), inherited, pass_token=True)["TOPICS_TOKEN"] == "s3cr3t"


@pytest.mark.parametrize(
    ("line", "shell", "problem"),
    [
        ("", False, "there is no command"),
        ("   ", True, "there is no command"),
        ("cat 'a", False, '"cat \'a": no closing quotation'),
        ("no-such-command-1 x", False, "'no-such-command-1' is no command that can be run"),
        ("/etc/passwd", False, "'/etc/passwd' is no command that can be run"),
        ("cat 'a b'", False, None),
        ("no-such-command-1 x", True, None),  # who knows what a shell makes of it
    ],
)
def test_what_can_never_be_run_is_known_before(line: str, shell: bool, problem: str | None) -> None:
    assert Command(line, shell).problem() == problem


def test_words_are_split_as_a_shell_splits_them() -> None:
    assert Command("a 'b c' d\\ e $HOME;", shell=False).words == ["a", "b c", "d e", "$HOME;"]


# --- what becomes of the job ---


def run(
    line: str, made: Job | None = None, *, shell: bool = True, timeout_s: float | None = None, output: int | None = None
) -> tuple[CommandRunner, CommandOutcome, int | None]:
    """Run a command for a job. Returns the runner, what it told, and in how many ms the job comes again: None if it is
    done."""
    told: list[CommandOutcome] = []
    runner = CommandRunner(
        Command(line, shell), environ=os.environ, report=told.append, timeout_s=timeout_s, output=output
    )
    try:
        anyio.run(runner, made or job())
        delay_ms = None
    except Nack as nack:
        delay_ms = nack.delay_ms
    (ended,) = told
    return runner, ended, delay_ms


def test_a_job_is_done_when_its_command_says_so_which_has_read_the_data(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as output:
        made = job(data=msgspec.Raw(b'{"a":  [1,\t2.50]}'))
        runner, ended, delay_ms = run("cat; echo $TOPICS_JOB_SEQ", made, output=output.fileno())
    assert (ended.outcome, ended.exit_code, ended.lost, delay_ms) == ("done", 0, False, None)
    assert (runner.done, runner.failed, runner.running) == (1, 0, 0)
    assert (tmp_path / "out").read_text() == '{"a":  [1,\t2.50]}\n7\n'


def test_one_that_fails_comes_again_later_each_time() -> None:
    runner, ended, delay_ms = run("exit 3", job(deliveries=1))
    assert (ended.outcome, ended.exit_code, runner.failed) == ("failed", 3, 1)
    _, _, later_ms = run("exit 3", job(deliveries=4))
    assert delay_ms is not None
    assert later_ms is not None
    assert 0 < delay_ms < later_ms


def test_a_command_that_does_not_read_a_large_job_has_done_it_all_the_same() -> None:
    _, ended, _ = run("exit 0", job(data="x" * 900_000))
    assert ended.outcome == "done"


def test_a_large_job_is_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as output:
        run("wc -c", job(data="x" * 900_000), output=output.fileno())
    assert int((tmp_path / "out").read_text()) == 900_003


def test_what_a_command_leaves_running_with_its_input_is_not_waited_for(tmp_path: Path) -> None:
    left = tmp_path / "left"
    _, ended, _ = run(f"exec 3<&0; sleep 60 <&3 & echo $! > {left}", job(data="x" * 900_000))
    assert ended.outcome == "done"
    assert alive(int(left.read_text()))
    os.kill(int(left.read_text()), signal.SIGKILL)


def test_one_that_is_out_of_time_is_ended_with_all_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    deaf = f"(trap '' TERM; echo > {child}.deaf; sleep 60) & echo $! > {child}"
    _, ended, delay_ms = run(f"{deaf}; while ! test -e {child}.deaf; do :; done; wait", timeout_s=1.5)
    assert (ended.outcome, ended.exit_code) == ("timeout", -signal.SIGTERM)
    assert delay_ms
    until(lambda: not alive(int(child.read_text())))


def test_a_job_is_done_even_if_nobody_hears_of_it() -> None:
    def deaf(_ended: CommandOutcome) -> None:
        raise BrokenPipeError

    runner = CommandRunner(Command("true", shell=False), environ=os.environ, report=deaf)
    anyio.run(runner, job())
    assert runner.done == 1
    assert isinstance(runner.unheard, BrokenPipeError)


@pytest.mark.parametrize(
    ("printed", "result"),
    [
        (b'  {"a":  [1, 2.50]}\n', b'{"a":  [1, 2.50]}'),
        (b"7\n", b"7"),
        (b"null\n", b"null"),
        (b"two words\n\n", b'"two words\\n"'),
        (b"NaN", b'"NaN"'),
        (b"1\n2\n", b'"1\\n2"'),
        (b"\xff", '"\ufffd"'.encode()),
        (b"[" * 100_000, b'"' + b"[" * 100_000 + b'"'),
        (b"", b"null"),
        (b"\n", b"null"),
    ],
)
def test_a_result_is_the_json_or_the_text_that_was_printed(printed: bytes, result: bytes) -> None:
    assert msgspec.json.encode(result_of(printed)) == result


def results_of(line: str) -> tuple[CommandRunner, object]:
    runner = CommandRunner(Command(line, shell=True), environ=os.environ, report=lambda _: None, results=True)
    return runner, anyio.run(runner, job())


def test_with_results_the_output_is_the_result_and_what_is_left_running_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    try:
        assert results_of(f"cat; sleep 1000 & echo $! >{pid}")[1] == msgspec.Raw(b'{"to":"ann"}')
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)
    assert results_of("true")[1] is None


def test_a_command_that_prints_too_much_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_jobs, "MAX_OUTPUT_BYTES", 4)
    assert results_of("printf 1234")[1] == msgspec.Raw(b"1234")
    with pytest.raises(Nack) as raised:
        results_of("printf 12345")
    assert raised.value.terms.error == "failed, exit code 0, more than 4 bytes of output"


@pytest.mark.parametrize("code", [126, 127])
def test_what_a_shell_cannot_run_is_no_failure_of_the_job(code: int) -> None:
    runner, ended, delay_ms = run(f"exit {code}")
    assert (ended.outcome, delay_ms, runner.failed) == ("not started", 0, 0)
    assert f"the shell found nothing that it can run (exit code {code})" in (runner.unstartable or "")


def test_neither_is_a_command_that_is_gone() -> None:
    runner, ended, delay_ms = run("/no/such/command", shell=False)
    assert (ended.outcome, ended.exit_code, delay_ms) == ("not started", None, 0)
    assert runner.unstartable == "'/no/such/command' cannot be run: No such file or directory"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_job_that_is_cancelled_is_killed_with_all_its_children(tmp_path: Path, backend: str) -> None:
    child = tmp_path / "child"
    told: list[CommandOutcome] = []
    command = Command(f"trap '' TERM; sleep 60 & echo $! > {child}.new; mv {child}.new {child}; wait", shell=True)
    runner = CommandRunner(command, environ=os.environ, report=told.append)

    async def cancelled() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner, job())
            await anyio.to_thread.run_sync(until, child.exists)
            tasks.cancel_scope.cancel()

    anyio.run(cancelled, backend=backend)
    assert [(ended.outcome, ended.exit_code) for ended in told] == [("killed", None)]
    assert runner.running == 0
    until(lambda: not alive(int(child.read_text())))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_so_is_one_that_is_cancelled_while_it_is_started(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command may have made children before the call that starts it comes back."""
    child = tmp_path / "child"
    command = Command(f"sleep 60 & echo $! > {child}.new; mv {child}.new {child}; wait", shell=True)
    runner = CommandRunner(command, environ=os.environ, report=lambda ended: None)
    start = anyio.open_process

    async def cancelled() -> None:
        async with anyio.create_task_group() as tasks:

            async def start_slowly(*args: Any, **kwargs: Any) -> Any:
                process = await start(*args, **kwargs)
                await anyio.to_thread.run_sync(until, child.exists)
                tasks.cancel_scope.cancel()
                await anyio.lowlevel.checkpoint()
                return process

            monkeypatch.setattr(anyio, "open_process", start_slowly)
            tasks.start_soon(runner, job())

    anyio.run(cancelled, backend=backend)
    until(lambda: not alive(int(child.read_text())))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
