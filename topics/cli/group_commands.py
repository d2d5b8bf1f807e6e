"""`topics group ls|show|create|rm` (`docs/spec/consumers.md` section 4). Claims and acks are those of `topics queue`,
with `--group`."""

from __future__ import annotations

import json
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
from topics.cli.values import NONE, Duration, JsonObject, filter_json

if TYPE_CHECKING:
    from topics.client.results import GroupState

topic_argument: Final = click.argument("topic", shell_complete=complete_topics)


@click.group(epilog=examples("topics group ls orders", "topics group create orders mailer --from earliest"))
@client_options
def group() -> None:
    """Groups of a log: each record goes to one worker of a group, and stays in the log."""


@group.command(epilog=examples("topics group ls orders", "topics group ls orders --prefix mail --json"))
@topic_argument
@click.option("--prefix", default="", metavar="TEXT", help="Only groups whose names begin with this.")
@client_options
@click.pass_obj
def ls(options: CommandOptions, topic: str, prefix: str) -> None:
    """List the groups of a log, in the order of names."""
    with connect(options) as client:
        found = list(client.all_groups(topic, prefix=prefix))
    if options.as_json:
        print_json({"groups": found})
        return
    numbers = ("floor", "lag", "ready", "in flight", "delayed", "dead", "missed")
    columns = [Column("group"), *(Column(name, right=True) for name in numbers)]
    rows = (
        [
            one.group,
            str(one.floor),
            count(one.lag),
            count(one.queue.ready),
            count(one.queue.in_flight),
            count(one.queue.delayed),
            count(one.queue.dead_lettered),
            count(one.missed),
        ]
        for one in found
    )
    print_table(columns, rows)


@group.command(epilog=examples("topics group show orders mailer"))
@topic_argument
@click.argument("name", metavar="GROUP")
@client_options
@click.pass_obj
def show(options: CommandOptions, topic: str, name: str) -> None:
    """Show a group: its progress, how many records it holds, and its settings."""
    with connect(options) as client:
        found = client.group(topic, name)
    if options.as_json:
        print_json(found)
    else:
        print_facts(_facts(found))


def _facts(found: GroupState) -> Iterator[tuple[str, str]]:
    yield "topic", found.topic
    yield "group", found.group
    yield "floor", str(found.floor)
    yield "lag", count(found.lag)
    yield "missed", count(found.missed)
    jobs = found.queue
    yield "jobs", f"{count(jobs.ready)} ready, {count(jobs.in_flight)} in flight, {count(jobs.delayed)} delayed"
    yield "dead letters", count(jobs.dead_lettered)
    yield "unfinished", f"{count(found.unfinished)} of {count(found.max_unfinished)}"
    yield "lease_ms", str(found.lease_ms)
    yield "claim_jitter_ms", str(found.claim_jitter_ms)
    yield "paused", str(found.queue.paused).lower()
    yield "max_in_flight", str(found.max_in_flight or "-")
    yield "retry", json.dumps(found.retry) if found.retry else "-"
    yield "rate", f"{found.rate['jobs']} in {found.rate['per_ms']} ms" if found.rate else "-"
    yield "order_by", found.order_by or "-"
    limit = found.max_in_flight_per_key
    yield "max_in_flight_per_key", f"{limit['max']} of one {limit['by']}" if limit else "-"
    yield "max_deliveries", str(found.max_deliveries)
    yield "dead_letter", found.dead_letter or "-"
    yield "completed", found.completed or "-"
    yield "leases_durable", str(found.leases_durable).lower()
    yield "filter", filter_text(found.filter)


