"""`topics ls`, `show`, `create`, `set` and `rm`: topics and their configuration (`docs/spec/api.md` sections 2 and
3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from topics.cli.app import Command, CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.failures import EXIT_NOT_FOUND, CommandFailure, for_each
from topics.cli.output import (
    Column,
    confirm,
    count,
    duration,
    json_results,
    moment,
    print_facts,
    print_json,
    print_line,
    print_table,
    printable,
    size,
)
from topics.cli.values import NONE, Count, Duration, JsonObject, Size

if TYPE_CHECKING:
    from topics.client.results import (
        RouterState,
        TopicChanged,
        TopicConfig,
        TopicState,
        TopicSummary,
    )

CLASSES: Final = ("ephemeral", "memory", "disk", "fsync", "remote")

names_argument: Final = click.argument(
    "names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics
)


# ----------------------------------------------------------------- ls


@click.command(
    epilog=examples("topics ls", "topics ls --prefix orders- --long", "topics ls --sort bytes", "topics ls --json")
)
@click.option("--prefix", default="", metavar="TEXT", help="Only topics whose names begin with this.")
@click.option("-l", "--long", is_flag=True, help="More columns: epoch and priority.")
@click.option("--type", "kind", type=click.Choice(["log", "queue"]), help="Only topics of this type.")
@click.option(
    "--sort",
    type=click.Choice(["name", "records", "bytes", "written"]),
    default="name",
    help="By name; or the 1000 topics with the most records or bytes, or written to last.  [name]",
)
@client_options
@click.pass_obj
def ls(
    options: CommandOptions,
    prefix: str,
    long: bool,
    kind: Literal["log", "queue"] | None,
    sort: Literal["name", "records", "bytes", "written"],
) -> None:
    """List topics, in the order of names."""
    with connect(options) as client:
        if sort == "name":
            found = list(client.list_all(prefix=prefix, type=kind))
        else:
            found = client.list(prefix=prefix, type=kind, sort=sort, page_size=1000).topics
    if options.as_json:
        print_json({"topics": found})
        return
    columns = [Column("topic"), Column("type"), Column("durability"), Column("records", right=True)]
    columns += [Column("bytes", right=True), Column("head", right=True), Column("earliest", right=True)]
    if long:
        columns += [Column("epoch", right=True), Column("priority", right=True)]
    print_table(columns, (_row(topic)[: len(columns)] for topic in found))


def _row(topic: TopicSummary) -> list[str]:
    places = [str(topic.head_seq), str(topic.earliest_seq), str(topic.epoch), str(topic.effective_priority)]
    return [topic.topic, topic.type, topic.durability, count(topic.count), size(topic.bytes), *places]


# ----------------------------------------------------------------- show


@click.command(epilog=examples("topics show orders", "topics show orders --json | jq .config.ttl_ms"))
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@client_options
@click.pass_obj
def show(options: CommandOptions, name: str) -> None:
    """Show a topic: what it holds, its configuration, its routers.

    This does not count as a use of the topic.
    """
    from msgspec import to_builtins  # noqa: PLC0415

    with connect(options) as client:
        state = client.state(name, touch=False)
        into = list(client.all_routers(dest=name))
        out = list(client.all_routers(source=name))
    if options.as_json:
        print_json({**to_builtins(state), "routers_in": into, "routers_out": out})
        return
    print_facts(_state_facts(state))
    print_line("\nconfiguration")
    print_facts((f"  {field}", text) for field, text in _config_facts(state.config))
    for title, routers in (("routers into it", into), ("routers out of it", out)):
        if routers:
            print_line(f"\n{title}")
            print_routers(routers)


def _state_facts(state: TopicState) -> Iterator[tuple[str, str]]:
    yield "topic", state.topic
    yield "type", state.type
    yield "records", count(state.count)
    yield "bytes", size(state.bytes)
    yield "seqs", f"{state.earliest_seq} to {state.head_seq}" if state.count else f"none live, head {state.head_seq}"
    yield "synced", str(state.synced_seq)
    if state.bucket_seq is not None:
        yield "in the bucket", str(state.bucket_seq)
    yield "epoch", str(state.epoch)
    yield "priority", str(state.effective_priority)
    yield "last write", moment(state.last_write_ts)
    yield "last read", moment(state.last_read_ts)
    for name, token in sorted(state.fences.items()):
        yield "fence", f"{printable(name)}: {token}"
    if state.queue is not None:
        jobs = f"{count(state.queue.ready)} ready, {count(state.queue.in_flight)} in flight"
        yield "jobs", f"{jobs}, {count(state.queue.delayed)} delayed"
        yield "dead-lettered", f"{count(state.queue.dead_lettered)} so far"


def _config_facts(config: TopicConfig) -> Iterator[tuple[str, str]]:
    from msgspec.structs import asdict  # noqa: PLC0415

    for field, value in asdict(config).items():
        if value is None:
            yield field, DAEMON if field in _LIMITS else "none"
        elif isinstance(value, bool):
            yield field, "yes" if value else "no"
        elif value == 0 and field in _OFF_AT_0:
            yield field, "off"
        elif value == 0 and field == "null_ttl_ms":
            yield field, "for ever"
        elif field.endswith("_ms"):
            yield field, duration(value)
        elif field in ("schema", "retry", "rate", "max_in_flight_per_key"):
            yield field, json.dumps(value, ensure_ascii=False)
        elif field in ("cap_bytes", "segment_max_bytes"):
            yield field, f"{count(value)} ({size(value)})"
        else:
            yield field, str(value)


_OFF_AT_0: Final = frozenset(
    {"ttl_ms", "cap_records", "cap_bytes", "max_deliveries", "idempotency_window_ms", "claim_jitter_ms"}
    | {"segment_max_age_ms", "priority_aging_ms", "max_in_flight", "keep_per_tag"}
)

DAEMON: Final = "daemon"
"""A setting of segments that is that of the daemon."""
_LIMITS: Final = frozenset({"segment_max_events", "segment_max_bytes", "segment_max_age_ms", "compression"})


def print_routers(routers: list[RouterState]) -> None:
    """A table of routers."""
    columns = [Column("router"), Column("source"), Column("dest"), Column("filter")]
    columns += [Column("forwarded", right=True), Column("lag", right=True)]
    print_table(
        columns, ([*_router_names(router), count(router.forwarded_total), count(router.lag)] for router in routers)
    )


def _router_names(router: RouterState) -> tuple[str, str, str, str]:
    return router.router, router.source, router.dest, filter_text(router.filter)


def filter_text(found: Any) -> str:
    """A filter as it is shown: `-`, the tag, the prefix with its `*`, or the JSON of any other."""
    if found is None:
        return "-"
    is_match = isinstance(found, list) and found[:2] in (["tag", "Eq"], ["tag", "Glob"])
    return str(found[2]) if is_match else json.dumps(found, ensure_ascii=False)


# ----------------------------------------------------------------- create and set


class Priority(click.ParamType[Any]):
    """A number, or `none`, which is handed on as the text and becomes null."""

    name = "priority"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.lower() in NONE:
            return "none"
        return click.INT.convert(value, param, ctx)


class SchemaFile(click.ParamType[Any]):
    """A file with a JSON Schema, or `none`, which is handed on as the text and becomes null."""

    name = "schema"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value.lower() in NONE:
            return "none" if isinstance(value, str) else value
        try:
            return json.loads(Path(value).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            self.fail(f"{value!r} holds no JSON: {error}", param, ctx)


class Limit(click.ParamType[Any]):
    """A limit of segments, or `daemon`, which is handed on as the text and becomes null."""

    def __init__(self, kind: click.ParamType[int]) -> None:
        self.kind = kind
        self.name = kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.lower() == DAEMON:
            return DAEMON
        return self.kind.convert(value, param, ctx)


_CONFIG_OPTIONS: Final = (
    click.option("--ttl", "--ttl-ms", "ttl_ms", type=Duration(off=True), help="How long records live."),
    click.option("--cap-records", type=Count(), help="Largest number of live records."),
    click.option("--cap-bytes", type=Size(off=True), help="Largest size of its live records."),
    click.option(
        "--discard",
        type=click.Choice(["old", "reject"]),
        help="At a cap: drop the oldest records, or refuse appends.",
    ),
    click.option("--durability", type=click.Choice(CLASSES), help="Durability class: what an append waits for."),
    click.option("--durable/--no-durable", default=None, help="Short for --durability fsync or disk."),
    click.option("--priority", type=Priority(), help="Priority of delivery, -1000 to 1000."),
    click.option(
        "--auto-priority/--no-auto-priority", default=None, help="Without --priority: priority by recent use."
    ),
    click.option(
        "--auto-create/--no-auto-create",
        default=None,
        help="Stored and shown; used only in an append's `config`.",
    ),
    click.option(
        "--idempotency-window",
        "--idempotency-window-ms",
        "idempotency_window_ms",
        type=Duration(off=True),
        help="How long the repeat of an append is recognised.",
    ),
    click.option("--dedupe-node/--no-dedupe-node", default=None, help="Let reads leave out the records of a node."),
    click.option("--lease", "--lease-ms", "lease_ms", type=Duration(), help="Queue: how long a job is leased."),
    click.option(
        "--claim-jitter",
        "--claim-jitter-ms",
        "claim_jitter_ms",
        type=Duration(off=True),
        help="Queue: how long claims are gathered before jobs are given out.",
    ),
    click.option("--max-deliveries", type=Count(), help="Queue: how often a job is given out at most."),
    click.option(
        "--dead-letter",
        metavar="TOPIC",
        shell_complete=complete_topics,
        help="Queue: topic for jobs that were delivered that often.",
    ),
    click.option(
        "--completed",
        metavar="TOPIC",
        shell_complete=complete_topics,
        help="Queue: topic for the results of acked jobs.",
    ),
    click.option(
        "--retry",
        type=JsonObject("backoff", "delay_ms", "max_delay_ms", "jitter"),
        metavar="JSON",
        help="Queue: delays after failures, such as "
        '\'{"backoff": "exponential", "delay_ms": 1000, "max_delay_ms": 60000}\'; `none` removes them.',
    ),
    click.option(
        "--priority-aging",
        "--priority-aging-ms",
        "priority_aging_ms",
        type=Duration(off=True),
        help="Queue: a job counts as one priority higher for each such time.",
    ),
    click.option("--max-in-flight", type=Count(), help="Queue: how many jobs are leased at most."),
    click.option(
        "--rate",
        type=JsonObject("jobs", "per_ms"),
        metavar="JSON",
        help='Queue: how many jobs are claimed at most, such as \'{"jobs": 10, "per_ms": 1000}\'; `none` removes it.',
    ),
    click.option(
        "--retention",
        type=click.Choice(["limits", "consumed"]),
        help="consumed: delete what all consumers and routers of the topic have passed.",
    ),
    click.option("--keep-per-tag", type=Count(), help="Keep only the newest so many records of each tag."),
    click.option(
        "--null-ttl",
        "--null-ttl-ms",
        "null_ttl_ms",
        type=Duration(off=True),
        help="With --keep-per-tag: how long records with the data null are kept; `none` keeps them for ever.",
    ),
    click.option(
        "--leases-durable/--no-leases-durable",
        default=None,
        help="Queue: sync leases before a claim is answered.",
    ),
    click.option(
        "--order-by",
        type=click.Choice(["tag", "node", *NONE]),
        help="Queue: give out the jobs of one tag or node one at a time, in their order.",
    ),
    click.option(
        "--max-in-flight-per-key",
        type=JsonObject("by", "max"),
        metavar="JSON",
        help="Queue: how many jobs of one tag or node are leased at most, such as "
        '\'{"by": "tag", "max": 2}\'; `none` removes it.',
    ),
    click.option(
        "--schema",
        type=SchemaFile(),
        metavar="FILE",
        help="File with a JSON Schema for the data of records; `none` removes it.",
    ),
    click.option("--segment-max-events", type=Limit(Count()), help="Records of a segment; `daemon` for its setting."),
    click.option("--segment-max-bytes", type=Limit(Size()), help="Bytes of a segment; `daemon` for its setting."),
    click.option(
        "--segment-max-age",
        "--segment-max-age-ms",
        "segment_max_age_ms",
        type=Limit(Duration(off=True)),
        help="Age at which a segment is sealed; `daemon` for its setting.",
    ),
    click.option(
        "--compression",
        type=click.Choice(["zstd", "off", DAEMON]),
        help="Whether sealed segments are compressed; `daemon` for its setting.",
    ),
    click.option(
        "--evidence/--no-evidence",
        default=None,
        help="Keep a Merkle tree, which proves that nothing was rewritten (--durability fsync).",
    ),
)
"""An option for each setting of a topic that can be changed, named after its field in the interface."""


def config_options(command: Command) -> Command:
    """Add the options for the settings of a topic. An option that is not given is None."""
    for decorate in reversed(_CONFIG_OPTIONS):
        command = decorate(command)
    return command


def _said(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the interface takes them."""
    said = {field: value for field, value in config.items() if value is not None}
    for field in (
        "priority",
        "dead_letter",
        "completed",
        "order_by",
        "schema",
        "retry",
        "rate",
        "max_in_flight_per_key",
    ):
        if isinstance(said.get(field), str) and said[field].lower() in NONE:
            said[field] = None
    for field in _LIMITS & said.keys():
        said[field] = None if said[field] == DAEMON else said[field]
    return said


