"""Records out of arguments and lines, for `topics append`.

Pure, but for `csv.field_size_limit` while rows are read: bytes in, records out, one at a time and in order, with the
numbers of the lines that they come from. Where lines come from and what becomes of the records is
`topics.cli.records.append_command`'s business. Nothing is held but the line, or the CSV row, that is not finished, and
that is bounded by `MAX_LINE_BYTES`.

A line ends with LF or CRLF, which is no part of it. In text an empty line is a record, the empty string, so that as
many records come out as lines go in; where lines are JSON or CSV, empty ones are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.client.results import NewRecord, Unique

MAX_LINE_BYTES: Final = 16 << 20
"""More than a daemon takes as a record (1 MiB by default); a line that is longer ends the input."""

Form = Literal["text", "ndjson", "records", "csv"]


class BadInput(Exception):
    """A line is not a record in the form that was asked for."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number
        self.problem = problem


class Line(NamedTuple):
    """A line without its end, and its number, from 1."""

    number: int
    text: bytes


class ParsedRecord(NamedTuple):
    """A record, and the number of the line it begins on."""

    number: int
    record: NewRecord


class LineSplitter:
    """Takes pieces of a stream and yields the lines that are complete."""

    __slots__ = ("_count", "_rest", "_size")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._count = 0

    def feed(self, piece: bytes) -> Iterator[Line]:
        """Yield the lines that end in this piece. Raises BadInput for a line that is too long."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            if self._rest:
                line = b"".join((*self._rest, line))
                self._rest.clear()
                self._size = 0
            self._count += 1
            yield Line(self._count, line.removesuffix(b"\r"))
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
            if self._size > MAX_LINE_BYTES:
                raise BadInput(self._count + 1, f"is longer than {MAX_LINE_BYTES} bytes")

    def end(self) -> Iterator[Line]:
        """Yield the last line, if the input does not end with LF."""
        if self._rest:
            self._count += 1
            yield Line(self._count, b"".join(self._rest).removesuffix(b"\r"))
            self._rest.clear()


class _WholeRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A record as the interface takes it, or as it gives it out: all that `topics read` and `topics tail` print in a
    line. A `$tombstone`, `$deleted` or `$end` is what they print between records."""

    topic: Raw | UnsetType = UNSET
    seq: Raw | UnsetType = msgspec.field(default=UNSET, name="$seq")
    ts: Raw | UnsetType = msgspec.field(default=UNSET, name="$ts")
    tombstone: Raw | UnsetType = msgspec.field(default=UNSET, name="$tombstone")
    deleted: Raw | UnsetType = msgspec.field(default=UNSET, name="$deleted")
    end: Raw | UnsetType = msgspec.field(default=UNSET, name="$end")
    data: Raw | UnsetType = UNSET
    tag: str | None = None
    node: str | None = None
    given_tag: str | None = msgspec.field(default=None, name="$tag")
    given_node: str | None = msgspec.field(default=None, name="$node")
    meta: dict[str, str] | None = None
    delay_ms: int | None = None
    not_before: int | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """How lines become records. `tag`, `node` and `meta` are for records that have none themselves; so are `delay_ms`,
    `not_before` and `priority`, which are for queues."""

    form: Form = "text"
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, str] = field(default_factory=dict)
    delay_ms: int | None = None
    not_before: int | None = None
    priority: int | None = None
    unique: Unique | None = None
    """Of all records."""
    tag_field: str | None = None
    """The field of a JSON object, or the CSV column, that holds the tag."""
    node_field: str | None = None
    delimiter: str = ","
    skip_empty: bool = True
    """Skip empty lines of JSON; else they are an error."""

    def parse(self, lines: Iterable[Line]) -> Iterator[ParsedRecord]:
        """Yield the record of each line. Raises BadInput at the first line that is no record."""
        for found in self._rows(lines) if self.form == "csv" else self._records(lines):
            record = found.record
            if record.delay_ms is None and record.not_before is None:
                record.delay_ms, record.not_before = self.delay_ms, self.not_before
            if record.priority is None:
                record.priority = self.priority
            record.unique = self.unique
            yield found

    def _records(self, lines: Iterable[Line]) -> Iterator[ParsedRecord]:
        make = {"text": self._text, "ndjson": self._json, "records": self._whole}[self.form]
        for number, line in lines:
            if self.form != "text":
                line = line.strip(b" \t\r\n")
                if not line and self.skip_empty:
                    continue
            try:
                record = make(line)
            except UnicodeDecodeError as error:
                raise BadInput(number, f"is not UTF-8 (byte {error.start + 1})") from None
            except msgspec.ValidationError as error:
                raise BadInput(number, f"is no record: {_lowered(error)}") from None
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadInput(number, f"is not JSON: {_lowered(error)}") from None
            except ValueError as error:
                raise BadInput(number, str(error)) from None
            if record is not None:
                yield ParsedRecord(number, record)

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _text(self, line: bytes) -> NewRecord:
        return NewRecord(line.decode(), self.tag, self.node, self.meta)

    def _json(self, line: bytes) -> NewRecord:
        _check_utf8(line)
        data = _raw.decode(line)
        if self.tag_field is None and self.node_field is None:
            return NewRecord(data, self.tag, self.node, self.meta)
        try:
            fields = _fields.decode(line)
        except msgspec.ValidationError:
            raise ValueError("is no JSON object, and so has no field for a tag or node") from None
        return NewRecord(
            data,
            _word(fields, self.tag_field) or self.tag,
            _word(fields, self.node_field) or self.node,
            self.meta,
        )

    def _whole(self, line: bytes) -> NewRecord | None:
        _check_utf8(line)
        whole = _whole.decode(line)
        if isinstance(whole.data, UnsetType):
            if any(mark is not UNSET for mark in (whole.tombstone, whole.deleted, whole.end)):
                return None
            raise ValueError("is no record: it has no `data`")
        return NewRecord(
            whole.data,
            whole.tag or whole.given_tag or self.tag,
            whole.node or whole.given_node or self.node,
            whole.meta or self.meta,
            whole.delay_ms,
            whole.not_before,
            whole.priority,
        )

    # -- CSV -----------------------------------------------------------------------------------------------------------

    def _rows(self, lines: Iterable[Line]) -> Iterator[ParsedRecord]:
        """Objects of strings, with the names of the header line. A quoted field may go over several lines."""
        limit_before = csv.field_size_limit(MAX_LINE_BYTES)
        try:
            yield from self._objects_of_rows(lines)
        finally:
            csv.field_size_limit(limit_before)

    def _objects_of_rows(self, lines: Iterable[Line]) -> Iterator[ParsedRecord]:
        cursor = _RowCursor(lines)
        rows = csv.reader(cursor, delimiter=self.delimiter, strict=True)
        names: list[str] | None = None
        while True:
            cursor.begin()
            try:
                row = next(rows, None)
            except csv.Error as error:
                raise BadInput(cursor.first, f"is not CSV: {error}") from None
            if row is None:
                return
            if not row:
                continue
            if names is None:
                names = row
                self._check_header(names, cursor.first)
                continue
            if len(row) != len(names):
                raise BadInput(cursor.first, f"has {len(row)} fields, and the header line {len(names)}")
            data = dict(zip(names, row, strict=True))
            tag = data[self.tag_field] if self.tag_field is not None else ""
            node = data[self.node_field] if self.node_field is not None else ""
            yield ParsedRecord(cursor.first, NewRecord(data, tag or self.tag, node or self.node, self.meta))

    def _check_header(self, names: list[str], number: int) -> None:
        if len(set(names)) < len(names):
            raise BadInput(number, "names a column twice")
        for name in (self.tag_field, self.node_field):
            if name is not None and name not in names:
                raise BadInput(number, f"has no column {name!r}")


