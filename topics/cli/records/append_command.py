"""`topics append`: records out of arguments, or out of standard input as it comes.

Responsible for the options, for reading standard input as it comes, and for the summary at the end. Records are made by
`topics.cli.records.record_input`, and sent by `topics.cli.records.append_sinks`.
"""

from __future__ import annotations

import math
import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click

from topics.cli import failures
from topics.cli.app import CommandOptions, client_options, complete_topics, connect, examples
from topics.cli.output import ProgressBar, count, print_json, progress
from topics.cli.stop_signals import StopSignal, stopping
from topics.cli.values import Duration, KeyValue, Time

if TYPE_CHECKING:
    from topics.cli.records.append_sinks import Sink
    from topics.cli.records.record_input import Form, Line, Parser
    from topics.client import Client
    from topics.client.results import Appended

LINGER_MS: Final = 50
PIECE_BYTES: Final = 1 << 18
LOOK_S: Final = 0.05
"""How often to look for failed batches while no input comes, in seconds."""
GIVE_UP_AFTER_S: Final = 60.0
"""How long a batch of lines is repeated by default, in seconds. Below the idempotency window of a topic (120 s by
default)."""
MAX_KEY: Final = 240
"""The longest --key. The rest of the 256 characters of an idempotency key is for the number of a batch."""
MAX_RAW_BYTES: Final = 1 << 30
"""The highest TOPICS_MAX_RECORD_BYTES."""
MAX_DIGITS: Final = 20
"""Digits of a seq or token at most."""
STDIN: Final = 0


@dataclass(slots=True)
class AppendSummary:
    """The records that are known to be appended."""

    topic: str
    first_seq: int | None = None
    last_seq: int | None = None
    count: int = 0
    repeated: int = 0
    """Records that an earlier append with the same key has appended."""
    duplicates: int = 0
    """Records that were not appended, because a job with their unique key is there."""

    def add(self, first_seq: int | None, last_seq: int | None, count: int, *, repeated: bool = False) -> None:
        """Add a batch. Batches are added in the order of their seqs."""
        if self.first_seq is None:
            self.first_seq = first_seq
        self.last_seq = last_seq
        self.count += count
        if repeated:
            self.repeated += count

    def document(self) -> dict[str, Any]:
        """The summary as `--json` prints it."""
        document = asdict(self)
        if not self.duplicates:
            del document["duplicates"]
        return document


class Expected(click.ParamType[tuple[str, int]]):
    """`NAME=N`: a tag and a seq, or a fence and a token."""

    name = "name=number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        name, equals, number = value.rpartition("=")
        if not equals or not name or not (number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS):
            self.fail(f"{value!r} is not of the form NAME=NUMBER", param, ctx)
        return name, int(number)


class Delimiter(click.ParamType[str]):
    """One character, or `tab`."""

    name = "character"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = {"tab": "\t", "\\t": "\t"}.get(value, str(value))
        if len(text) != 1 or text in '\r\n"\0':
            self.fail(f"{value!r} is not one character", param, ctx)
        return text


