"""`topics schedule ls|show|create|rm|run|pause|resume` (`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from topics.cli.app import CommandOptions, client_options, connect, examples
from topics.cli.failures import EXIT_NOT_FOUND, CommandFailure, for_each
from topics.cli.output import (
    Column,
    confirm,
    duration,
    json_results,
    moment,
    print_facts,
    print_json,
    print_line,
    print_table,
    printable,
)
from topics.cli.values import Duration, KeyValue

if TYPE_CHECKING:
    from topics.client.results import ScheduleState

name_argument: Final = click.argument("name", metavar="SCHEDULE")
names_argument: Final = click.argument("names", nargs=-1, required=True, metavar="SCHEDULE...")


@click.group(epilog=examples("topics schedule ls", "topics schedule run nightly"))
@client_options
def schedule() -> None:
    """Schedules: records that the daemon appends by the clock."""


@schedule.command(epilog=examples("topics schedule ls", "topics schedule ls --prefix report --json"))
@click.option("--prefix", default="", metavar="TEXT", help="Only schedules whose names begin with this.")
@client_options
@click.pass_obj
def ls(options: CommandOptions, prefix: str) -> None:
    """List schedules, in the order of names. Times are UTC."""
    with connect(options) as client:
        found = list(client.all_schedules(prefix=prefix))
    if options.as_json:
        print_json({"schedules": found})
        return
    columns = [Column("schedule"), Column("topic"), Column("when"), Column("next"), Column("last"), Column("state")]
    rows = (
        [one.schedule, one.topic, printable(_when(one)), moment(one.next_ts), moment(one.last_ts), _state(one)]
        for one in found
    )
    print_table(columns, rows)


def _when(one: ScheduleState) -> str:
    if one.every_ms is not None:
        return f"every {duration(one.every_ms)}"
    return f"{one.cron} {one.time_zone}"


def _state(one: ScheduleState) -> str:
    if one.paused:
        return "paused"
    return "ok" if one.last_error is None else one.last_error.code


@schedule.command(epilog=examples("topics schedule show nightly"))
@name_argument
@client_options
@click.pass_obj
def show(options: CommandOptions, name: str) -> None:
    """Show a schedule: what it appends, when it has fired and when it fires next. Times are UTC."""
    with connect(options) as client:
        found = client.schedule(name)
    if options.as_json:
        print_json(found)
    else:
        print_facts(_facts(found))


def _facts(found: ScheduleState) -> Iterator[tuple[str, str]]:
    yield "schedule", found.schedule
    yield "topic", found.topic
    yield "record", printable(json.dumps(found.record, ensure_ascii=False))
    yield "when", printable(_when(found))
    yield "catch up", found.catch_up
    yield "state", _state(found)
    yield "next", moment(found.next_ts)
    yield "last", moment(found.last_ts)
    yield "created", moment(found.created_ts)
    if found.last_error is not None:
        yield "refused", printable(found.last_error.message)


def _data(_ctx: click.Context, _param: click.Parameter, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise click.BadParameter('it must be JSON, such as \'{"report": "daily"}\'.') from None


@schedule.command(
    epilog=examples(
        """topics schedule create nightly jobs '{"report": "daily"}' --cron '0 3 * * *' --zone Europe/Berlin""",
        "topics schedule create poll jobs '{}' --every 30s --catch-up one",
        "topics schedule create sweep jobs '{}' --every 10m --priority 2 --unique-key sweep",
    )
)
@name_argument
@click.argument("topic")
@click.argument("data", callback=_data)
@click.option("--cron", metavar="TEXT", help="Minute, hour, day of month, month, day of week.")
@click.option(
    "--every", "every_ms", type=Duration(least=100), help="Time between two records, counted from the creation."
)
@click.option("--zone", default="UTC", show_default=True, metavar="NAME", help="The time zone of --cron.")
@click.option(
    "--catch-up",
    type=click.Choice(["none", "one", "all"]),
    default="none",
    show_default=True,
    help="Which missed times fire late: none, the latest one, or all, at most 1000.",
)
@click.option(
    "--paused/--not-paused", default=None, help="Whether the schedule is paused.  [unchanged; a new one is not]"
)
@click.option("--tag", metavar="TEXT", help="The tag of the record.")
@click.option("--node", metavar="NODE", help="The node of the record.")
@click.option(
    "--meta", type=KeyValue(), multiple=True, metavar="KEY=VALUE", help="Metadata of the record; may be repeated."
)
@click.option("--delay", "delay_ms", type=Duration(), metavar="TIME", help="Queue: claim the job this much later.")
@click.option("--priority", type=click.IntRange(0, 9), metavar="N", help="Queue: 0 to 9, higher ones first.  [5]")
@click.option("--unique-key", metavar="KEY", help="Queue: append no job while there is one with this key.")
@click.option(
    "--unique-scope",
    type=click.Choice(["queued", "unfinished", "window"]),
    help="Which job counts: one that waits, one that is there, one of the last --unique-window.  [unfinished]",
)
@click.option("--unique-window", type=Duration(), metavar="TIME", help="How long ago a job may have been appended.")
@client_options
@click.pass_obj
def create(
    options: CommandOptions,
    /,
    name: str,
    topic: str,
    data: Any,
    cron: str | None,
    every_ms: int | None,
    zone: str,
    catch_up: Any,
    paused: bool | None,
    tag: str | None,
    node: str | None,
    meta: tuple[tuple[str, str], ...],
    delay_ms: int | None,
    priority: int | None,
    unique_key: str | None,
    unique_scope: Literal["queued", "unfinished", "window"] | None,
    unique_window: int | None,
) -> None:
    """Create a schedule, which appends DATA (JSON) to a topic, or change it.

    The topic is created at the first firing if it is missing.
    """
    if (cron is None) == (every_ms is None):
        raise click.UsageError("Give exactly one of --cron and --every.")
    if not unique_key and (unique_scope or unique_window is not None):
        raise click.UsageError("--unique-scope and --unique-window go with --unique-key.")
    from topics.client import NewRecord, Unique  # noqa: PLC0415

    unique = Unique(unique_key, unique_scope or "unfinished", unique_window) if unique_key else None
    record = NewRecord(data, tag, node, dict(meta) or None, delay_ms, None, priority, unique)
    with connect(options) as client:
        done = client.create_schedule(
            name, topic, record, cron=cron, every_ms=every_ms, time_zone=zone, catch_up=catch_up, paused=paused
        )
    _print_done(options, done)


def _print_done(options: CommandOptions, done: ScheduleState) -> None:
    if options.as_json:
        print_json(done)
    else:
        print_line(f"{done.schedule}: " + ("paused" if done.paused else f"next {moment(done.next_ts)}"))


@schedule.command(epilog=examples("topics schedule run nightly"))
@name_argument
@client_options
@click.pass_obj
def run(options: CommandOptions, name: str) -> None:
    """Append the record of a schedule now, paused or not. Its times stay as they are."""
    with connect(options) as client:
        done = client.run_schedule(name)
    if options.as_json:
        print_json(done)
    else:
        print_line(f"{done.schedule}: record {done.seq} of {done.topic}")


@schedule.command(epilog=examples("topics schedule pause nightly"))
@name_argument
@client_options
@click.pass_obj
def pause(options: CommandOptions, name: str) -> None:
    """Pause a schedule: it fires nothing until it is resumed."""
    with connect(options) as client:
        _print_done(options, client.pause_schedule(name))


@schedule.command(epilog=examples("topics schedule resume nightly"))
@name_argument
@client_options
@click.pass_obj
def resume(options: CommandOptions, name: str) -> None:
    """Let a schedule fire again. Firings that fell into the pause are not made later."""
    with connect(options) as client:
        _print_done(options, client.resume_schedule(name))


@schedule.command(epilog=examples("topics schedule rm nightly"))
@names_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_options
@click.pass_obj
def rm(options: CommandOptions, names: tuple[str, ...], yes: bool) -> None:
    """Delete schedules; their topics stay.

    On a terminal it asks first. A missing schedule is a failure (exit code 3).
    """
    confirm(f"Delete {'schedule' if len(names) == 1 else 'schedules'} {', '.join(names)}?", yes=yes)
    with connect(options) as client, json_results(as_json=options.as_json, many=len(names) > 1) as removed:

        def one(name: str) -> None:
            done = client.delete_schedule(name)
            removed.append(done)
            if not done.deleted:
                raise CommandFailure(f"there is no schedule {name!r}", EXIT_NOT_FOUND)
            if not options.as_json:
                print_line(f"{printable(name)}: deleted")

        for_each(names, one)