@group.command(
    epilog=examples(
        "topics group create orders mailer --from earliest",
        "topics group create orders mailer --lease 1m --max-deliveries 5 --dead-letter orders.dead",
        "topics group create orders large --filter 'data./total >= 1000'",
    )
)
@topic_argument
@click.argument("name", metavar="GROUP")
@click.option(
    "--from", "from_", type=click.Choice(["tail", "earliest"]), help="Where a new group begins in the log.  [tail]"
)
@click.option(
    "--seq", type=click.IntRange(min=0), metavar="SEQ", help="A new group begins behind the record with this seq."
)
@click.option(
    "--ts",
    type=click.IntRange(min=0),
    metavar="MS",
    help="A new group begins with the first record of this time or later.",
)
@click.option("--lease", "--lease-ms", "lease_ms", type=Duration(), help="How long a record is leased.  [30s]")
@click.option(
    "--jitter",
    "--claim-jitter-ms",
    "jitter_ms",
    type=Duration(off=True),
    help="How long claims are gathered before records are given out.",
)
@click.option(
    "--max-deliveries",
    type=click.IntRange(min=0),
    metavar="N",
    help="How often a record is given out before it goes to the dead letters; 0: no limit.",
)
@click.option("--dead-letter", metavar="TOPIC", help="The topic of the dead letters; '' for none.")
@click.option("--completed", metavar="TOPIC", help="The topic of the results of acks; '' for none.")
@click.option("--leases-durable/--no-leases-durable", default=None, help="Sync leases before a claim is answered.")
@click.option(
    "--retry",
    type=JsonObject("backoff", "delay_ms", "max_delay_ms", "jitter"),
    metavar="JSON",
    help="Delays after failures, such as "
    '\'{"backoff": "exponential", "delay_ms": 1000, "max_delay_ms": 60000}\'; `none` removes them.',
)
@click.option(
    "--rate",
    type=JsonObject("jobs", "per_ms"),
    metavar="JSON",
    help='How many records are claimed at most, such as \'{"jobs": 10, "per_ms": 1000}\'; `none` removes it.',
)
@click.option("--max-in-flight", type=click.IntRange(min=0), metavar="N", help="Most leased records; 0: no limit.")
@click.option(
    "--order-by",
    type=click.Choice(["tag", "node", *NONE]),
    help="Give out the records of one tag or node one at a time, in their order.",
)
@click.option(
    "--max-in-flight-per-key",
    type=JsonObject("by", "max"),
    metavar="JSON",
    help='Most leased records of one tag or node, such as \'{"by": "tag", "max": 2}\'; `none` removes it.',
)
@click.option(
    "--max-unfinished",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most records that are held, and runs of finished ones, together.  [100000]",
)
@click.option(
    "--filter",
    "wanted",
    metavar="TEXT",
    callback=filter_json,
    help="Only records that match, such as 'tag ~ \"eu:*\" and data./total >= 10' (docs, filters).",
)
@click.option("--no-filter", is_flag=True, help="Remove the filter.")
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
    wanted: str | None,
    no_filter: bool,
    **settings: Any,
) -> None:
    """Create a group of a log, or change it.

    One that is there already stays where it is, and takes the settings that are given. A missing topic is not created
    (exit code 3).
    """
    if sum(place is not None for place in (from_, seq, ts)) > 1:
        raise click.UsageError("Only one of --from, --seq and --ts can be given.")
    if no_filter and wanted is not None:
        raise click.UsageError("Only one of --filter and --no-filter can be given.")
    numbers = {"seq": seq, "ts": ts}
    place: Any = from_ or {key: value for key, value in numbers.items() if value is not None} or "tail"
    settings["claim_jitter_ms"] = settings.pop("jitter_ms")
    if settings["order_by"] in NONE:
        settings["order_by"] = ""
    for field in ("retry", "rate", "max_in_flight_per_key"):
        if isinstance(settings[field], str):  # `none`
            settings[field] = {}
    with connect(options) as client:
        done = client.create_group(topic, name, from_=place, filter="null" if no_filter else wanted, **settings)
    if options.as_json:
        print_json(done)
    else:
        print_line(f"{printable(name)}: floor {done.floor}, {count(done.lag)} behind")


@group.command(epilog=examples("topics group rm orders mailer"))
@topic_argument
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_options
@click.pass_obj
def rm(options: CommandOptions, topic: str, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups; the records stay.

    On a terminal it asks first. A missing group is a failure (exit code 3).
    """
    confirm(f"Delete {'group' if len(names) == 1 else 'groups'} {', '.join(names)} of {topic}?", yes=yes)
    with connect(options) as client, json_results(as_json=options.as_json, many=len(names) > 1) as removed:

        def one(name: str) -> None:
            done = client.delete_group(topic, name)
            removed.append(done)
            if not done.deleted:
                raise CommandFailure(f"topic {topic!r} has no group {name!r}", EXIT_NOT_FOUND)
            if not options.as_json:
                print_line(f"{printable(name)}: deleted")

        for_each(names, one)