@click.command(
    epilog=examples(
        "topics append greetings hello 'good morning'",
        "topics append orders --ndjson '{\"id\": 1}' --tag customer:7",
        "tail -F /var/log/syslog | topics append syslog --node $(hostname)",
        "topics append people --csv --tag-field city < people.csv",
        "topics append orders --ndjson --key upload-2026-11-21 < orders.ndjson",
        "topics read orders | topics append copy-of-orders --records",
        "topics append pictures --content-type image/png --tag cat < cat.png",
    ),
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("given", nargs=-1, metavar="[RECORD]...")
@click.option("--ndjson", "form", flag_value="ndjson", help="Each argument or line is a JSON value.")
@click.option(
    "--records",
    "form",
    flag_value="records",
    help="Each is a whole record as JSON: data, and tag, node, meta, for queues also delay_ms, not_before and "
    "priority. What `topics read` prints is taken too; "
    "tombstones in it are skipped.",
)
@click.option(
    "--csv",
    "form",
    flag_value="csv",
    help="Standard input is CSV with a header line. Each row becomes an object of strings.",
)
@click.option(
    "--delimiter", type=Delimiter(), default=",", metavar="CHAR", help="Separator in CSV: a character, or tab.  [,]"
)
@click.option(
    "--content-type",
    metavar="TYPE",
    help="All of standard input is one record of raw bytes of this type: application/octet-stream, application/cbor, "
    "application/protobuf, image/..., audio/... or video/....",
)
@click.option("--tag", metavar="TAG", help="The tag of records that have none themselves.")
@click.option("--node", metavar="NODE", help="The node of records that have none themselves.")
@click.option("--meta", type=KeyValue(), multiple=True, metavar="KEY=VALUE", help="Metadata; may be repeated.")
@click.option(
    "--delay", "--delay-ms", "delay_ms", type=Duration(), metavar="TIME", help="Queue: claim it this much later."
)
@click.option("--not-before", type=Time(), metavar="TIME", help="Queue: claim it at this time or later.")
@click.option("--priority", type=click.IntRange(0, 9), metavar="N", help="Queue: 0 to 9, higher ones first.  [5]")
@click.option("--unique-key", metavar="KEY", help="Queue: append the one RECORD unless a job with this key is there.")
@click.option(
    "--unique-scope",
    type=click.Choice(["queued", "unfinished", "window"]),
    help="Which job counts: one that waits, one that is there, one of the last --unique-window.  [unfinished]",
)
@click.option("--unique-window", type=Duration(), metavar="TIME", help="How long ago a job may have been appended.")
@click.option("--tag-field", metavar="FIELD", help="Take the tag from this field of the JSON object or CSV row.")
@click.option("--node-field", metavar="FIELD", help="Take the node from this field.")
@click.option("--create/--no-create", default=True, help="Create the topic if it is missing.  [create]")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Idempotency key of the whole input, given once: while the topic remembers it (its idempotency window, "
    "2 minutes by default), the same append can be repeated and happens once. Standard input goes in batches under "
    "KEY/0, KEY/1, ..., which break by content alone: repeat it with the same --batch.",
)
@click.option(
    "--expected-head-seq",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Append the arguments only if this is the last seq of the topic; 0: nothing was ever written.",
)
@click.option(
    "--expected-tag-seq",
    "expected_tag_seqs",
    type=Expected(),
    multiple=True,
    metavar="TAG=SEQ",
    help="Append the arguments only if the newest live record with the tag has this seq; 0: there is none. May be "
    "repeated.",
)
@click.option(
    "--fence",
    type=Expected(),
    metavar="NAME=TOKEN",
    help="Append the arguments only if no higher token was seen under this name. This one becomes the highest.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=1000,
    metavar="N",
    help="Most lines in one append.  [1000]",
)
@click.option(
    "--linger",
    type=Duration(),
    metavar="TIME",
    help="How long a line may wait to share an append with others.  [50ms]",
)
@click.option(
    "--give-up-after",
    type=Duration(plain="s", off=True),
    metavar="TIME",
    help="How long to try while the daemon is away or refuses for the moment; off or 0: for ever. What is tried again "
    "after the idempotency window of the topic may arrive twice.  [60s for lines; records as arguments are tried once]",
)
@client_options
@click.pass_obj
def append(
    options: CommandOptions,
    topic: str,
    given: tuple[str, ...],
    form: Form | None,
    delimiter: str,
    content_type: str | None,
    tag: str | None,
    node: str | None,
    meta: tuple[tuple[str, str], ...],
    delay_ms: int | None,
    not_before: int | None,
    priority: int | None,
    unique_key: str | None,
    unique_scope: Literal["queued", "unfinished", "window"] | None,
    unique_window: int | None,
    tag_field: str | None,
    node_field: str | None,
    create: bool,
    keys: tuple[str, ...],
    expected_head_seq: int | None,
    expected_tag_seqs: tuple[tuple[str, int], ...],
    fence: tuple[str, int] | None,
    batch: int,
    linger: int | None,
    give_up_after: int | None,
) -> None:
    """Append records: the arguments, or without any the lines of standard input.

    Arguments become one append, all or none. Lines are sent as they come, in order; an unfinished last line counts. By
    default each is text and becomes a JSON string, an empty line the empty string; empty lines between JSON values or
    CSV rows are skipped. A line of which no record can be made ends the input: what stands before it is appended, and
    the exit code is 1. With --key, only whole batches before it are. What the daemon refuses takes its batch with it;
    nothing after that is appended.

    Arguments and raw bytes may be appended under conditions. If one does not hold, nothing is appended (exit code 5).

    Ctrl-C ends the input too: what was read is appended. How much was appended is said on stderr, with --json on stdout
    as {topic, first_seq, last_seq, count}.
    """
    key = only_key(keys)
    _check(options, given, form, tag_field or node_field, key, linger)
    conditions = AppendConditions(expected_head_seq, dict(expected_tag_seqs) or None, fence)
    patience_s = None if give_up_after is None else give_up_after / 1000 or math.inf
    summary = AppendSummary(topic)
    if content_type is not None:
        takes_lines = bool(given or form or tag_field or node_field) or linger is not None
        _check_bytes((delay_ms, not_before, priority), takes_lines=takes_lines)
        described = {"tag": tag, "node": node, "meta": dict(meta), "create": create, **conditions._asdict()}
        _append_bytes(options, content_type, described, summary, key=key, patience_s=patience_s)
        return
    _check_arguments(given, conditions, (unique_key, unique_scope, unique_window))
    from topics.cli.records.record_input import Parser  # noqa: PLC0415
    from topics.client import Unique  # noqa: PLC0415

    parser = Parser(
        form=form or "text",
        tag=tag,
        node=node,
        meta=dict(meta),
        delay_ms=delay_ms,
        not_before=not_before,
        priority=priority,
        unique=Unique(unique_key, unique_scope or "unfinished", unique_window) if unique_key else None,
        tag_field=tag_field,
        node_field=node_field,
        delimiter=delimiter,
        skip_empty=not given,
    )
    if given:
        _append_arguments(options, parser, given, summary, conditions, create=create, key=key, patience_s=patience_s)
        return
    sending = AppendRun(
        key=key,
        batch=batch,
        linger_ms=LINGER_MS if linger is None else linger,
        create=create,
        give_up_after_s=GIVE_UP_AFTER_S if patience_s is None else patience_s,
    )
    sys.exit(_append_input(options, parser, summary, sending))


class AppendConditions(NamedTuple):
    """The conditions of an append, by the names of the client's arguments."""

    expected_head_seq: int | None = None
    expected_tag_seqs: dict[str, int] | None = None
    fence: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRun:
    """How the lines of standard input are sent."""

    key: str | None
    """Idempotency key of the whole input."""
    batch: int
    """At most so many lines go together."""
    linger_ms: float
    """How long a line may wait for others, without a key."""
    create: bool
    """Create the topic if it is missing."""
    give_up_after_s: float
    """How long a batch is repeated, `math.inf` for ever."""


def _append_input(options: CommandOptions, parser: Parser, summary: AppendSummary, sending: AppendRun) -> int:
    """Append the lines of standard input, and tell how many were appended, also after an error. Returns the exit
    code."""
    from topics.client import Retry  # noqa: PLC0415

    patience = Retry(give_up_after=sending.give_up_after_s)
    with connect(options, retry=patience) as client:
        # Before anything is read that could not be read again.
        _wait_for_daemon(client)
    with connect(options, retry=patience) as client, stopping() as stop:
        try:
            _append_lines(parser, _sink(client, summary, sending), stop)
        finally:
            _say(options, summary)
        return stop.exit_code


def _sink(client: Client, summary: AppendSummary, sending: AppendRun) -> Sink:
    from topics.cli.records.append_sinks import KeyedSink, LiveSink  # noqa: PLC0415

    if sending.key is not None:
        return KeyedSink(client, summary, key=sending.key, batch=sending.batch, create=sending.create)
    return LiveSink(
        client,
        summary,
        batch=sending.batch,
        linger_ms=sending.linger_ms,
        create=sending.create,
        give_up_after=sending.give_up_after_s,
    )


def _wait_for_daemon(client: Client) -> None:
    """Wait until the daemon answers, for as long as the client repeats calls. Raises a TopicsError if it does not."""
    from topics.client import TopicsError, daemon_calls  # noqa: PLC0415

    try:
        client.health()
    except TopicsError as error:
        retry = client.connection.retry
        assert retry is not None
        how_long = "" if math.isinf(retry.give_up_after) else f" for {retry.give_up_after:g} s"
        failures.tell(f"{failures.message(error)}; trying{how_long}")
        client.run(replace(daemon_calls.health(), probe=False))


def only_key(keys: tuple[str, ...]) -> str | None:
    """The key that was given, if one was. Several would leave it open which records are under which."""
    if len(keys) > 1:
        raise click.UsageError("--key is for all records of the command, and can be given once.")
    if keys and keys[0].startswith("--"):  # click takes the next option for the value
        raise click.UsageError(f"--key needs a value, and {keys[0]!r} looks like the next option.")
    return keys[0] if keys else None


def _check(
    options: CommandOptions,
    given: tuple[str, ...],
    form: str | None,
    fields: str | None,
    key: str | None,
    linger: int | None,
) -> None:
    """Refuse options that contradict each other."""
    if form == "csv" and given:
        raise click.UsageError("--csv reads standard input, and takes no records as arguments.")
    if fields is not None and form not in {"ndjson", "csv"}:
        raise click.UsageError("--tag-field and --node-field need --ndjson or --csv.")
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise click.UsageError(f"--key must have 1 to {MAX_KEY} characters.")
    if key is not None and linger is not None:
        raise click.UsageError("--linger does not go with --key, whose batches break by content alone.")
    if options.token_file == "-" and not given:
        raise click.UsageError("--token-file - and records cannot both come from standard input.")


def _check_bytes(for_jobs: tuple[int | None, ...], *, takes_lines: bool) -> None:
    """Refuse options that raw bytes cannot have. `takes_lines`: an option for lines or records is given."""
    if takes_lines:
        raise click.UsageError("--content-type makes one record of standard input, and takes no lines or records.")
    if any(option is not None for option in for_jobs):
        raise click.UsageError("--content-type does not go with --delay, --not-before and --priority.")


def _check_arguments(
    given: tuple[str, ...], conditions: AppendConditions, unique: tuple[str | None, str | None, int | None]
) -> None:
    """Refuse conditions without arguments, and the options of a unique key for anything but one argument."""
    if not given and conditions != AppendConditions():
        raise click.UsageError("Conditions are for records as arguments and for raw bytes, which become one append.")
    if unique != (None, None, None) and (len(given) != 1 or not unique[0]):
        raise click.UsageError(
            "--unique-key is for one RECORD as an argument; --unique-scope and --unique-window go with it."
        )


# ----------------------------------------------------------------- arguments


def _append_arguments(
    options: CommandOptions,
    parser: Parser,
    given: Iterable[str],
    summary: AppendSummary,
    conditions: AppendConditions,
    *,
    create: bool,
    key: str | None,
    patience_s: float | None,
) -> None:
    """Append the arguments, all or none, and tell so. `patience_s` is how long that is repeated; None: not at all."""
    from topics.client import Retry  # noqa: PLC0415

    patience = None if patience_s is None else Retry(give_up_after=patience_s)
    with connect(options, retry=patience) as client:
        _append_at_once(client, parser, given, summary, conditions, create=create, key=key)
    _say(options, summary)


def _append_at_once(
    client: Client,
    parser: Parser,
    given: Iterable[str],
    summary: AppendSummary,
    conditions: AppendConditions,
    *,
    create: bool,
    key: str | None,
) -> None:
    from topics.cli.records.record_input import BadInput, Line  # noqa: PLC0415

    lines = (Line(i, os.fsencode(argument)) for i, argument in enumerate(given, 1))
    try:
        records = [parsed.record for parsed in parser.parse(lines)]
    except BadInput as error:
        raise click.UsageError(f"RECORD number {error.number} {error.problem}") from None
    if not records:
        return
    told = conditions._asdict()
    if key is None:
        done = client.append(summary.topic, records, create=create, return_seqs=False, **told)
    else:
        done = client.append(summary.topic, records, create=create, return_seqs=False, idempotency_key=key, **told)
    _sum_up(summary, done, key, len(records))


def _sum_up(summary: AppendSummary, done: Appended, key: str | None, sent: int) -> None:
    """Add an append of `sent` records. Raises CommandFailure if its key was used for other records."""
    if done.count + len(done.duplicates) != sent:
        raise failures.CommandFailure(
            f"nothing was appended: the key {key!r} was used for {done.count} records before, and these are "
            f"{sent}. Another input needs another key",
            failures.EXIT_CONFLICT,
        )
    summary.add(done.first_seq, done.last_seq, done.count, repeated=done.deduped)
    summary.duplicates += len(done.duplicates)


# ----------------------------------------------------------------- raw bytes


def _append_bytes(
    options: CommandOptions,
    content_type: str,
    described: Mapping[str, Any],
    summary: AppendSummary,
    *,
    key: str | None,
    patience_s: float | None,
) -> None:
    """Append all of standard input as one record of raw bytes. `described` are further arguments of the client's call,
    and `patience_s` is how long it is repeated; None: not at all."""
    from topics.client import Retry  # noqa: PLC0415

    content = bytearray()
    while piece := os.read(STDIN, PIECE_BYTES):
        content += piece
        if len(content) > MAX_RAW_BYTES:
            raise failures.CommandFailure(f"standard input is larger than any record can be ({MAX_RAW_BYTES} bytes)")
    if key is not None:
        described = {**described, "idempotency_key": key}
    with connect(options, retry=None if patience_s is None else Retry(give_up_after=patience_s)) as client:
        try:
            done = client.append_bytes(summary.topic, content, content_type, **described)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        _sum_up(summary, done, key, 1)
    _say(options, summary)


# ----------------------------------------------------------------- lines


def _append_lines(parser: Parser, sink: Sink, stop: StopSignal) -> None:
    """Send what standard input says until it ends, or `stop` does. Raises what a batch failed with, and Failed for a
    line of which no record can be made."""
    from topics.cli.records.record_input import BadInput  # noqa: PLC0415

    bad: BadInput | None = None
    with sink, _progress() as bar:
        try:
            for number, record in parser.parse(_lines(stop, sink, bar)):
                sink.send(number, record)
        except BadInput as error:
            # A CSV row whose end nobody waited for is no mistake of the input.
            bad = error if stop.signal is None else None
        # Who has to wait for the end after that need not ask for it twice.
        sink.finish(whole=bad is None and stop.signal is None, late=stop.disarm)
    if bad is not None:
        raise failures.CommandFailure(f"line {bad.number} {bad.problem}")


def _lines(stop: StopSignal, sink: Sink, bar: ProgressBar) -> Iterator[Line]:
    """The lines of standard input as they come, until it ends or `stop` does: then without one that has not ended.

    Nothing is read ahead but one piece. Raises what a batch failed with, whether input comes or not.
    """
    from topics.cli.records.record_input import LineSplitter  # noqa: PLC0415

    splitter = LineSplitter()
    while stop.signal is None:
        under_way = sink.look()
        bar.say(f"{count(sink.summary.count)} records")
        ready, _, _ = select.select([STDIN, stop.descriptor], [], [], LOOK_S if under_way else None)
        if STDIN not in ready or stop.signal is not None:
            continue
        try:
            piece = os.read(STDIN, PIECE_BYTES)
        except BlockingIOError:
            continue
        if not piece:
            yield from splitter.end()
            return
        yield from splitter.feed(piece)
        bar.advance(len(piece))


def _progress() -> AbstractContextManager[ProgressBar]:
    """Bytes read of all there are, where standard input is a file; none where somebody types on the same terminal."""
    if os.isatty(STDIN):
        return nullcontext(ProgressBar())
    status = os.fstat(STDIN)
    return progress("0 records", total=status.st_size if stat.S_ISREG(status.st_mode) else None, unit="bytes")


# ----------------------------------------------------------------- the end


def _say(options: CommandOptions, summary: AppendSummary) -> None:
    """Tell what was appended, also after an error."""
    if options.as_json:
        print_json(summary.document())
        return
    text = "1 record" if summary.count == 1 else f"{count(summary.count)} records"
    text += f" appended to {summary.topic!r}"
    if summary.count:
        seqs = f"{summary.first_seq}" if summary.count == 1 else f"{summary.first_seq} to {summary.last_seq}"
        text += f" ({'seq' if summary.count == 1 else 'seqs'} {seqs})"
    if summary.repeated:
        text += f"; {count(summary.repeated)} of them by an earlier append with the same key"
    if summary.duplicates:
        text += f"; {count(summary.duplicates)} not, because a job with that unique key is there"
    failures.tell(text)
