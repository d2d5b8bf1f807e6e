"""`topics read` and `topics tail`: records on standard output, from the beginning, from the end, and as they come.

Responsible for where reading begins and ends, and for the selection of records. Lines are made by
`topics.cli.records.record_lines`'s business; going on over broken connections is the client's.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

import click

from topics.cli import failures
from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.output import on_terminal
from topics.cli.values import filter_json

if TYPE_CHECKING:
    from topics.cli.records.record_lines import Style, Value
    from topics.client import Client
    from topics.client.errors import TopicsError
    from topics.client.results import Record, Tombstone

Command = TypeVar("Command", bound=Callable[..., Any])

MAX_LAST: Final = 1_000_000
"""A bound for memory: to find the first of the last records, their seqs are kept."""
MAX_FOLLOWED: Final = 256
"""The number of topics that a daemon allows in one watch by default."""
TOO_SLOW: Final = 408


# ----------------------------------------------------------------- what is shown


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Which records are shown. The daemon leaves out nodes; tags are compared here."""

    nodes: tuple[str, ...] = ()
    tag: str | None = None
    tag_prefix: str | None = None
    meta: bool = True
    filter: str | None = None
    """The JSON of a filter, which the daemon applies."""

    @property
    def is_everything(self) -> bool:
        return not self.nodes and self.filter is None and self.tag is None and self.tag_prefix is None

    def takes(self, record: Record) -> bool:
        if self.tag is not None and record.tag != self.tag:
            return False
        return self.tag_prefix is None or (record.tag is not None and record.tag.startswith(self.tag_prefix))

    def read(self, client: Client, topic: str, after: int, to_seq: int | None = None) -> Iterator[Record | Tombstone]:
        """Yield the selected records after `after` up to `to_seq`, and all tombstones."""
        from topics.client.results import Record  # noqa: PLC0415

        for value in client.read(
            topic, after, to_seq=to_seq, node=self.nodes, include_meta=self.meta, filter=self.filter
        ):
            if not isinstance(value, Record) or self.takes(value):
                yield value


def selection_options(command: Command) -> Command:
    """Add the options that select records. The command gets `node`, `tag`, `tag_prefix`, `filter_text`, `no_meta` and
    `data_only`."""
    for decorate in (
        click.option("--data-only", is_flag=True, help="Print the data alone, as it was appended, a line each."),
        click.option("--no-meta", is_flag=True, help="Leave metadata out."),
        click.option(
            "--filter",
            "filter_text",
            metavar="TEXT",
            callback=filter_json,
            help="Only records that match, such as 'tag ~ \"eu:*\" and data./total >= 10' (docs, filters).",
        ),
        click.option(
            "--tag-prefix", metavar="PREFIX", help="Only records whose tag begins with this (filtered by the command)."
        ),
        click.option("--tag", metavar="TAG", help="Only records with this tag (filtered by the command)."),
        click.option("--node", metavar="NODE", multiple=True, help="Leave out records of this node; may be repeated."),
    ):
        command = decorate(command)
    return command


def style_of(options: CommandOptions, *, data_only: bool) -> Style:
    if data_only:
        if options.as_json:
            raise click.UsageError("--data-only and --json do not go together.")
        return "data"
    return "lines" if on_terminal() and not options.as_json else "ndjson"


# ----------------------------------------------------------------- where to begin


class TopicRange(NamedTuple):
    """A part of a topic: the records after `after` up to and including `head`. `epoch` is the instance of the topic
    that these seqs belong to."""

    after: int
    head: int
    epoch: int


def last(client: Client, topic: str, wanted: int, selection: RecordSelection) -> TopicRange:
    """The part of the topic that holds the last `wanted` selected records, as of now. Where records were deleted or are
    not selected, it reads from further and further back."""
    from topics.client.results import Record  # noqa: PLC0415

    state = client.state(topic, touch=False)
    head, floor, epoch = state.head_seq, state.earliest_seq - 1, state.epoch
    if wanted == 0:
        return TopicRange(head, head, epoch)
    if selection.is_everything and state.count == head - floor:
        return TopicRange(max(head - wanted, floor), head, epoch)
    reach = wanted
    while True:
        after = max(head - reach, floor)
        found = selection.read(client, topic, after, head)
        seqs = deque((value.seq for value in found if isinstance(value, Record)), maxlen=wanted)
        if len(seqs) == wanted:
            return TopicRange(seqs[0] - 1, head, epoch)
        if after == floor:
            return TopicRange(floor, head, epoch)
        reach *= 4


# ----------------------------------------------------------------- read


