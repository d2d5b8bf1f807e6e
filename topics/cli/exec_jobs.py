"""Commands as handlers of jobs, for `topics queue work --exec`.

Responsible for the environment, standard input, process group, time limit and exit code of a command, and for when the
worker stops. `topics.client.workers.worker` claims, acks, nacks and extends; `topics.cli.queue_commands` has the
options and prints the results.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import IO, Final, Literal

import anyio
import msgspec
from anyio.abc import ByteSendStream, Process

from topics.client import calls, group_calls
from topics.client.concurrent import AsyncClient
from topics.client.errors import TopicsError
from topics.client.results import Job, QueueCounts
from topics.client.workers.held_jobs import Backoff, Nack
from topics.client.workers.worker import AsyncWorker

TERM_GRACE_S: Final = 5.0
"""How long a command that has exceeded its time has between SIGTERM and SIGKILL, in seconds."""

LOOK_S: Final = 0.25
"""How often a worker with `once` asks whether a job is ready, while no command runs, in seconds."""

NOT_RUNNABLE: Final = (126, 127)
"""The exit codes of a shell for a command that cannot be run, or does not exist."""

MAX_OUTPUT_BYTES: Final = 8 << 20
"""Of what a command prints as its result. A daemon takes `TOPICS_MAX_RECORD_BYTES` of one, 1 MiB by default."""

ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

JOB_PREFIX: Final = "TOPICS_JOB_"
TOKEN: Final = "TOPICS_TOKEN"

_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9_]")

Outcome = Literal["done", "failed", "timeout", "killed", "not started"]


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The end of a job's command. Reported before the job is acked or nacked."""

    topic: str
    seq: int
    deliveries: int
    outcome: Outcome
    exit_code: int | None
    """None if there was no process, or nobody waited for its end; negative: the number of the signal that ended it."""
    duration_ms: int
    lost: bool
    """The lease ended before the command did: another worker may have the job too."""


@dataclass(frozen=True, slots=True)
class Command:
    """The command that runs for each job: a line that is split into words, or a line for the shell."""

    line: str
    shell: bool

    @property
    def words(self) -> list[str]:
        """The arguments of the process. Raises ValueError if a quote is not closed."""
        return ["/bin/sh", "-c", self.line] if self.shell else shlex.split(self.line)

    def problem(self) -> str | None:
        """Why the command can never be run, as far as that can be seen without running it; None if nothing is seen."""
        try:
            words = self.words
        except ValueError as error:
            return f"{self.line!r}: {str(error).lower()}"
        if not words or not self.line.strip():
            return "there is no command"
        if shutil.which(words[0]) is None:
            return f"{words[0]!r} is no command that can be run"
        return None


def job_environment(job: Job, inherited: Mapping[str, str], *, pass_token: bool = False) -> dict[str, str]:
    """The environment of a job's command: the inherited one, with the variables `TOPICS_JOB_*`.

    Their names end with TOPIC, SEQ, TAG, NODE and DELIVERIES, and META_ with the name of each entry of meta in
    capitals, in which `_` replaces everything but letters, digits and `_`; of entries with the same name the last one
    counts. A variable without a value is not set, also if this worker runs as the command of another job. Values are
    UTF-8 in every locale; NUL, which an environment cannot hold, is left out. `TOPICS_TOKEN` is removed unless
    `pass_token`.
    """
    environ = {name: value for name, value in inherited.items() if not name.startswith(JOB_PREFIX)}
    if not pass_token:
        environ.pop(TOKEN, None)
    facts = {"TOPIC": job.topic, "SEQ": str(job.seq), "TAG": job.tag, "NODE": job.node}
    facts["DELIVERIES"] = str(job.deliveries)
    for name, value in job.meta.items():
        facts["META_" + _NOT_IN_A_NAME.sub("_", name.upper())] = value
    for name, said in facts.items():
        if said is not None:
            environ[JOB_PREFIX + name] = os.fsdecode(said.replace("\0", "").encode(errors="replace"))
    return environ


def job_input(job: Job, *, raw: bool) -> bytes:
    """The standard input of a job's command: the data as the JSON that was appended, and a newline. With `raw` data
    that is a string is its text instead."""
    data = job.data if raw else None
    text = data.encode() if isinstance(data, str) else bytes(job.raw)
    return text + b"\n"


def result_of(output: bytes) -> object:
    """The result of a job whose command has printed this: the same JSON if it is valid JSON, otherwise its text without
    the last newline; None if it is empty."""
    try:
        text = output.decode().strip()
        if text:
            msgspec.json.decode(text)
        return msgspec.Raw(text.encode()) if text else None
    except (ValueError, RecursionError):  # also msgspec.DecodeError
        return output.decode(errors="replace").removesuffix("\n")


