"""A schema of a topic that is ready for use, and judging records by it (`docs/spec/consumers.md` section 6).

The library is `jsonschema_rs`. It holds the interpreter while it judges, so a worker thread would not help: callers
judge a few records at a time, and the work for each record is bounded (`schema_cost`). Regular expressions run on an
engine without backtracking, in time linear in the text. Schemas with expressions that this engine does not support
(look-around, back references) are refused. The library never fetches anything.

`format` is an annotation and refuses nothing, as the specification of JSON Schema says. Integers are judged exactly,
other numbers as 64-bit floats. If an object has several members with the same name, the last one counts.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from topics.raw_bytes import content_type_of
from topics.schemas.schema_cost import Cost, cost_of
from topics.schemas.schema_walk import BadSchema, escaped, subschemas

MAX_SCHEMA_BYTES: Final = 64 << 10
"""The longest schema, as JSON without blanks."""

MAX_EXPONENTS: Final = 200
"""Numbers with an exponent in a schema that a client sends. Each takes up to 50 us to decode, twice."""

MAX_STEPS: Final = 20_000_000
"""The most work that judging one record may take, in tokens. A token takes 15 ns, or 58 ns if all alternatives fail:
0.3 s, or 1.1 s. The real work is nearly always far below the computed bound."""

MAX_EXPLAINED: Final = 2_000_000
"""The most work (tokens) of explaining a violation: about 0.1 s. If it might take more, the answer says only that the
record breaks the schema."""

TEXT_BYTES: Final = 16
"""So many bytes of a record count as much as one value, because texts are matched and compared."""

EXPONENT_TOKENS: Final = 170
"""The most that decoding one number with an exponent costs, in tokens: up to 10 us."""

TINY: Final = 15
"""Values that one number with a negative exponent counts for: comparing it takes as many times as long."""

UNIQUE_FLOATS: Final = 12
"""Values that one number with a point or an exponent counts for, where `uniqueItems` compares it with 14 others."""

MOST_VALUES: Final = 100
"""More values than one byte of a record counts for: half of `e-`, with `uniqueItems`, for 90."""

_EXPONENTS: Final = re.compile(rb"[0-9][eE]")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_FLOATS: Final = re.compile(rb"[0-9][.eE]")

PATTERN_BYTES: Final = 64 << 10
"""Memory (bytes) of one compiled expression at most. This bounds the work for each byte that is matched."""

PIECE_RECORDS: Final = 200
PIECE_BYTES: Final = 32 << 10
PIECE_STEPS: Final = 250_000
"""Bounds of a piece, which is judged in one step of the loop; a single record may exceed them. A piece takes about a
millisecond, and 15 ms if the work reaches its bound."""

MAX_MESSAGE: Final = 300

KEPT: Final = 1000
KEPT_BYTES: Final = 256 << 20
"""How many schemas are kept ready for use, and the memory (bytes) that they may take together. The least recently used
are dropped; one schema always stays."""

TEXT_WEIGHT: Final = 20
"""Memory of a schema without expressions, in bytes for each byte of its JSON."""


class Violation(NamedTuple):
    """Why a value breaks a schema. `path` is a JSON pointer to the part of the value that breaks it."""

    path: str
    message: str


class RecordSchema:
    """A schema of a topic, ready for use. Call `ready` instead of making one: it keeps schemas."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raises BadSchema."""
        text = msgspec.json.encode(schema)
        if len(text) > MAX_SCHEMA_BYTES:
            raise BadSchema(f"has more than {MAX_SCHEMA_BYTES} bytes")
        nodes = subschemas(schema)
        self._cost: Cost = cost_of(nodes)
        self._validator = _compiled(schema)
        self._numbers = any(node.numbers for node in nodes)
        self._unique = b'"uniqueItems"' in text
        self._always = MAX_STEPS // (MOST_VALUES * self._cost.width + EXPONENT_TOKENS) - 1
        """Records of at most so many bytes are within the bound, with any content."""
        patterns = text.count(b'"pattern"') + sum(node.pattern_properties for node in nodes)
        self.nbytes = TEXT_WEIGHT * len(text) + PATTERN_BYTES * patterns
        """The most memory (bytes) that the schema takes."""

    def steps(self, data: bytes) -> int:
        """Return the most work (tokens) that judging a record with this data (JSON) may take."""
        return self._values(data) * self._cost.width + EXPONENT_TOKENS * len(_EXPONENTS.findall(data))

    def _values(self, data: bytes) -> int:
        """How many values a record has at most, and those that its texts and numbers count for beyond one."""
        values = 1 + data.count(b",") + data.count(b"[") + data.count(b"{") + len(data) // TEXT_BYTES
        tiny = TINY * (data.count(b"e-") + data.count(b"E-"))
        if self._unique:
            return values + UNIQUE_FLOATS * (len(_FLOATS.findall(data)) + tiny)
        return values + tiny if self._numbers else values

    def piece(self, datas: Sequence[bytes], start: int) -> tuple[int, float]:
        """Return the end (exclusive) of the piece that begins at `datas[start]`, and its share of a full piece (1 or
        more for a full one)."""
        most = min(start + PIECE_RECORDS, len(datas))
        size = steps = 0
        for i in range(start, most):
            more_size, more_steps = size + len(datas[i]), steps + min(self.steps(datas[i]), MAX_STEPS)
            if i > start and (more_size > PIECE_BYTES or more_steps > PIECE_STEPS):
                most = i
                break
            size, steps = more_size, more_steps
        return most, max((most - start) / PIECE_RECORDS, size / PIECE_BYTES, steps / PIECE_STEPS)

    def violation(self, data: bytes) -> Violation | None:
        """Return why a record with this data (JSON) breaks the schema; None if it does not. Raw bytes break every
        schema."""
        if content_type_of(data) is not None:
            return Violation("", "a topic with a schema accepts JSON only, no raw bytes")
        if len(data) > self._always and self.steps(data) > MAX_STEPS:
            return Violation("", "it is too large for this schema: checking it might take too much work")
        try:
            value = msgspec.json.decode(data)
        except msgspec.DecodeError as error:  # a number out of range; other invalid JSON was refused before
            return Violation("", f"cannot be judged: {error}")
        if self._validator.is_valid(value):
            return None
        depth = _depth(value)
        explaining = self._cost.explaining(depth, numbers=False) * (1000 + len(data))
        if explaining + self._cost.explaining(depth, numbers=True) * self._values(data) > MAX_EXPLAINED:
            return Violation("", "it breaks the schema (it is too large to say where)")
        return _explanation(self._validator, value)

    def first_violation(self, datas: Sequence[bytes], start: int, end: int) -> tuple[int, Violation] | None:
        """Return the index of the first of `datas[start:end]` that breaks the schema, and the reason; None if none
        does."""
        for i in range(start, min(end, len(datas))):
            found = self.violation(datas[i])
            if found is not None:
                return i, found
        return None


