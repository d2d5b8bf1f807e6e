"""`topics queue`: the jobs of a queue, claimed and settled one by one, or worked off by a command.

Responsible for options and output. How a job's command is run, and when that ends, is the business of
`topics.cli.exec_jobs`.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from topics.cli import job_commands
from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.failures import EXIT_FAILED, EXIT_INTERRUPTED, CommandFailure, tell
from topics.cli.output import Column, count, moment, print_json, print_line, print_ndjson, print_table
from topics.cli.values import Duration, JsonObject, Time, filter_json

if TYPE_CHECKING:
    from topics.cli.exec_jobs import Command as ExecCommand
    from topics.cli.exec_jobs import CommandOutcome, CommandRunner, WorkOptions
    from topics.client import Client, Job

_REDRIVE_POLL_S: Final = 0.2

_COMPLAINTS: Final = {
    "failed": "failed",
    "timeout": "took longer than --job-timeout",
    "killed": "was killed",
    "not started": "was not started",
}

topic_argument = click.argument("topic", shell_complete=complete_topics)
seqs_argument = click.argument("seqs", metavar="SEQ...", type=click.IntRange(min=1), nargs=-1, required=True)
node_option = click.option(
    "--node",
    metavar="NAME",
    default=platform.node,
    help="Holder of the jobs; use the same name for claim, ack, nack and extend.  [the host's name]",
)
leases_option = click.option(
    "--lease-id",
    "lease_ids",
    multiple=True,
    metavar="ID",
    help="Only if the job is held under this lease; one for each SEQ, in the same order.",
)
group_option = click.option(
    "--group", metavar="GROUP", help="TOPIC is a log, and the jobs are the records of this group (`topics group`)."
)


@click.group()
@client_options
def queue() -> None:
    """Claim jobs, ack or give them back, or run a command for each."""


# ----------------------------------------------------------------- looking


@queue.command("ls", epilog=examples("topics queue ls", "topics queue ls --prefix mails --json"))
@click.option("--prefix", default="", metavar="TEXT", help="Only queues whose names begin with this.")
@client_options
@click.pass_obj
def ls(options: CommandOptions, prefix: str) -> None:
    """List queues with counts of their jobs.

    The counts of ready, in-flight and delayed jobs, and of all that were ever dead-lettered. Each queue is one call.
    """
    with connect(options) as client:
        states = [state for name in _queues(client, prefix) if (state := _state(client, name)) is not None]
    if options.as_json:
        print_json([{"topic": state.topic, **_counts(state.queue)} for state in states])
        return
    columns = ("topic", "ready", "in flight", "delayed", "dead-lettered", "paused")
    print_table(
        [Column(title, right=title not in ("topic", "paused")) for title in columns],
        [
            (
                state.topic,
                *map(
                    count,
                    (state.queue.ready, state.queue.in_flight, state.queue.delayed, state.queue.dead_lettered),
                ),
                "yes" if state.queue.paused else "no",
            )
            for state in states
        ],
    )


def _counts(queue: Any) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(queue).items() if value is not None}


def _queues(client: Client, prefix: str) -> list[str]:
    return [topic.topic for topic in client.list_all(prefix=prefix) if topic.type == "queue"]


def _state(client: Client, name: str) -> Any:
    """The state of a queue, or None if it has just been deleted, and perhaps made again as something else."""
    from topics.client import NotFound  # noqa: PLC0415

    try:
        state = client.state(name, touch=False)
    except NotFound:
        return None
    return state if state.queue is not None else None


queue.add_command(job_commands.jobs)
queue.add_command(job_commands.retry)
queue.add_command(job_commands.cancel)


# ----------------------------------------------------------------- one call each


@queue.command(epilog=examples("topics queue claim mails --max 5 --wait 10s", "topics queue claim mails --json"))
@topic_argument
@node_option
@click.option("--max", "most", metavar="N", type=click.IntRange(min=1), default=1, help="Largest number of jobs.  [1]")
@click.option(
    "--lease",
    "--lease-ms",
    "lease_ms",
    metavar="TIME",
    type=Duration(),
    help="Length of the leases.  [lease_ms of the topic]",
)
@click.option(
    "--wait",
    "--wait-ms",
    "wait_ms",
    metavar="TIME",
    type=Duration(),
    default=0,
    help="How long to wait for the first job.  [0]",
)
@group_option
@client_options
@click.pass_obj
def claim(
    options: CommandOptions,
    topic: str,
    node: str,
    most: int,
    lease_ms: int | None,
    wait_ms: int,
    group: str | None,
) -> None:
    """Lease jobs.

    A job that is neither acked nor extended in time goes to another claimer. Getting no job is not a failure.
    """
    with connect(options) as client:
        claimed = client.claim(topic, node, max=most, lease_ms=lease_ms, wait_ms=wait_ms, group=group)
    if options.as_json:
        jobs = [_job_document(job) for job in claimed.claimed]
        answer: dict[str, Any] = {
            "topic": claimed.topic,
            "claimed": jobs,
            "count": claimed.count,
            "ready": claimed.ready,
        }
        if claimed.paused:
            answer["paused"] = True
        if claimed.wants_results:
            answer["wants_results"] = True
        print_json(answer)
        return
    titles = ("seq", "lease id", "until", "deliveries", "tag", "node", "data")
    print_table(
        [Column(title, right=title in ("seq", "deliveries")) for title in titles],
        [
            (
                str(job.seq),
                job.lease_id,
                moment(job.deadline),
                str(job.deliveries),
                job.tag or "",
                job.node or "",
                bytes(job.raw).decode(),
            )
            for job in claimed.claimed
        ],
    )
    paused = ", the queue is paused" if claimed.paused else ""
    tell(f"{count(claimed.count)} claimed, {count(claimed.ready)} more ready{paused}")


def _job_document(job: Job) -> dict[str, Any]:
    """A job as the interface shows it: without the fields that it does not have."""
    facts = {
        "$seq": job.seq,
        "lease_id": job.lease_id,
        "deadline": job.deadline,
        "$ts": job.ts,
        "$tag": job.tag,
        "$node": job.node,
        "deliveries": job.deliveries,
        "last_error": job.last_error,
        "data": job.raw,
        "meta": job.meta or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


@queue.command(
    epilog=examples(
        "topics queue ack mails 17 18",
        "topics queue ack mails 17 --lease-id lease_1e521f5a",
        "topics queue ack thumbnails 17 --result '{\"width\": 200}'",
    )
)
@topic_argument
@seqs_argument
@node_option
@leases_option
@click.option(
    "--result",
    "results",
    multiple=True,
    metavar="JSON",
    help="What became of the job, for the topic that `completed` names; one for each SEQ, in the same order.",
)
@group_option
@client_options
@click.pass_obj
def ack(
    options: CommandOptions,
    topic: str,
    seqs: tuple[int, ...],
    node: str,
    lease_ids: tuple[str, ...],
    results: tuple[str, ...],
    group: str | None,
) -> None:
    """Ack jobs, which deletes them. With --group it finishes the records for the group, and they stay in the log.

    Exit code 1 if a job was skipped, because NAME does not hold it (any more).
    """
    fences = _fences(seqs, lease_ids)
    found = _results(seqs, results)
    with connect(options) as client:
        answer = client.ack(topic, node, seqs, lease_ids=fences, results=found, group=group)
    _settled(options, answer, f"{count(answer.acked)} acked, {_left(answer)}")


@queue.command(epilog=examples("topics queue nack mails 17 --delay 30s"))
@topic_argument
@seqs_argument
@node_option
@leases_option
@group_option
@click.option(
    "--delay",
    "--delay-ms",
    "delay_ms",
    metavar="TIME",
    type=Duration(),
    help="When the jobs can be claimed again.  [as `retry` of the topic says; at once without that]",
)
@click.option("--error", metavar="TEXT", help="What went wrong: kept as the last error of the jobs.")
@click.option("--no-count", is_flag=True, help="These deliveries do not count.")
@click.option("--dead", is_flag=True, help="Move the jobs to the dead-letter topic.")
@client_options
@click.pass_obj
def nack(
    options: CommandOptions,
    topic: str,
    seqs: tuple[int, ...],
    node: str,
    lease_ids: tuple[str, ...],
    delay_ms: int | None,
    error: str | None,
    no_count: bool,
    dead: bool,
    group: str | None,
) -> None:
    """Give jobs back, for another claimer.

    Exit code 1 if a job was skipped, because NAME does not hold it (any more).
    """
    fences = _fences(seqs, lease_ids)
    with connect(options) as client:
        answer = client.nack(
            topic,
            node,
            seqs,
            delay_ms=delay_ms,
            lease_ids=fences,
            error=error,
            count=not no_count,
            dead=dead,
            group=group,
        )
    _settled(options, answer, f"{count(answer.nacked)} given back, {_left(answer)}")


@queue.command(epilog=examples("topics queue extend mails 17 --lease 1m"))
@topic_argument
@seqs_argument
@node_option
@leases_option
@group_option
@click.option(
    "--lease",
    "--lease-ms",
    "lease_ms",
    metavar="TIME",
    type=Duration(),
    required=True,
    help="Length of the leases from now on.",
)
@client_options
@click.pass_obj
def extend(
    options: CommandOptions,
    topic: str,
    seqs: tuple[int, ...],
    node: str,
    lease_ids: tuple[str, ...],
    lease_ms: int,
    group: str | None,
) -> None:
    """Extend the leases of jobs.

    Exit code 1 if a job was skipped, because NAME does not hold it (any more).
    """
    fences = _fences(seqs, lease_ids)
    with connect(options) as client:
        answer = client.extend(topic, node, seqs, lease_ms=lease_ms, lease_ids=fences, group=group)
    until = [f"{seq} until {moment(deadline)}" for seq, deadline in sorted(answer.deadlines.items())]
    _settled(options, answer, "\n".join(until) or "none extended")


@queue.command(epilog=examples("topics queue pause mails", "topics queue pause mails --until 2026-12-24T18:00:00Z"))
@topic_argument
@click.option("--until", metavar="TIME", type=Time(), help="When the pause ends by itself.  [never]")
@group_option
@client_options
@click.pass_obj
def pause(options: CommandOptions, topic: str, until: int | None, group: str | None) -> None:
    """Pause a queue, or with --group a group: it gives out no jobs.

    Jobs that are leased stay so. Claims that wait, and workers, wait on.
    """
    with connect(options) as client:
        answer = client.pause(topic, until=until, group=group)
    _paused(options, answer)


@queue.command(epilog=examples("topics queue resume mails"))
@topic_argument
@group_option
@client_options
@click.pass_obj
def resume(options: CommandOptions, topic: str, group: str | None) -> None:
    """Resume a paused queue, or with --group a group: it gives out jobs again."""
    with connect(options) as client:
        answer = client.resume(topic, group=group)
    _paused(options, answer)


@queue.command(
    epilog=examples(
        "topics queue redrive mails-dead --wait",
        "topics queue redrive mails-dead --filter 'tag = \"eu\"' --max 100",
        'topics queue redrive mails-dead --to mails-by-hand --rate \'{"jobs": 10, "per_ms": 1000}\'',
        "topics queue redrive mails-dead --state",
        "topics queue redrive mails-dead --stop",
    )
)
@topic_argument
@click.option("--to", metavar="TOPIC", help="Move all letters to this topic.  [where each came from]")
@click.option(
    "--filter",
    "wanted",
    metavar="TEXT",
    callback=filter_json,
    help="Only letters that match, such as 'tag ~ \"eu:*\" and data./total >= 10' (docs, filters).",
)
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Move at most so many letters.  [all]")
@click.option(
    "--rate", type=JsonObject("jobs", "per_ms"), metavar="JSON", help="At most so many letters in any such time."
)
@click.option("--wait", is_flag=True, help="Return when it has ended; Ctrl-C stops the waiting, not the redrive.")
@click.option("--state", "shows", is_flag=True, help="Move nothing; say how far the last one has come.")
@click.option("--stop", "stops", is_flag=True, help="Stop the one that is running.")
@client_options
@click.pass_obj
def redrive(
    options: CommandOptions,
    /,
    topic: str,
    wait: bool,
    shows: bool,
    stops: bool,
    **wish: Any,
) -> None:
    """Move the letters of a dead-letter topic back to the queues and groups that they came from.

    Each letter is moved exactly once: it becomes a new job without deliveries, or its group gets the record again. A
    letter whose queue or group is missing or full stays.

    Exit code 1 if the redrive has failed, or, with --wait, if letters stay.
    """
    if shows + stops + any(value is not None for value in wish.values()) > 1:
        raise click.UsageError("--state and --stop stand alone.")
    wish["max"], wish["filter"] = wish.pop("most"), wish.pop("wanted")
    with connect(options) as client:
        if stops:
            state = client.stop_redrive(topic)
        else:
            state = client.redrive_state(topic) if shows else client.redrive(topic, **wish)
        while wait and state.state == "running":
            time.sleep(_REDRIVE_POLL_S)
            state = client.redrive_state(topic)
    if options.as_json:
        print_json(state)
    else:
        why = ", ".join(f"{count(letters)} {reason.replace('_', ' ')}" for reason, letters in state.reasons.items())
        left = f", {count(state.left)} left ({why})" if state.left else ""
        print_line(f"{state.state}: {count(state.moved)} moved{left}")
    if state.error is not None:
        raise CommandFailure(f"{state.error.code}: {state.error.message}", EXIT_FAILED)
    if wait and state.left:
        raise SystemExit(EXIT_FAILED)


def _paused(options: CommandOptions, answer: Any) -> None:
    if options.as_json:
        print_json(answer)
        return
    until = "" if answer.queue.paused_until is None else f" until {moment(answer.queue.paused_until)}"
    print_line(f"paused{until}, {_left(answer.queue)}" if answer.queue.paused else f"not paused, {_left(answer.queue)}")


def _fences(seqs: Sequence[int], lease_ids: Sequence[str]) -> Sequence[str] | None:
    if lease_ids and len(lease_ids) != len(seqs):
        raise click.UsageError(
            f"{len(lease_ids)} times --lease-id for {len(seqs)} jobs; it takes one for each, or none."
        )
    return lease_ids or None


def _results(seqs: Sequence[int], results: Sequence[str]) -> Sequence[msgspec.Raw] | None:
    if results and len(results) != len(seqs):
        raise click.UsageError(f"{len(results)} times --result for {len(seqs)} jobs; it takes one for each, or none.")
    for text in results:
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"{text!r} is not JSON: {error}", param_hint="--result") from None
    return [msgspec.Raw(text.encode()) for text in results] or None


def _left(answer: Any) -> str:
    return f"{count(answer.ready)} ready, {count(answer.in_flight)} in flight"


def _settled(options: CommandOptions, answer: Any, said: str) -> None:
    """Print an answer; exits with 1 if jobs were skipped."""
    if options.as_json:
        print_json(answer)
    else:
        print_line(said)
    if answer.skipped:
        raise CommandFailure(f"skipped, as they are not held (any more): {', '.join(map(str, answer.skipped))}")


# ----------------------------------------------------------------- work


@queue.command(
    epilog=examples(
        "topics queue work mails --exec './send-mail'",
        "topics queue work thumbnails --concurrency 4 --job-timeout 5m --exec 'python resize.py'",
        "topics queue work mails --once --shell --exec 'jq -r .to | xargs -n1 ./greet'",
        "topics queue work sums --results --exec 'jq add'",
    )
)
@topic_argument
@click.option("--exec", "line", metavar="COMMAND", required=True, help="Command to run for each job.")
@click.option(
    "--shell", is_flag=True, help="Run COMMAND with /bin/sh; otherwise it is split into words as a shell does."
)
@click.option("--concurrency", metavar="N", type=click.IntRange(1, 1000), default=1, help="Jobs at the same time.  [1]")
@click.option("--node", metavar="NAME", help="Holder of the jobs.  [a new name for each worker]")
@click.option(
    "--lease",
    "--lease-ms",
    "lease_ms",
    metavar="TIME",
    type=Duration(),
    help="Length of the leases, which are extended while the command runs.  [lease_ms of the topic]",
)
@click.option("--job-timeout", metavar="TIME", type=Duration(plain="s"), help="Kill a command that takes longer.")
@click.option("--max-jobs", metavar="N", type=click.IntRange(min=1), help="End after this number of jobs.")
@click.option(
    "--once",
    is_flag=True,
    help="End when no job is ready, even if jobs are delayed after a failure.",
)
@click.option("--raw", is_flag=True, help="Pass a JSON string to COMMAND as plain text, without quotes.")
@click.option(
    "--results",
    is_flag=True,
    help="Send what COMMAND prints as the result of the job, where the queue has `completed`.",
)
@click.option("--pass-token", is_flag=True, help="Leave TOPICS_TOKEN in the command's environment.")
@group_option
@client_options
@click.pass_obj
def work(
    options: CommandOptions,
    topic: str,
    line: str,
    shell: bool,
    concurrency: int,
    node: str | None,
    lease_ms: int | None,
    job_timeout: int | None,
    max_jobs: int | None,
    once: bool,
    raw: bool,
    results: bool,
    pass_token: bool,
    group: str | None,
) -> None:
    """Run a command for each job of a queue, or with --group for each record that the group has not finished.

    The command gets the job's data on its standard input, as JSON and a newline (with --raw a string as its text), and
    TOPICS_JOB_TOPIC, _SEQ, _TAG, _NODE, _DELIVERIES and _META_... (the names of its meta in capitals) in its
    environment, where TOPICS_URL is the daemon's and TOPICS_TOKEN is missing.

    Exit code 0 acks the job. After any other the job is delivered again, later each time, up to the max_deliveries of
    the queue. A job may be done twice, if a worker dies or is cut off from the daemon for longer than a lease.

    Where the topic or the group has `completed`, the result is null. With --results it is the standard output of the
    command: the same JSON if it is valid JSON, otherwise its text without the last newline, null if it is empty. A job
    with more output than the daemon's TOPICS_MAX_RECORD_BYTES (at most 8 MiB) has failed.

    A command that cannot be run (with --shell: exit codes 126 and 127) ends the worker. Ctrl-C or SIGTERM: no new jobs,
    and the end when those that run are done. A second time: they are killed and given back. A third time: the end at
    once.

    With --json, one line on stdout for each job that has ended, and what commands print goes to stderr. Exit code 0
    after Ctrl-C, 130 after a second one; with --once or --max-jobs 1 if a job has failed. A daemon that is away is
    waited for; with --once it ends the worker with exit code 6, at the beginning at once and later after 30 s.
    """
    from topics.cli.exec_jobs import CommandRunner, WorkOptions  # noqa: PLC0415
    from topics.client import Retry  # noqa: PLC0415

    command = _checked_command(line, shell=shell)
    _check_lease(lease_ms)
    wanted = WorkOptions(
        node=node, concurrency=concurrency, lease_ms=lease_ms, max_jobs=max_jobs, once=once, group=group
    )
    with connect(options, retry=Retry()) as client:
        runner = CommandRunner(
            command,
            environ=os.environ | {"TOPICS_URL": ",".join(client.connection.urls)},
            report=print_ndjson if options.as_json else _complain,
            timeout_s=None if job_timeout is None else job_timeout / 1000,
            pass_token=pass_token,
            raw=raw,
            results=results,
            output=sys.stderr.fileno() if options.as_json else None,
        )
        signals = _signals_of_run(client, topic, runner, wanted)
    if signals is not None:
        _exit_after(runner, signals)


def _checked_command(line: str, *, shell: bool) -> ExecCommand:
    from topics.cli.exec_jobs import Command  # noqa: PLC0415

    command = Command(line, shell)
    if (problem := command.problem()) is not None:
        raise click.BadParameter(problem, param_hint="--exec")
    return command


def _check_lease(lease_ms: int | None) -> None:
    from topics.client.workers.worker import MAX_LEASE_MS, MIN_LEASE_MS  # noqa: PLC0415

    if lease_ms is not None and not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
        raise click.BadParameter("must be from 100ms to 1d", param_hint="--lease")


def _signals_of_run(client: Client, topic: str, runner: CommandRunner, wanted: WorkOptions) -> int | None:
    """Work until there is a reason to stop. Returns how many signals came; None: Ctrl-C came before the worker listened
    to signals, and no job was claimed."""
    import anyio  # noqa: PLC0415

    from topics.cli.exec_jobs import CommandWorker  # noqa: PLC0415

    async def run() -> int:
        async with client.asynchronous() as concurrent:
            return await CommandWorker(concurrent, topic, runner, wanted, say=tell).run()

    try:
        return anyio.run(run)
    except KeyboardInterrupt:
        return None


def _exit_after(runner: CommandRunner, signals: int) -> None:
    """Tell what became of the jobs, and end with the exit code for that."""
    tell(f"{count(runner.done)} done, {count(runner.failed)} failed")
    if runner.unstartable is not None:
        raise CommandFailure(runner.unstartable)
    if signals > 1:
        sys.exit(EXIT_INTERRUPTED)
    if runner.failed and not signals:
        sys.exit(EXIT_FAILED)


def _complain(ended: CommandOutcome) -> None:
    """Tell of a job that was not done, or not by this worker alone."""
    if ended.outcome != "done":
        code = "" if ended.exit_code is None else f", exit code {ended.exit_code}"
        tell(f"job {ended.seq} {_COMPLAINTS[ended.outcome]}{code}, delivery {ended.deliveries}")
    if ended.lost:
        tell(f"job {ended.seq} lost its lease before the command had ended: another worker may do it too")
