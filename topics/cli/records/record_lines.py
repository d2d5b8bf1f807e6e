"""How records and what stands between them are printed: NDJSON for programs, a line each for people, or the data alone.

Pure but for the writing. In NDJSON `data` has the appended bytes. Characters that a terminal would act upon are written
out in all fields; in JSON as `\\u001b`, which is the same JSON.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import click
import msgspec

from topics.cli.failures import tell
from topics.cli.output import moment, on_terminal, print_line, printable, write_line
from topics.client.results import CaughtUp, Record, Tombstone, TopicDeleted

Value = Record | Tombstone | TopicDeleted | CaughtUp
Style = Literal["ndjson", "lines", "data"]

_ACTED_UPON: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""The characters that `printable` writes out. In JSON they stand in strings only, tabs aside."""


def inert(json: bytes) -> str:
    """JSON that says the same and that a terminal does nothing about."""
    text = json.decode(errors="replace").replace("\t", " ")
    return _ACTED_UPON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printer(style: Style, *, named: bool, prompt: bool) -> Callable[[Value], None]:
    """A function that prints a value. `named`: with the name of its topic. `prompt`: flush each line."""
    terminal = on_terminal()

    def write(line: bytes) -> None:
        write_line(inert(line).encode() if terminal else line, flush=prompt)

    def ndjson(value: Value) -> None:
        if not isinstance(value, CaughtUp):
            write(json_line(value, named=named))

    def data(value: Value) -> None:
        if isinstance(value, Record):
            write(bytes(value.raw))
        elif not isinstance(value, CaughtUp):
            tell(news(value, named=named))

    def lines(value: Value) -> None:
        if isinstance(value, Record):
            print_line(line_of(value, named=named))
        elif not isinstance(value, CaughtUp):
            print_line(_coloured(printable(f"--- {news(value, named=named)}"), fg="yellow"))

    return {"ndjson": ndjson, "data": data, "lines": lines}[style]


def json_line(value: Record | Tombstone | TopicDeleted, *, named: bool, job: Mapping[str, int] | None = None) -> bytes:
    """One line of NDJSON: a record as a diff has it, `{"$tombstone": {...}}` or `{"$deleted": {...}}`. `job` are
    further fields of a record that is a job."""
    parts = [b"{"]
    if named:
        parts += (b'"topic":', msgspec.json.encode(value.topic), b",")
    if isinstance(value, Record):
        parts.append(b'"$seq":%d,"$ts":%d' % (value.seq, value.ts))
        if value.tag is not None:
            parts += (b',"$tag":', msgspec.json.encode(value.tag))
        if value.node is not None:
            parts += (b',"$node":', msgspec.json.encode(value.node))
        parts += (b',"data":', bytes(value.raw))
        if value.meta:
            parts += (b',"meta":', msgspec.json.encode(value.meta))
        parts += (b',"%s":%d' % (name.encode(), number) for name, number in (job or {}).items())
    else:
        name = b'"$tombstone":' if isinstance(value, Tombstone) else b'"$deleted":'
        fields = msgspec.structs.asdict(value)
        del fields["topic"]
        parts += (name, msgspec.json.encode(fields))
    parts.append(b"}")
    return b"".join(parts)


def line_of(record: Record, *, named: bool) -> str:
    """A record for people: topic, seq, time, tag, node, data, meta; `-` where there is none."""
    fields = [printable(record.topic)] if named else []
    fields += (
        _coloured(str(record.seq), fg="cyan"),
        _coloured(moment(record.ts), dim=True),
        _coloured(printable(record.tag or "-"), fg="green"),
        _coloured(printable(record.node or "-"), fg="magenta"),
        inert(bytes(record.raw)),
    )
    if record.meta:
        fields.append(_coloured(inert(msgspec.json.encode(record.meta)), dim=True))
    return "  ".join(fields)


def news(value: Tombstone | TopicDeleted, *, named: bool) -> str:
    """Return a sentence about a tombstone, or about the deletion of the topic."""
    if isinstance(value, TopicDeleted):
        return f"topic {value.topic!r} was deleted"
    where = f"{value.topic}: " if named else ""
    if value.reason == "recreated":
        return f"{where}the topic was deleted and made again; its head is {value.head_seq}"
    if value.gap_from == value.gap_to:
        return f"{where}record {value.gap_from} is gone ({value.reason})"
    return f"{where}records {value.gap_from} to {value.gap_to} are gone ({value.reason})"


def _coloured(text: str, **style: Any) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)