class CommandRunner:
    """Runs the command for each job it is called with: the handler of a worker.

    The job's data is the command's standard input (`job_input`). Its output goes where ours goes, or to `output` (a
    file descriptor). Exit code 0 is success. After any other the job is nacked, with a delay that grows with its
    deliveries; after a command that could not be started, with none. With `results` the output becomes the result of
    the job (`result_of`); it goes to a temporary file, so that nobody waits for processes that the command has left
    running. A command that prints more than `MAX_OUTPUT_BYTES` has failed.

    Each command has a session and a process group of its own, so that Ctrl-C on the terminal does not reach it. When it
    exceeds `timeout_s`, its group gets SIGTERM, and SIGKILL `TERM_GRACE_S` later; when its call is cancelled, SIGKILL
    at once. Processes that a command leaves running when it ends by itself are left alone.
    """

    def __init__(
        self,
        command: Command,
        *,
        environ: Mapping[str, str],
        report: Callable[[CommandOutcome], None],
        timeout_s: float | None = None,
        pass_token: bool = False,
        output: int | None = None,
        raw: bool = False,
        results: bool = False,
    ) -> None:
        self._command = command
        self._environ = environ
        self._report = report
        self._timeout_s = timeout_s
        self._pass_token = pass_token
        self._output = output
        self._raw = raw
        self._results = results
        self._backoff = Backoff()
        self.running = 0
        self.done = 0
        self.failed = 0
        """Commands that exceeded their time count; those that were killed or not started do not."""
        self.unstartable: str | None = None
        """Why the command could not be run, once that has happened."""
        self.unheard: OSError | None = None
        """Why the end of a command could not be reported. The job is acked all the same if it is done."""

    async def __call__(self, job: Job) -> object:
        """Run the command for one job, and return its result. Raises Nack if the job is not done. If it is cancelled,
        the command is killed."""
        with tempfile.TemporaryFile() if self._results else nullcontext() as printed:
            await self._run_reported(job, printed)
            return result_of(_read(printed)) if printed is not None else None

    async def _run_reported(self, job: Job, printed: IO[bytes] | None) -> None:
        began = time.monotonic()
        outcome: Outcome = "killed"
        code: int | None = None
        self.running += 1
        too_long = False
        try:
            outcome, code = await self._run(job, self._output if printed is None else printed.fileno())
            too_long = printed is not None and os.fstat(printed.fileno()).st_size > MAX_OUTPUT_BYTES
            if outcome == "done" and too_long:
                outcome = "failed"
        finally:
            self.running -= 1
            self.done += outcome == "done"
            self.failed += outcome in ("failed", "timeout")
            took_ms = round((time.monotonic() - began) * 1000)
            try:
                self._report(CommandOutcome(job.topic, job.seq, job.deliveries, outcome, code, took_ms, job.lost))
            except OSError as error:
                self.unheard = error
        if outcome != "done":
            if outcome == "not started":
                raise Nack(0, count=False)
            why = outcome if code is None else f"{outcome}, exit code {code}"
            if too_long:
                why += f", more than {MAX_OUTPUT_BYTES} bytes of output"
            raise Nack(self._backoff(job.deliveries), error=why)

    async def _run(self, job: Job, output: int | None) -> tuple[Outcome, int | None]:
        try:
            with anyio.CancelScope(shield=True):  # a start that is cut off would kill the first process alone
                process = await anyio.open_process(
                    self._command.words,
                    stdout=output,
                    stderr=None,
                    env=job_environment(job, self._environ, pass_token=self._pass_token),
                    start_new_session=True,
                )
        except OSError as error:
            self.unstartable = f"{self._command.words[0]!r} cannot be run: {error.strerror or error}"
            return "not started", None
        try:
            in_time = await self._wait(process, job_input(job, raw=self._raw))
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    _signal_group(process, signal.SIGKILL)
                    await process.wait()
                await process.aclose()
        code = process.returncode
        if not in_time:
            return "timeout", code
        if self._command.shell and code in NOT_RUNNABLE:
            self.unstartable = f"the shell found nothing that it can run (exit code {code}): {self._command.line!r}"
            return "not started", code
        return ("done" if code == 0 else "failed"), code

    async def _wait(self, process: Process, data: bytes) -> bool:
        """Write the command's input and wait for its end. Return True if it ended in time."""
        assert process.stdin is not None
        with anyio.move_on_after(self._timeout_s):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_feed, process.stdin, data)
                await process.wait()
                tasks.cancel_scope.cancel()  # somebody it has left behind may hold its input, and not read it
        if process.returncode is not None:
            return True
        _signal_group(process, signal.SIGTERM)
        with anyio.move_on_after(TERM_GRACE_S):
            await process.wait()
        _signal_group(process, signal.SIGKILL)  # also for those of the group that the first of it has left behind
        return False


