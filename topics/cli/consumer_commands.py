"""`topics consumer ls|show|create|seek|rm` (`docs/spec/consumers.md` section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.failures import EXIT_NOT_FOUND, CommandFailure, for_each
from topics.cli.output import (
    Column,
    confirm,
    count,
    json_results,
    print_facts,
    print_json,
    print_line,
    print_table,
    printable,
)
from topics.cli.topic_commands import filter_text
from topics.cli.values import Duration, filter_json

if TYPE_CHECKING:
    from topics.client.results import ConsumerState

topic_argument: Final = click.argument("topic", shell_complete=complete_topics)


@click.group(epilog=examples("topics consumer ls orders", "topics consumer seek orders billing --to earliest"))
@client_options
def consumer() -> None:
    """Named consumers: positions in a topic that the daemon keeps."""


@consumer.command(epilog=examples("topics consumer ls orders", "topics consumer ls orders --prefix billing --json"))
@topic_argument
@click.option("--prefix", default="", metavar="TEXT", help="Only consumers whose names begin with this.")
@client_options
@click.pass_obj
def ls(options: CommandOptions, topic: str, prefix: str) -> None:
    """List the consumers of a topic, in the order of names."""
    with connect(options) as client:
        found = list(client.all_consumers(topic, prefix=prefix))
    if options.as_json:
        print_json({"consumers": found})
        return
    columns = [Column("consumer"), Column("position", right=True), Column("lag", right=True), Column("owner")]
    rows = ([one.consumer, str(one.committed_seq), count(one.lag), printable(one.owner or "-")] for one in found)
    print_table(columns, rows)


@consumer.command(epilog=examples("topics consumer show orders billing"))
@topic_argument
@click.argument("name", metavar="CONSUMER")
@client_options
@click.pass_obj
def show(options: CommandOptions, topic: str, name: str) -> None:
    """Show a consumer: where it is, and who owns it."""
    with connect(options) as client:
        found = client.consumer(topic, name)
    if options.as_json:
        print_json(found)
    else:
        print_facts(_facts(found))


def _facts(found: ConsumerState) -> Iterator[tuple[str, str]]:
    yield "topic", found.topic
    yield "consumer", found.consumer
    yield "position", str(found.committed_seq)
    yield "lag", count(found.lag)
    yield "owner", printable(found.owner or "-")
    yield "generation", str(found.generation)
    yield "filter", filter_text(found.filter)


@consumer.command(
    epilog=examples(
        "topics consumer create orders billing --from earliest",
        "topics consumer create orders billing --filter 'data./total >= 10'",
        "topics consumer create orders billing --no-filter",
    )
)
@topic_argument
@click.argument("name", metavar="CONSUMER")
@click.option(
    "--from", "from_", type=click.Choice(["tail", "earliest"]), help="Where a new consumer begins in the topic.  [tail]"
)
@click.option("--seq", type=click.IntRange(min=0), metavar="SEQ", help="A new one begins behind this record.")
@click.option(
    "--ts",
    type=click.IntRange(min=0),
    metavar="MS",
    help="A new one begins before the first record of this time or later.",
)
@click.option("--ttl", "--ttl-ms", "ttl_ms", type=Duration(off=True), help="Delete it when it was unused for so long.")
@click.option(
    "--filter",
    "wanted",
    metavar="TEXT",
    callback=filter_json,
    help="Only records that match, such as 'tag ~ \"eu:*\" and data./total >= 10' (docs, filters).",
)
@click.option("--no-filter", is_flag=True, help="All records.")
@client_options
@click.pass_obj
def create(
    options: CommandOptions,
    /,
    topic: str,
    name: str,
    from_: Any,
    seq: int | None,
    ts: int | None,
    ttl_ms: int | None,
    wanted: str | None,
    no_filter: bool,
) -> None:
    """Create a consumer of a topic.

    One that is there already stays where it is, and takes the settings that are given. A missing topic is not created
    (exit code 3).
    """
    if sum(place is not None for place in (from_, seq, ts)) > 1:
        raise click.UsageError("Only one of --from, --seq and --ts can be given.")
    if no_filter and wanted is not None:
        raise click.UsageError("Only one of --filter and --no-filter can be given.")
    place: Any = from_ or _place(seq, ts) or "tail"
    with connect(options) as client:
        done = client.create_consumer(topic, name, from_=place, ttl_ms=ttl_ms, filter="null" if no_filter else wanted)
    if options.as_json:
        print_json(done)
    else:
        print_line(f"{printable(name)}: at {done.committed_seq}, {count(done.lag)} behind")


def _place(seq: int | None, ts: int | None) -> dict[str, int] | None:
    """The place of the options that have a number; None if neither is given."""
    if seq is not None:
        return {"seq": seq}
    return None if ts is None else {"ts": ts}


@consumer.command(
    epilog=examples("topics consumer seek orders billing --to earliest", "topics consumer seek orders billing --seq 41")
)
@topic_argument
@click.argument("name", metavar="CONSUMER")
@click.option("--to", type=click.Choice(["earliest", "tail"]), help="The beginning or the end of the topic.")
@click.option("--seq", type=click.IntRange(min=0), metavar="SEQ", help="Behind this record.")
@click.option("--ts", type=click.IntRange(min=0), metavar="MS", help="Before the first record of this time or later.")
@click.option("--generation", type=click.IntRange(min=0), metavar="N", help="Of the owner, if it is owned.")
@client_options
@click.pass_obj
def seek(
    options: CommandOptions,
    topic: str,
    name: str,
    to: Any,
    seq: int | None,
    ts: int | None,
    generation: int | None,
) -> None:
    """Move a consumer to another place of its topic.

    One that is owned moves only with the generation of its owner (exit code 5 otherwise). Stop the program that reads
    with it first: a move back is undone by the next commit of what that program has read already.
    """
    if sum(place is not None for place in (to, seq, ts)) != 1:
        raise click.UsageError("Give exactly one of --to, --seq and --ts.")
    place: Any = to or _place(seq, ts)
    with connect(options) as client:
        done = client.seek_consumer(topic, name, place, generation=generation)
    if options.as_json:
        print_json(done)
    else:
        print_line(f"{printable(name)}: at {done.committed_seq}, {count(done.lag)} behind")


@consumer.command(epilog=examples("topics consumer rm orders billing"))
@topic_argument
@click.argument("names", nargs=-1, required=True, metavar="CONSUMER...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_options
@click.pass_obj
def rm(options: CommandOptions, topic: str, names: tuple[str, ...], yes: bool) -> None:
    """Delete consumers; the records stay.

    On a terminal it asks first. A missing consumer is a failure (exit code 3).
    """
    confirm(f"Delete {'consumer' if len(names) == 1 else 'consumers'} {', '.join(names)} of {topic}?", yes=yes)
    with connect(options) as client, json_results(as_json=options.as_json, many=len(names) > 1) as removed:

        def one(name: str) -> None:
            done = client.delete_consumer(topic, name)
            removed.append(done)
            if not done.deleted:
                raise CommandFailure(f"topic {topic!r} has no consumer {name!r}", EXIT_NOT_FOUND)
            if not options.as_json:
                print_line(f"{printable(name)}: deleted")

        for_each(names, one)