_ABOUT_VALUES: Final = """
    Durations are numbers with ms, s, m, h, d or w (`7d`, `1h30m`), milliseconds without; sizes take kB, MB, GB, KiB,
    MiB, GiB. `none` switches off what has a limit, and takes a priority or a dead-letter topic away."""


@click.command(
    epilog=examples(
        "topics create orders --ttl 7d --cap-bytes 10GB",
        "topics create jobs --type queue --lease 1m --max-deliveries 5 --dead-letter jobs-dead",
        "topics create payments audit --durability fsync",
    ),
    help=f"""Create topics, with defaults for options that are not given.

    If a topic exists, only the given options are changed, as with `set`.
    {_ABOUT_VALUES}""",
)
@names_argument
@click.option("--type", type=click.Choice(["log", "queue"]), help="Kind of topic; cannot be changed later.")
@config_options
@client_options
@click.pass_obj
def create(options: CommandOptions, /, names: tuple[str, ...], **config: Any) -> None:
    with connect(options) as client:
        _change(options, names, lambda name: client.create(name, **_said(config)))


@click.command(
    "set",
    epilog=examples("topics set orders --ttl 30d", "topics set orders --ttl none --cap-records 1000000"),
    help=f"""Change the configuration of topics.

    Options that are not given stay as they are. A missing topic is not created (exit code 3).

    A shorter time to live or a smaller cap applies to stored records at once.
    {_ABOUT_VALUES}""",
)
@names_argument
@config_options
@client_options
@click.pass_obj
def set_(options: CommandOptions, /, names: tuple[str, ...], **config: Any) -> None:
    said = _said(config)
    if not said:
        raise click.UsageError("There is nothing to set: name at least one setting.")
    with connect(options) as client:
        _change(options, names, lambda name: client.update(name, **said))