def _read(printed: IO[bytes]) -> bytes:
    printed.seek(0)
    return printed.read(MAX_OUTPUT_BYTES)


async def _feed(stdin: ByteSendStream, data: bytes) -> None:
    """Write a job's data. A command need not read it."""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        await stdin.send(data)
        await stdin.aclose()


def _signal_group(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


# ----------------------------------------------------------------- the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """How a CommandWorker works."""

    node: str | None
    """Who holds the jobs; None: a name of its own."""
    concurrency: int
    """How many jobs run at the same time, 1 to 1000."""
    lease_ms: int | None
    """None: as the topic says."""
    max_jobs: int | None
    """Stop after so many jobs; None: no limit."""
    once: bool
    """Stop when no job is ready."""
    group: str | None = None
    """The group of a log; None: the topic is a queue."""


class CommandWorker:
    """Runs a command for every job of a queue, until there is a reason to stop.

    It stops when `max_jobs` are done, when no job is ready (`once`), when the command cannot be run, when the end of a
    job cannot be reported, or by signals. The first SIGINT, SIGTERM or SIGHUP stops the claiming and lets the commands
    that run finish, however long that takes; the second kills them and gives their jobs back; the third waits for
    nothing. A signal that is ignored when `run` begins (`nohup`) stays ignored.
    """

    def __init__(
        self,
        client: AsyncClient,
        topic: str,
        runner: CommandRunner,
        options: WorkOptions,
        *,
        say: Callable[[str], None],
    ) -> None:
        """`say` prints a line for the user."""
        self._client = client
        self._topic = topic
        self._runner = runner
        self._options = options
        self._say = say
        self._signals = 0
        self._unreachable: TopicsError | None = None
        """Why the daemon cannot be asked whether a job is ready, with `once`."""
        self._worker = AsyncWorker(
            client,
            topic,
            self._handle,
            node=options.node,
            group=options.group,
            concurrency=options.concurrency,
            lease_ms=options.lease_ms,
            max_jobs=options.max_jobs,
            drain_s=math.inf,
            on_error=_surprised,
        )

    async def run(self) -> int:
        """Work until there is a reason to stop. Returns how many signals came.

        Raises OSError if the end of a job could not be reported, and what `AsyncWorker.run` raises. With `once` a
        daemon that cannot be asked raises a TopicsError: at the beginning at once, later when the client has repeated
        the question for as long as its Retry says. If it is cancelled, the commands are killed and their jobs given
        back.
        """
        if self._options.once:
            # A worker waits for a daemon that is away; one that is to end with the queue must not begin with that.
            await self._counts(once=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._obey_signals, tasks.cancel_scope)
            if self._options.once:
                tasks.start_soon(self._stop_when_none_is_ready)
            await self._worker.run()
            tasks.cancel_scope.cancel()
        if self._runner.unheard is not None:
            raise self._runner.unheard
        if self._unreachable is not None:
            raise self._unreachable
        return self._signals

    async def _handle(self, job: Job) -> object:
        runner = self._runner
        try:
            return await runner(job)
        finally:
            if runner.unstartable is not None or runner.unheard is not None:
                self._worker.stop()

    async def _obey_signals(self, everything: anyio.CancelScope) -> None:
        obeyed = [number for number in ENDINGS if signal.getsignal(number) != signal.SIG_IGN]
        with anyio.open_signal_receiver(*obeyed) as came:
            async for _ in came:
                self._signals += 1
                if self._signals == 1:
                    self._worker.stop()
                    running = self._runner.running
                    waiting = f"ending: waiting for {running} running, a second time kills them"
                    with suppress(OSError):  # a terminal that has gone says so by a signal
                        self._say(waiting if running else "ending")
                elif self._signals == 2:
                    self._worker.stop(0)
                else:
                    everything.cancel()

    async def _counts(self, *, once: bool) -> QueueCounts | None:
        """Return how many jobs there are; None if the topic is no queue. `once`: without repeats."""
        make, group = self._client.once if once else self._client.run, self._options.group
        if group is not None:
            return (await make(group_calls.group(self._topic, group))).queue
        return (await make(calls.state(self._topic, touch=False))).queue

    async def _stop_when_none_is_ready(self) -> None:
        while True:
            await anyio.sleep(LOOK_S)
            if self._runner.running:
                continue
            try:
                jobs = await self._counts(once=False)
            except TopicsError as error:  # after all the repeats of the client
                self._unreachable = error
                self._worker.stop()
                return
            if jobs is not None and jobs.ready == 0 and not self._runner.running:
                self._worker.stop()
                return


def _surprised(_job: Job, error: Exception) -> None:
    """Raise an error that is none of a job: a runner raises nothing but Nack, so this is a defect, which must not be
    repeated with every job."""
    raise error
