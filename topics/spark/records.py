"""Encodes rows as records: Arrow batches with the columns of a write, to lines of NDJSON.

Pure, and in bulk: Arrow makes the text of a column out of the texts of its parts, and the lines out of the columns.
Only texts that have to be checked or escaped, binaries and the like pass through Python. `topics.spark.writers` sends
the lines. `docs/design/pipeline.md` 3 says how each type is encoded.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.spark.schema import COLUMNS, GAP_COLUMNS

SLICE_BYTES: Final = 4 << 20
"""How many bytes of a batch are encoded together, so that memory does not depend on the size of Spark's batches. A
larger row is encoded alone."""

LEFT_OUT: Final = ("seq", "ts")
"""Columns of rows that were read from topics. They are ignored: the daemon sets them for the new records."""

_META: Final = pa.map_(pa.string(), pa.string())
_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'
_json: Final = msgspec.json.Decoder(msgspec.Raw)


class ColumnError(ValueError):
    """A write has a column that records cannot have, or lacks one. The message names it and says what to do."""


class RowError(ValueError):
    """A row that cannot be a record. `row` is its position among the rows of its partition, from 1."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row
        self.problem = problem


@dataclass(frozen=True, slots=True)
class RecordLines:
    """Records of one topic, a line each."""

    topic: str
    body: bytes
    rows: Sequence[int]
    """For each line the position of its row in the partition, from 1."""


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Raise ColumnError unless rows with these columns can be records. `topic` is the topic of all rows; None: the
    column `topic` names it."""
    for field in schema:
        if field.name in GAP_COLUMNS:
            raise ColumnError(
                f"column {field.name!r}: rows of gaps are no records; leave them out with "
                f".where('gap_from is null').drop({', '.join(map(repr, GAP_COLUMNS))})"
            )
        if field.name not in COLUMNS:
            raise ColumnError(
                f"column {field.name!r}: a record has data, tag, node, meta and topic; make it a part of data, "
                "as in select(struct('*').alias('data'))"
            )
    names = schema.names
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ColumnError(f"column {repeated!r}: is there {names.count(repeated)} times")
    if "data" not in names:
        raise ColumnError("column 'data': is missing; it is what a record holds: a text of JSON, or any other value")
    if "topic" not in names and topic is None:
        raise ColumnError("column 'topic': is missing, and so is the option `topic`; one of them says where rows go")
    for name in ("topic", "tag", "node"):
        if name in names and not _is_text(kind := schema.field(name).type) and not pa.types.is_null(kind):
            raise ColumnError(f"column {name!r}: is to be a string, not {kind}")
    if "meta" in names and not pa.types.is_null(meta := schema.field("meta").type) and not _is_meta(meta):
        raise ColumnError(f"column 'meta': is to be map<string,string>, not {meta}")
    _check_type("data", schema.field("data"))


def lines(batch: pa.RecordBatch, before: int, topic: str | None) -> Iterator[RecordLines]:
    """The records of a batch by topic, in the order of rows; `before` rows of the partition came before it. With
    `topic` all belong to it, else the column `topic` decides. Raises RowError."""
    size = max(1, batch.num_rows * SLICE_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, size):
        part = batch.slice(start, size)
        first = before + start + 1
        texts = _lines(part, first)
        if topic is not None:
            yield RecordLines(topic, _joined(texts), range(first, first + len(texts)))
            continue
        places = part.column("topic").dictionary_encode()
        if places.null_count:
            row = first + places.is_null().index(True).as_py()
            raise RowError(row, "topic is null, and there is no option `topic`")
        for code, name in enumerate(places.dictionary.to_pylist()):
            chosen = pc.indices_nonzero(pc.equal(places.indices, code))
            yield RecordLines(name, _joined(texts.take(chosen)), [first + i for i in chosen.to_pylist()])


def _lines(batch: pa.RecordBatch, first: int) -> pa.Array:
    """One text for each row, with its line end."""
    data = batch.column("data")
    parts = ['{"data":', _checked(data, first) if _is_text(data.type) else json_texts(data)]
    for name in ("tag", "node", "meta"):
        if name not in batch.schema.names or batch.column(name).null_count == batch.num_rows:
            continue
        column = batch.column(name)
        member = pc.binary_join_element_wise(f',"{name}":', json_texts(column), "")
        parts.append(pc.if_else(column.is_valid(), member, ""))
    return pc.binary_join_element_wise(*parts, "}\n", "")


def _joined(texts: pa.Array) -> bytes:
    """All of them, one after another. They lie so in the array's buffer."""
    _, offsets, values = texts.buffers()
    if values is None:
        return b""
    ends = memoryview(offsets).cast("i")
    return bytes(memoryview(values)[ends[texts.offset] : ends[texts.offset + len(texts)]])


