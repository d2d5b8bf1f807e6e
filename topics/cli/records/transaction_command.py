"""`topics transaction`: appends to several topics, of which all are stored or none (`docs/spec/consumers.md` section
1).

Responsible for reading the appends, as lines or as the body of the call, and for telling the seqs. A body is sent byte
for byte as it is given; the daemon judges it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from topics.cli import failures
from topics.cli.app import CommandOptions, client_options, connect, examples
from topics.cli.output import Column, count, print_json, print_table
from topics.cli.records.append_command import STDIN, only_key

if TYPE_CHECKING:
    from topics.cli.records.record_input import Form
    from topics.client.calls import ClientCall
    from topics.client.results import NewRecord, TransactionCommitted

MAX_INPUT_BYTES: Final = 256 << 20
"""More than a daemon takes as a body (64 MiB by default)."""


class GivenAppend(msgspec.Struct):
    """The facts about an append in a body: its topic, and how many records it has."""

    topic: str
    records: list[msgspec.Raw]


class GivenBody(msgspec.Struct):
    """The facts about a body."""

    appends: list[GivenAppend]
    idempotency_key: str | None = None


@click.command(
    epilog=examples(
        "printf 'stock -1\\nbooked 7\\n' | topics transaction --ndjson --key sale-7",
        'printf \'stock {"data": -1, "tag": "apples"}\\nbooked {"data": 7}\\n\' | topics transaction --records',
        "topics transaction sale.json --json",
    )
)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-", metavar="[FILE]")
@click.option("--ndjson", "form", flag_value="ndjson", help="The data of each line is a JSON value.")
@click.option(
    "--records",
    "form",
    flag_value="records",
    help="The data of each line is a whole record as JSON: data, and tag, node, meta.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Idempotency key: while the first topic remembers it (its idempotency window, 2 minutes by default), the "
    "transaction can be repeated and happens once.",
)
@client_options
@click.pass_obj
def transaction(options: CommandOptions, file: str, form: Form | None, keys: tuple[str, ...]) -> None:
    """Append to 2 to 32 topics: all records are stored, or none.

    FILE, by default standard input, has one of two forms. Lines `TOPIC DATA` are one record each, in order. DATA is
    text and becomes a JSON string, unless an option says otherwise; empty lines are skipped. A file that begins with
    `{` is the body of POST /v0/transactions, which can have conditions:

    \b
        {"appends": [{"topic": "stock", "records": [{"data": -1}], "expected_head_seq": 41},
                     {"topic": "booked", "records": [{"data": 7}]}], "idempotency_key": "sale-7"}

    Printed are the seqs in each topic. If a condition does not hold, nothing is stored (exit code 5).
    """
    key = only_key(keys)
    if options.token_file == "-" and file == "-":
        raise click.UsageError("--token-file - and the records cannot both come from standard input.")
    given = _read(file)
    is_body = given.lstrip()[:1] == b"{"
    if is_body and form is not None:
        raise click.UsageError("--ndjson and --records are for lines, and this is the body of a transaction.")
    counts, call = _of_body(given, key) if is_body else _of_lines(given, form or "text", key)
    from topics.client import ApiError  # noqa: PLC0415

    try:
        with connect(options) as client:
            done = client.run(call)
    except ApiError as error:
        topic, text = str(error.detail.get("topic", "")), failures.message(error)
        named = text if topic in text else f"{topic}: {text}"
        raise failures.CommandFailure(named, failures.exit_code(error)) from None
    _say(options, counts, done)


def _read(file: str) -> bytes:
    """All that there is in a file, or `-`, standard input. Raises UsageRefusal."""
    try:
        with os.fdopen(STDIN, "rb", closefd=False) if file == "-" else Path(file).open("rb") as source:
            given = source.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise failures.UsageRefusal(f"{file}: {error.strerror}") from None
    if len(given) > MAX_INPUT_BYTES:
        raise failures.UsageRefusal(f"a transaction of more than {MAX_INPUT_BYTES} bytes")
    return given


def _of_body(given: bytes, key: str | None) -> tuple[dict[str, int], ClientCall[TransactionCommitted]]:
    """How many records each topic gets, and the call with this body. Raises UsageRefusal."""
    from topics.client import calls  # noqa: PLC0415

    try:
        body = msgspec.json.decode(given, type=GivenBody)
    except msgspec.DecodeError as error:
        raise failures.UsageRefusal(f"not the body of a transaction: {error}") from None
    if key is not None:
        if body.idempotency_key is not None:
            raise click.UsageError("--key is given, and the body has an idempotency_key.")
        given = given.rstrip()[:-1] + b',"idempotency_key":%b}' % msgspec.json.encode(key)
    repeatable = (key or body.idempotency_key) is not None
    call = replace(calls.transaction((), idempotency_key=None), body=given, repeatable=repeatable)
    return {append.topic: len(append.records) for append in body.appends}, call


def _of_lines(given: bytes, form: Form, key: str | None) -> tuple[dict[str, int], ClientCall[TransactionCommitted]]:
    """How many records each topic gets, and the call with the records of these lines. Raises UsageRefusal."""
    from topics.cli.records.record_input import BadInput  # noqa: PLC0415
    from topics.client import NewAppend, calls  # noqa: PLC0415

    appends: dict[str, list[NewRecord]] = {}
    try:
        for topic, record in _records(given, form):
            appends.setdefault(topic, []).append(record)
    except BadInput as error:
        raise failures.UsageRefusal(f"line {error.number} {error.problem}") from None
    fields: dict[str, Any] = {} if key is None else {"idempotency_key": key}
    call = calls.transaction([NewAppend(*append) for append in appends.items()], **fields)
    return {topic: len(records) for topic, records in appends.items()}, call


def _records(given: bytes, form: Form) -> Iterator[tuple[str, NewRecord]]:
    """The topic and the record of each line. Raises BadInput."""
    from topics.cli.records.record_input import BadInput, Line, LineSplitter, Parser  # noqa: PLC0415

    parser, splitter = Parser(form=form, skip_empty=False), LineSplitter()
    for lines in (splitter.feed(given), splitter.end()):
        for number, text in lines:
            if not text:
                continue
            topic, space, data = text.partition(b" ")
            if not space or not topic:
                raise BadInput(number, "is not of the form TOPIC DATA")
            for parsed in parser.parse([Line(number, data)]):
                yield topic.decode("utf-8", "replace"), parsed.record


def _say(options: CommandOptions, counts: dict[str, int], done: TransactionCommitted) -> None:
    """Print the seqs. Raises CommandFailure if they are those of another transaction with the same key."""
    if done.deduped and counts != {one.topic: one.count for one in done.appends}:
        raise failures.CommandFailure(
            "nothing was appended: the key was used for another transaction before. Another input needs another key",
            failures.EXIT_CONFLICT,
        )
    if options.as_json:
        print_json(done)
        return
    columns = [Column("topic"), *(Column(title, right=True) for title in ("records", "first seq", "last seq"))]
    print_table(columns, ([one.topic, count(one.count), str(one.first_seq), str(one.last_seq)] for one in done.appends))
    if done.deduped:
        failures.tell("nothing was appended: an earlier transaction with the same key has these seqs")