def _compiled(schema: Mapping[str, Any]) -> Any:
    import jsonschema_rs  # noqa: PLC0415  (only daemons with such topics need it, and a start should be short)

    try:
        return jsonschema_rs.Draft202012Validator(
            dict(schema), pattern_options=jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES), offline=True
        )
    except jsonschema_rs.ValidationError as error:
        raise BadSchema(f"{_pointer(error.instance_path) or '/'}: {error.message[:MAX_MESSAGE]}") from None
    except ValueError as error:
        raise BadSchema(str(error)[:MAX_MESSAGE]) from None


def _explanation(validator: Any, value: Any) -> Violation:
    import jsonschema_rs  # noqa: PLC0415

    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return Violation(_pointer(error.instance_path), error.message[:MAX_MESSAGE])
    raise AssertionError("a value that is not valid is refused")


def _pointer(path: Sequence[str | int]) -> str:
    """A path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{escaped(str(step))}" for step in path)[:MAX_MESSAGE]


def _depth(value: Any) -> int:
    """How many levels of objects and arrays a value has."""
    depth, level = 0, [value]
    while level := [inner for inner in level if isinstance(inner, dict | list)]:
        depth += 1
        level = [child for inner in level for child in (inner.values() if isinstance(inner, dict) else inner)]
    return depth


class ReadySchemas:
    """Schemas that are ready for use, by their JSON. Drops the least recently used beyond `KEPT` and `KEPT_BYTES`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, RecordSchema] = OrderedDict()
        self.nbytes = 0
        """The most memory (bytes) that they take together."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, text: bytes) -> RecordSchema:
        """Return the schema with this JSON. Raises BadSchema."""
        found = self._kept.get(text)
        if found is None:
            found = self._kept[text] = _schema_of(text)
            self.nbytes += found.nbytes
            while len(self._kept) > KEPT or (self.nbytes > KEPT_BYTES and len(self._kept) > 1):
                _, oldest = self._kept.popitem(last=False)
                self.nbytes -= oldest.nbytes
        else:
            self._kept.move_to_end(text)
        return found


def _schema_of(text: bytes) -> RecordSchema:
    try:
        return RecordSchema(msgspec.json.decode(text, type=dict[str, Any]))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSchema(f"must be a JSON object or null: {error}"[:MAX_MESSAGE]) from None


_ready: Final = ReadySchemas()


def ready(text: bytes) -> RecordSchema:
    """Return the schema of a topic, ready for use. `text` is its JSON. Raises BadSchema."""
    return _ready.get(text)


def normal_schema(text: bytes) -> msgspec.Raw | None:
    """Return the JSON of a schema that a client has sent, without blanks; None for null. Raises BadSchema."""
    if len(_EXPONENTS.findall(_STRING.sub(b'""', text))) > MAX_EXPONENTS:
        raise BadSchema(f"has more than {MAX_EXPONENTS} numbers with an exponent")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSchema(f"cannot be read: {error}"[:MAX_MESSAGE]) from None
    if value is None:
        return None
    normal = msgspec.json.encode(value)
    ready(normal)
    return msgspec.Raw(normal)
