"""The commands about records: `append`, `read` and `tail`, which have modules of their own, and `delete`."""

from __future__ import annotations

import click

from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.output import confirm, count, print_json, print_line, printable
from topics.cli.read_commands import read, tail
from topics.cli.records.append_command import append

__all__ = ["append", "delete", "read", "tail"]


@click.command(
    epilog=examples(
        "topics delete orders --before-seq 1000",
        "topics delete orders --tag customer:7 --yes",
        "topics delete orders --tag-prefix customer: --before-seq 1000",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--before-seq", type=click.IntRange(min=1), metavar="SEQ", help="Records with smaller seqs.")
@click.option("--tag", metavar="TAG", help="Records with this tag.")
@click.option(
    "--tag-prefix", metavar="PREFIX", help="Records whose tag begins with this; '' for all records with a tag."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@client_options
@click.pass_obj
def delete(
    options: CommandOptions, topic: str, before_seq: int | None, tag: str | None, tag_prefix: str | None, yes: bool
) -> None:
    """Delete records of a topic: those that are there now and fit.

    With --before-seq and a tag, those that fit both. Nothing tells readers of it: there is no tombstone. It asks first
    on a terminal. A record cannot be deleted by its seq alone.
    """
    if tag is not None and tag_prefix is not None:
        raise click.UsageError("Only one of --tag and --tag-prefix can be given.")
    if before_seq is None and tag is None and tag_prefix is None:
        raise click.UsageError("Say which records: --before-seq, --tag or --tag-prefix.")
    match: list[str] | None = None
    kinds = []
    if before_seq is not None:
        kinds.append(f"seqs below {before_seq}")
    if tag is not None:
        match = ["tag", "Eq", tag]
        kinds.append(f"the tag {tag!r}")
    elif tag_prefix is not None:
        match = ["tag", "Glob", f"{tag_prefix}*"]
        kinds.append(f"tags that begin with {tag_prefix!r}" if tag_prefix else "a tag")
    confirm(f"Delete the records of {topic!r} with {' and '.join(kinds)}?", yes=yes)
    with connect(options) as client:
        done = client.delete_records(topic, before_seq=before_seq, match=match)
    if options.as_json:
        print_json(done)
        return
    deleted = "1 record" if done.deleted == 1 else f"{count(done.deleted)} records"
    print_line(printable(f"{deleted} of {topic!r} deleted, {count(done.count)} left"))
