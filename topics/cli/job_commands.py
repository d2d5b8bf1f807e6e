"""`topics queue jobs|retry|cancel`: looking at the jobs of a queue, or with `--group` of a group of a log, retrying and
cancelling them (`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.output import Column, confirm, count, moment, print_json, print_line, print_table
from topics.cli.values import filter_json

if TYPE_CHECKING:
    from topics.client.job_results import JobCounts, ListedJob

_topic: Final = click.argument("topic", shell_complete=complete_topics)
_group: Final = click.option(
    "--group", metavar="GROUP", help="Of this group of a log (`topics group`), not of a queue."
)
_seqs: Final = click.argument("seqs", metavar="[SEQ]...", type=click.IntRange(min=1), nargs=-1)
_filter: Final = click.option(
    "--filter",
    "wanted",
    metavar="TEXT",
    callback=filter_json,
    help="Only jobs that match, such as 'tag ~ \"eu:*\" and data./total >= 10' (docs, filters).",
)


@click.command(
    epilog=examples(
        "topics queue jobs mails",
        "topics queue jobs mails --state delayed --filter 'tag = \"eu\"'",
        "topics queue jobs orders --group mailer --state in_flight --json",
    )
)
@_topic
@click.option(
    "--state",
    type=click.Choice(["ready", "in_flight", "delayed", "dead"]),
    help="Only jobs in this state; dead: those in the dead-letter topic.  [all but dead]",
)
@_filter
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=1000, help="Most jobs to list.  [1000]")
@_group
@client_options
@click.pass_obj
def jobs(options: CommandOptions, topic: str, state: Any, wanted: str | None, limit: int, group: str | None) -> None:
    """List jobs, by their seqs, each with its state.

    The seqs of dead jobs are those of their letters.
    """
    found: list[ListedJob] = []
    more = False
    with connect(options) as client:
        for job in client.all_jobs(topic, state=state, filter=wanted, group=group):
            more = len(found) == limit
            if more:
                break
            found.append(job)
    if options.as_json:
        print_json([job_document(job) for job in found])
        return
    titles = ("seq", "state", "deliveries", "priority", "holder", "until", "tag", "last error", "data")
    print_table(
        [Column(title, right=title in ("seq", "deliveries", "priority")) for title in titles],
        [_row(job) for job in found],
    )
    if more:
        print_line(f"only the first {count(limit)}, see --limit")


def _row(job: ListedJob) -> tuple[str, ...]:
    until = job.deadline if job.deadline is not None else job.not_before
    return (
        str(job.seq),
        job.state,
        str(job.deliveries),
        str(job.priority),
        job.holder or "",
        "" if until is None else moment(until),
        job.tag or "",
        job.last_error or "",
        bytes(job.raw).decode(),
    )


def job_document(job: ListedJob) -> dict[str, Any]:
    """A job as the interface shows it: without the fields that it does not have."""
    facts = {
        "$seq": job.seq,
        "state": job.state,
        "deliveries": job.deliveries,
        "priority": job.priority,
        "node": job.holder,
        "deadline": job.deadline,
        "not_before": job.not_before,
        "last_error": job.last_error,
        "$ts": job.ts,
        "$tag": job.tag,
        "$node": job.node,
        "data": job.raw,
        "meta": job.meta or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


@click.command(
    epilog=examples(
        "topics queue retry mails 17 18",
        "topics queue retry mails --filter 'tag = \"eu\"'",
        "topics queue retry mails 3 --state dead",
    )
)
@_topic
@_seqs
@_filter
@click.option(
    "--state", type=click.Choice(["delayed", "dead"]), help="Only jobs in this state.  [delayed; with --filter both]"
)
@_group
@client_options
@click.pass_obj
def retry(
    options: CommandOptions, topic: str, seqs: tuple[int, ...], wanted: str | None, state: Any, group: str | None
) -> None:
    """Make delayed or dead jobs ready: those with these seqs, or those that match --filter.

    With --state dead the seqs are those of the letters in the dead-letter topic. Jobs in other states are skipped,
    which is not a failure.
    """
    _check_selection(seqs, wanted)
    with connect(options) as client:
        done = client.retry_jobs(topic, list(seqs) or None, filter=wanted, state=state, group=group)
    _tell(options, "retried", done)


@click.command(
    epilog=examples(
        "topics queue cancel mails 17 18", "topics queue cancel mails --state delayed --filter 'tag = \"eu\"' -y"
    )
)
@_topic
@_seqs
@_filter
@click.option("--state", type=click.Choice(["ready", "in_flight", "delayed"]), help="Only jobs in this state.  [all]")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_group
@client_options
@click.pass_obj
def cancel(
    options: CommandOptions,
    topic: str,
    seqs: tuple[int, ...],
    wanted: str | None,
    state: Any,
    yes: bool,
    group: str | None,
) -> None:
    """Delete the jobs with these seqs, or the jobs that match --filter, also while they are leased.

    With --group the group has finished the records, which stay. On a terminal it asks first. Jobs that are about to
    move to the dead letters are skipped, which is not a failure.
    """
    _check_selection(seqs, wanted)
    which = f"{count(len(seqs))} jobs" if seqs else "the jobs that match"
    confirm(f"Cancel {which} of {topic if group is None else group}?", yes=yes)
    with connect(options) as client:
        done = client.cancel_jobs(topic, list(seqs) or None, filter=wanted, state=state, group=group)
    _tell(options, "cancelled", done)


def _check_selection(seqs: tuple[int, ...], wanted: str | None) -> None:
    if bool(seqs) == (wanted is not None):
        raise click.UsageError("SEQ... or --filter is needed, and not both.")


def _tell(options: CommandOptions, what: str, done: JobCounts) -> None:
    if options.as_json:
        print_json(msgspec.structs.asdict(done))
    else:
        print_line(f"{count(done.done)} {what}, {count(done.skipped)} skipped")