def _checked(texts: pa.Array, first: int) -> pa.Array:
    """Texts that are JSON, each on one line; null becomes JSON's null. Raises RowError for a text that is not JSON.

    Each text is checked by itself: one that is JSON only together with the text around it could add fields or records.
    """
    texts = texts.cast(pa.binary())  # UTF-8 is looked at below
    encoded = texts.to_pylist()
    row = first - 1
    try:
        for text in encoded:
            row += 1
            if text is not None:
                _json.decode(text)
    except msgspec.DecodeError as error:
        raise RowError(row, f"data is a string and has to be JSON, but {_why(error)} (to_json makes it so)") from None
    try:
        texts = texts.cast(pa.string())
    except pa.ArrowInvalid:
        row = next(row for row, text in enumerate(encoded, first) if not _is_utf8(text))
        raise RowError(row, "data is a string that is not UTF-8") from None
    for end in ("\n", "\r"):  # between tokens: JSON has them nowhere else
        if pc.any(pc.match_substring(texts, end)).as_py():
            texts = pc.replace_substring(texts, end, " ")
    return texts.fill_null("null")


def _is_utf8(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _why(error: msgspec.DecodeError) -> str:
    text = str(error).removeprefix("JSON is malformed: ")
    return "it is empty or ends too early" if text == "Input data was truncated" else text


# --- the text of any value -------------------------------------------------------------------------------------------


def json_texts(values: pa.Array) -> pa.Array:
    """The JSON of each value. Null is `null`, and so is what JSON cannot say (NaN, infinities)."""
    kind = values.type
    if pa.types.is_large_string(kind):
        kind, values = pa.string(), values.cast(pa.string())
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(values), pa.string())
    if pa.types.is_struct(kind):
        texts = _objects(values)
    elif pa.types.is_map(kind):
        texts = _maps(values)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        texts = pc.binary_join_element_wise("[", _elements(values, json_texts(values.flatten())), "]", "")
    elif pa.types.is_string(kind):
        texts = _quoted(values)
    else:
        texts = _scalars(values)
    if values.null_count:
        texts = pc.if_else(values.is_valid(), texts, "null")
    return texts.fill_null("null")


def _scalars(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return values.cast(pa.string())
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(values), values, pa.scalar(None, kind))
        return pc.replace_substring_regex(finite.cast(pa.string()), r"^(-?[0-9]+)$", r"\1.0")
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            values = values.cast(pa.timestamp(kind.unit, "UTC"))
        return _between_quotes(pc.replace_substring(values.cast(pa.string()), " ", "T"))
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return _between_quotes(values.cast(pa.string()))
    encoded = [None if value is None else base64.b64encode(value) for value in values.to_pylist()]
    return _between_quotes(pa.array(encoded, pa.string()))


def _between_quotes(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _quoted(texts: pa.Array) -> pa.Array:
    """Strings of JSON. Where anything has to be escaped, each distinct text is encoded once."""
    if not pc.any(pc.match_substring_regex(texts, _NEEDS_ESCAPE)).as_py():
        return _between_quotes(texts)
    distinct = texts.dictionary_encode()
    encoded = [msgspec.json.encode(text) for text in distinct.dictionary.to_pylist()]
    return pa.array(encoded, pa.string()).take(distinct.indices)


def _objects(values: pa.Array) -> pa.Array:
    parts: list[object] = []
    for field, column in zip(values.type, values.flatten(), strict=True):
        parts.append(f"{',' if parts else '{'}{msgspec.json.encode(field.name).decode()}:")
        parts.append(json_texts(column))
    if not parts:
        return pa.array(["{}"] * len(values), pa.string())
    return pc.binary_join_element_wise(*parts, "}", "")


def _maps(values: pa.Array) -> pa.Array:
    kind = values.type
    entries = values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    keys, items = entries.flatten().flatten()
    names = _quoted(keys.cast(pa.string()))
    members = pc.binary_join_element_wise(names, ":", json_texts(items), "")
    return pc.binary_join_element_wise("{", _elements(entries, members), "}", "")


def _elements(lists: pa.Array, texts: pa.Array) -> pa.Array:
    """For each list the texts of its elements, with commas."""
    lengths = pc.list_value_length(lists).fill_null(0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")


# --- types -----------------------------------------------------------------------------------------------------------

_KEYS: Final = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_decimal)


def _check_type(path: str, field: pa.Field) -> None:
    """Raise ColumnError for a type that has no JSON here."""
    kind = field.type
    if pa.types.is_struct(kind):
        if any((member.metadata or {}).get(b"variant") for member in kind):
            raise ColumnError(f"column {path!r}: is a variant; write to_json of it")
        for member in kind:
            _check_type(f"{path}.{member.name}", member)
    elif pa.types.is_map(kind):
        if not _is_text(kind.key_type) and not any(is_key(kind.key_type) for is_key in _KEYS):
            raise ColumnError(f"column {path!r}: has keys of {kind.key_type}, which are no names; cast them to string")
        _check_type(f"{path}.value", kind.item_field)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _check_type(f"{path}.element", kind.value_field)
    elif pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise ColumnError(f"column {path!r}: is an interval, which JSON does not know; cast it to string or a number")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_meta(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))