class _RowCursor:
    """The lines under a CSV reader, which says on which line a row began. Raises BadInput when a row does not end."""

    __slots__ = ("_lines", "_size", "first")

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)
        self._size = 0
        self.first = 0

    def begin(self) -> None:
        """The next line begins a row."""
        self._size = 0

    def __iter__(self) -> _RowCursor:
        return self

    def __next__(self) -> str:
        number, line = next(self._lines)
        if not self._size:
            self.first = number
        self._size += len(line) + 1
        if self._size > MAX_LINE_BYTES:
            raise BadInput(self.first, f"begins a row of more than {MAX_LINE_BYTES} bytes")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise BadInput(number, f"is not UTF-8 (byte {error.start + 1})") from None
        # What spreadsheets put at the beginning of a file is no part of the first name.
        return (text.removeprefix("\ufeff") if number == 1 else text) + "\n"


_raw: Final = msgspec.json.Decoder(Raw)
_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_word_decoder: Final = msgspec.json.Decoder(str | int | float | None)
_whole: Final = msgspec.json.Decoder(_WholeRecord)


def _check_utf8(line: bytes) -> None:
    """Raises UnicodeDecodeError. msgspec looks into no string that it does not decode."""
    if not line.isascii():
        line.decode()


def _word(fields: Mapping[str, Raw], name: str | None) -> str | None:
    """Return the value of a field, as a tag or node: a string, or a number in the digits of the input. Raises
    ValueError."""
    value = None if name is None else fields.get(name)
    if value is None:
        return None
    try:
        found = _word_decoder.decode(value)
    except msgspec.ValidationError:
        raise ValueError(f"has no string or number in {name!r}") from None
    return found if isinstance(found, str) or found is None else bytes(value).decode()


def _lowered(error: Exception) -> str:
    """Return the message of msgspec, as the end of a sentence."""
    text = str(error).removeprefix("JSON is malformed: ")
    return text[0].lower() + text[1:]
