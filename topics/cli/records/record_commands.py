"""The commands about records: `append`, `read` and `tail`, which have modules of their own, and `delete`."""

from __future__ import annotations

import click

from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.output import confirm, count, moment, print_json, print_line, printable
from topics.cli.read_commands import read, tail
from topics.cli.records.append_command import append
from topics.cli.values import Time

__all__ = ["append", "delete", "read", "tail"]


@click.command(
    epilog=examples(
        "topics delete orders --before-seq 1000",
        "topics delete orders --tag customer:7 --yes",
        "topics delete orders --tag-prefix customer: --before-seq 1000",
        "topics delete orders --after-seq 1000 --before-time 2026-01-31T12:00",
        "topics delete orders --tag customer:7 --dry-run",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--before-seq", type=click.IntRange(min=1), metavar="SEQ", help="Records with smaller seqs.")
@click.option("--after-seq", type=click.IntRange(min=0), metavar="SEQ", help="Records with larger seqs.")
@click.option(
    "--before-time", type=Time(), metavar="TIME", help="Records appended before this: ISO 8601 (UTC), or epoch ms."
)
@click.option("--tag", metavar="TAG", help="Records with this tag.")
@click.option(
    "--tag-prefix", metavar="PREFIX", help="Records whose tag begins with this; '' for all records with a tag."
)
@click.option("--dry-run", is_flag=True, help="Count the records, and delete none.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@client_options
@click.pass_obj
def delete(
    options: CommandOptions,
    topic: str,
    before_seq: int | None,
    after_seq: int | None,
    before_time: int | None,
    tag: str | None,
    tag_prefix: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete records of a topic: those that are there now and fit.

    With several options, those that fit all. Nothing tells readers of it: there is no tombstone. It asks first on a
    terminal. The seqs of deleted records are never used again, also at the end of the topic.
    """
    if tag is not None and tag_prefix is not None:
        raise click.UsageError("Only one of --tag and --tag-prefix can be given.")
    if all(given is None for given in (before_seq, after_seq, before_time, tag, tag_prefix)):
        raise click.UsageError("Say which records: --before-seq, --after-seq, --before-time, --tag or --tag-prefix.")
    match: list[str] | None = None
    kinds = []
    if before_seq is not None:
        kinds.append(f"seqs below {before_seq}")
    if after_seq is not None:
        kinds.append(f"seqs above {after_seq}")
    if before_time is not None:
        kinds.append(f"times before {moment(before_time)}")
    if tag is not None:
        match = ["tag", "Eq", tag]
        kinds.append(f"the tag {tag!r}")
    elif tag_prefix is not None:
        match = ["tag", "Glob", f"{tag_prefix}*"]
        kinds.append(f"tags that begin with {tag_prefix!r}" if tag_prefix else "a tag")
    confirm(f"Delete the records of {topic!r} with {' and '.join(kinds)}?", yes=yes or dry_run)
    with connect(options) as client:
        done = client.delete_records(
            topic, after_seq=after_seq, before_seq=before_seq, before_ts=before_time, match=match, dry_run=dry_run
        )
    if options.as_json:
        print_json(done)
        return
    deleted = "1 record" if done.deleted == 1 else f"{count(done.deleted)} records"
    print_line(printable(f"{deleted} of {topic!r} deleted, {count(done.count)} left"))