def _change(options: CommandOptions, names: tuple[str, ...], change: Callable[[str], TopicChanged]) -> None:
    """Change all topics that are named, and print the result of each."""
    with json_results(as_json=options.as_json, many=len(names) > 1) as changed:

        def one(name: str) -> None:
            done = change(name)
            changed.append(done)
            if not options.as_json:
                what = "created" if done.created else "configured"
                print_line(f"{printable(done.topic)}: {what} ({done.config.type}, {done.config.durability})")

        for_each(names, one)


# ----------------------------------------------------------------- rm


@click.command(epilog=examples("topics rm orders", "topics rm --yes --if-empty orders-1 orders-2"))
@names_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--if-empty", is_flag=True, help="Delete only topics without live records.")
@client_options
@click.pass_obj
def rm(options: CommandOptions, names: tuple[str, ...], yes: bool, if_empty: bool) -> None:
    """Delete topics, with their records and routers.

    On a terminal it asks first. A missing topic is a failure (exit code 3).
    """
    confirm(f"Delete {', '.join(names)}, with all records and routers?", yes=yes)
    with connect(options) as client, json_results(as_json=options.as_json, many=len(names) > 1) as removed:

        def one(name: str) -> None:
            done = client.delete_topic(name, if_empty=if_empty)
            removed.append(done)
            if not done.deleted:
                raise CommandFailure(f"topic {name!r} does not exist", EXIT_NOT_FOUND)
            if not options.as_json:
                routers = f", with routers {', '.join(done.routers_removed)}" if done.routers_removed else ""
                print_line(printable(f"{name}: deleted{routers}"))

        for_each(names, one)


# ----------------------------------------------------------------- seal


@click.command(epilog=examples("topics seal orders"))
@names_argument
@client_options
@click.pass_obj
def seal(options: CommandOptions, names: tuple[str, ...]) -> None:
    """Seal the active segment of topics.

    The daemon takes a checkpoint. Afterwards all records that could be read before are in sealed segments.
    """
    with connect(options) as client, json_results(as_json=options.as_json, many=len(names) > 1) as sealed:

        def one(name: str) -> None:
            done = client.seal(name)
            sealed.append(done)
            if not options.as_json:
                segments = f"{count(done.segments)} segment{'' if done.segments == 1 else 's'}"
                print_line(f"{printable(done.topic)}: sealed, {segments}")

        for_each(names, one)