@click.command(
    epilog=examples(
        "topics read orders",
        "topics read orders --last 10",
        "topics read orders --from-seq 1000 --limit 100 --tag customer:7",
        "topics read orders --seq 1000",
        "topics read orders --data-only | jq .total",
        "topics read pictures --seq 7 --bytes > cat.png",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--seq", type=click.IntRange(min=1), metavar="SEQ", help="Only the record with this seq.")
@click.option("--bytes", "as_bytes", is_flag=True, help="With --seq, only the raw bytes of the record, as they were.")
@click.option(
    "--from-seq",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Begin after this seq: the last one that you have seen.",
)
@click.option("--to-seq", type=click.IntRange(min=1), metavar="SEQ", help="End with this seq.")
@click.option("--last", "last_n", type=click.IntRange(0, MAX_LAST), metavar="N", help="Only the last N records.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N records.")
@selection_options
@client_options
@click.pass_obj
def read(
    options: CommandOptions,
    topic: str,
    seq: int | None,
    as_bytes: bool,
    from_seq: int | None,
    to_seq: int | None,
    last_n: int | None,
    limit: int | None,
    node: tuple[str, ...],
    tag: str | None,
    tag_prefix: str | None,
    filter_text: str | None,
    no_meta: bool,
    data_only: bool,
) -> None:
    """Print the records of a topic, from the earliest to where there is no more.

    A line each: for people on a terminal; as NDJSON with --json or into a pipe, with the data as it was appended, byte
    for byte. Where records are gone that nobody has deleted there is a line that says so ({"$tombstone": ...} in
    NDJSON; on stderr with --data-only). With --seq the command fails if the record is not there, and says why.
    """
    if seq is not None and (
        node or any(given is not None for given in (from_seq, to_seq, last_n, limit, tag, tag_prefix, filter_text))
    ):
        raise click.UsageError("--seq goes with no other option that selects records.")
    if as_bytes:
        if seq is None or data_only or no_meta or options.as_json:
            raise click.UsageError("--bytes goes with --seq, and with no other option about what is printed.")
        _write_bytes(options, topic, seq)
        return
    if last_n is not None and (from_seq is not None or to_seq is not None):
        raise click.UsageError("--last does not go with --from-seq or --to-seq.")
    style = style_of(options, data_only=data_only)
    selection = RecordSelection(node, tag, tag_prefix, not no_meta, filter_text)
    from topics.cli.records.record_lines import printer  # noqa: PLC0415
    from topics.client.results import Record  # noqa: PLC0415

    show = printer(style, named=False, prompt=on_terminal())
    with connect(options) as client:
        if seq is not None:
            record = client.record(topic, seq)
            if no_meta:
                record.meta = {}
            show(record)
            return
        if last_n is not None:
            from_seq, to_seq, _ = last(client, topic, last_n, selection)
        left = limit
        for value in selection.read(client, topic, from_seq or 0, to_seq):
            show(value)
            if left is not None and isinstance(value, Record):
                left -= 1
                if not left:
                    return


def _write_bytes(options: CommandOptions, topic: str, seq: int) -> None:
    """Write the raw bytes of a record to standard output."""
    if on_terminal():
        raise click.UsageError("--bytes writes raw bytes, which are for a file or a pipe.")
    with connect(options) as client:
        record = client.record(topic, seq)
    if record.content_type is None:
        raise failures.CommandFailure(f"record {seq} of {topic!r} is JSON, no raw bytes")
    sys.stdout.buffer.write(record.content)
    sys.stdout.buffer.flush()


# ----------------------------------------------------------------- tail


@click.command(
    epilog=examples(
        "topics tail orders",
        "topics tail -f orders payments",
        "topics tail -f --prefix shop. -n 0",
        "topics tail -f --from-start orders --json | jq .data",
    ),
)
@click.argument("topics", nargs=-1, shell_complete=complete_topics, metavar="[TOPIC]...")
@click.option("--follow", "-f", is_flag=True, help="Go on with new records, until Ctrl-C.")
@click.option(
    "--lines",
    "-n",
    "last_n",
    type=click.IntRange(0, MAX_LAST),
    metavar="N",
    help="Begin with the last N records of each topic.  [10]",
)
@click.option("--from-seq", type=click.IntRange(min=0), metavar="SEQ", help="Begin after this seq.")
@click.option("--from-start", is_flag=True, help="Begin with the earliest record.")
@click.option(
    "--prefix", metavar="PREFIX", help="Also all topics whose names begin with this; with -f those made later, too."
)
@click.option("--create", is_flag=True, help="With -f, wait for topics that do not exist yet. Creates none.")
@selection_options
@client_options
@click.pass_obj
def tail(
    options: CommandOptions,
    topics: tuple[str, ...],
    follow: bool,
    last_n: int | None,
    from_seq: int | None,
    from_start: bool,
    prefix: str | None,
    create: bool,
    node: tuple[str, ...],
    tag: str | None,
    tag_prefix: str | None,
    filter_text: str | None,
    no_meta: bool,
    data_only: bool,
) -> None:
    """Print the last records of topics, and with -f new records as they are appended.

    Lines are those of `topics read`; with several topics or --prefix they begin with the name of the topic ("topic" in
    NDJSON). With -f nothing is missed or repeated between the last records and the new ones, nor when the connection
    breaks or the daemon restarts: it goes on by itself, and says so on stderr. A topic that is deleted has a line that
    says so ({"$deleted": ...} in NDJSON). When no topic is left the exit code is 3; with --prefix the command goes on
    with topics that are made later, from their first record. With --create a topic that is not there yet is shown from
    its first record on once somebody has made it; without, it is not found (3). Ctrl-C ends it with 0.
    """
    if sum((last_n is not None, from_seq is not None, from_start)) > 1:
        raise click.UsageError("Only one of -n, --from-seq and --from-start can be given.")
    if not topics and prefix is None:
        raise click.UsageError("Name a topic, or give --prefix.")
    if create and not follow:
        raise click.UsageError("--create waits for topics: it needs -f.")
    style = style_of(options, data_only=data_only)
    selection = RecordSelection(node, tag, tag_prefix, not no_meta, filter_text)
    try:
        with connect(options) as client:
            names = _names(client, topics, prefix, may_come=follow)
            if follow and len(names) > MAX_FOLLOWED:
                raise failures.CommandFailure(f"{len(names)} topics are too many to follow: {MAX_FOLLOWED} at most")
            from topics.cli.records.record_lines import printer  # noqa: PLC0415

            show = printer(style, named=prefix is not None or len(names) > 1, prompt=follow or on_terminal())
            chosen = from_seq is not None or from_start
            wanted = 0 if chosen else 10 if last_n is None else last_n
            if follow:
                starts: dict[str, int | tuple[int, int]] = {}
                for name in names:
                    stretch = _last_or_nothing(client, name, wanted, selection, create=create)
                    starts[name] = from_seq or 0 if chosen else (stretch.after, stretch.epoch)
                _follow(client, starts, selection, show, create=create, prefix=prefix)
            for name in names:
                stretch = last(client, name, wanted, selection)
                for value in selection.read(client, name, from_seq or 0 if chosen else stretch.after, stretch.head):
                    show(value)
    except KeyboardInterrupt:
        if not follow:
            raise


def _names(client: Client, topics: tuple[str, ...], prefix: str | None, *, may_come: bool) -> list[str]:
    """The topics that were named, each once, and those that begin with `prefix`. Raises Failed if there is none, unless
    one `may_come` later."""
    names = list(dict.fromkeys(topics))
    if prefix is not None:
        names += [found.topic for found in client.list_all(prefix=prefix) if found.topic not in topics]
    if not names and not may_come:
        raise failures.CommandFailure(f"no topic begins with {prefix!r}", failures.EXIT_NOT_FOUND)
    return names


def _last_or_nothing(
    client: Client, topic: str, wanted: int, selection: RecordSelection, *, create: bool
) -> TopicRange:
    """As `last`; with `create` a topic that does not exist counts as empty."""
    from topics.client.errors import NotFound  # noqa: PLC0415

    try:
        return last(client, topic, wanted, selection)
    except NotFound:
        if not create:
            raise
        return TopicRange(0, 0, 0)


def _follow(
    client: Client,
    starts: Mapping[str, int | tuple[int, int]],
    selection: RecordSelection,
    show: Callable[[Value], None],
    *,
    create: bool,
    prefix: str | None,
) -> NoReturn:
    """Show the records of topics and new ones as they are appended, until all topics are deleted; then raise Failed.
    With `create` it waits for topics that do not exist. With a prefix it also follows topics that are made later, and
    does not end. Raises BrokenPipeError when nobody reads standard output."""
    from topics.client.results import Record, TopicAdded, TopicsLeftOut  # noqa: PLC0415

    told = False

    def on_break(error: TopicsError, _wait_s: float) -> None:
        nonlocal told
        # The daemon has ended the stream because the reader of our lines is slow: no failure to tell of.
        if not told and getattr(error, "status", None) != TOO_SLOW:
            failures.tell(f"the connection is lost and tried again: {failures.message(error)}")
            told = True

    def on_resume() -> None:
        nonlocal told
        if told:
            failures.tell("connected again; going on where it was")
            told = False

    with client.watch(
        starts,
        prefixes=() if prefix is None else (prefix,),
        node=selection.nodes,
        include_meta=selection.meta,
        filter=selection.filter,
        create=create,
        on_break=on_break,
        on_resume=on_resume,
    ) as following:
        watch_reader(following.close)
        for value in following:
            if isinstance(value, TopicsLeftOut):
                failures.tell(f"{value.count} topics are too many to follow: {', '.join(value.topics)}")
            elif not isinstance(value, TopicAdded) and (not isinstance(value, Record) or selection.takes(value)):
                show(value)
    if reader_has_gone():
        raise BrokenPipeError
    raise failures.CommandFailure("no topic is left to follow", failures.EXIT_NOT_FOUND)


def reader_has_gone(*, wait: bool = False) -> bool:
    """Return True if standard output is a pipe that nobody reads any more. With `wait`, wait until it is."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are always told
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(None if wait else 0))


def watch_reader(gone: Callable[[], object]) -> None:
    """Call `gone`, in a thread of its own, when standard output is a pipe and nobody reads it any more. Without this
    the command would notice only when it writes the next line. The thread ends with the process."""
    if stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
        threading.Thread(target=lambda: reader_has_gone(wait=True) and gone(), daemon=True).start()
