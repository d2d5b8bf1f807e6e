"""What requests carry: decoding, and every limit, range and type that `docs/spec/api.md` sections 1 to 7 and 10 set for
them.

Bytes and query strings in, checked requests of `topics.model` out; no I/O, no engine. Whatever is wrong is an
`ApiError` that names the field. Rules of a topic's configuration are `topics.log.topic_config`'s, those of a router
the engine's.

Decisions the contract leaves open: an empty `tag` or `node` is refused (there is no way to tell it from none on a
read); a query parameter with one value that is given twice is refused rather than guessed at; `data` may nest 512
levels of its own. A lone surrogate escape (`"\\ud800"`) is refused: it cannot be turned into UTF-8 by whoever reads it.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.engine.operations.export import ExportRequest
from topics.errors import MAX_SHOWN, ApiError, invalid
from topics.log.names import check_router_name, check_topic_name
from topics.log.tag_match import Match, parse_match
from topics.log.topic_config import resolve_config
from topics.model import (
    AppendRequest,
    CheckedAppend,
    DeleteRequest,
    ReadRequest,
    RecordIn,
    RouterPatch,
    TopicConfigPatch,
)

MAX_DEPTH: Final = 512
MAX_U64: Final = 2**64 - 1
MAX_META_KEYS: Final = 64
MAX_IDEMPOTENCY_KEY: Final = 256
MAX_STAGES: Final = 10_000
"""Stages that one commit publishes: as many as tasks of a large job write one each."""
MAX_COMMIT_BYTES: Final = 4 << 20
"""Their names fit; `decode_commit` counts what is in a body before it decodes it."""
MAX_NODES: Final = 1000
"""Nodes that one read or watch may leave out."""
MAX_PARAMETERS: Final = 2000
"""Of one query string."""
RESERVED_META_PREFIX: Final = "_topics"
_RESERVED: Final = RESERVED_META_PREFIX.encode()

DEFAULT_LIMIT: Final = 256
MAX_WAIT_MS: Final = 30_000
DEFAULT_BATCH_BYTES: Final = 1 << 20
MAX_BATCH_BYTES: Final = 8 << 20
DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000

# A value cannot nest more than MAX_DEPTH levels in fewer bytes, since each level opens and closes.
_DEEP_BYTES: Final = 2 * (MAX_DEPTH + 1)

T = TypeVar("T")


# --- JSON in general -------------------------------------------------------------------------------------------------

_AT: Final = " - at `$"
_MOST_PATH: Final = 1000
"""Characters of the end of a message in which its path is looked for; what a client has sent stands before it."""
_UTF8_STEP: Final = 1 << 20
_utf8: Final = codecs.getincrementaldecoder("utf-8")
_MISSING: Final = re.compile(r"missing required field `(?P<name>[^`]*)`")
_UNKNOWN: Final = re.compile(r"contains unknown field `(?P<name>.*)`", re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LEVELS: Final = bytes(1 if c in b"[{" else 255 if c in b"]}" else 0 for c in range(256))
_NOT_STRUCTURE: Final = bytes(c for c in range(256) if c not in b'[]{}"')
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


def check_utf8(raw: bytes) -> None:
    """400 unless `raw` is UTF-8. Once for each body, because msgspec looks into no string that it does not decode.

    In pieces, because one character beyond the first 65,536 makes four bytes of each of a text.
    """
    if raw.isascii():
        return
    decoder = _utf8()
    view = memoryview(raw)
    for start in range(0, len(raw), _UTF8_STEP):
        left = len(decoder.getstate()[0])  # of a character that began in the piece before
        try:
            decoder.decode(view[start : start + _UTF8_STEP], final=start + _UTF8_STEP >= len(raw))
        except UnicodeDecodeError as error:
            raise invalid("body", f"is not valid UTF-8 (byte {start - left + error.start})") from None


def depth_of(raw: bytes) -> int:
    """How deep a valid JSON text nests. Takes about 40 ms for each MiB of nothing but brackets, less for any other."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes next to each other change nothing for what is around them, so strings without brackets go at once.
    rest = raw.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in rest:
        rest = b"".join(rest.split(b'"')[::2])
    return max(accumulate(memoryview(rest.translate(_LEVELS)).cast("b")), default=0)


def check_depth(raw: bytes, field: str) -> None:
    if len(raw) >= _DEEP_BYTES and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and depth_of(raw) > MAX_DEPTH:
        raise _too_deep(field)


def _too_deep(field: str) -> ApiError:
    return invalid(field, f"nesting is deeper than {MAX_DEPTH} levels", max=MAX_DEPTH)


def decode_json(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode, with every failure as a 400 that names the field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _wrong_value(str(error)) from None
    except msgspec.DecodeError as error:
        raise _malformed(str(error), raw) from None
    except RecursionError:
        raise _too_deep("body") from None


def _wrong_value(text: str) -> ApiError:
    """msgspec's "Expected `str`, got `int` - at `$.records[0].tag`" as an error about `records[0].tag`."""
    what, path = _split_path(text)
    # `[...]` is a value of an object whose key msgspec does not tell.
    path = path.removesuffix("[...]").removeprefix("[...].")
    for pattern, message in ((_MISSING, "is required"), (_UNKNOWN, "there is no such field")):
        found = pattern.search(what)
        if found is not None:
            name = found["name"] or '""'
            return invalid(f"{path}.{name}" if path else name, message)
    return invalid(path or "body", what[:1].lower() + what[1:])


def _split_path(text: str) -> tuple[str, str]:
    """A message of msgspec without its path, and the path without `$`. Of a long one only the beginning is looked at:
    it may repeat a key of 60 MB."""
    end = text[-_MOST_PATH:]
    at = end.rfind(_AT)
    if at >= 0 and end.endswith("`") and "`" not in end[at + len(_AT) : -1]:
        what = text[: len(text) - len(end) + at]
        path = end[at + len(_AT) : -1].removeprefix(".")
    else:
        what, path = text, ""
    if len(what) > _MOST_PATH:
        what = what[:MAX_SHOWN] + "...`"
    return what, path


def _malformed(text: str, raw: bytes) -> ApiError:
    # msgspec calls a string that ends in half a surrogate pair "truncated", too.
    if "truncated" in text or "surrogate" in text:
        text = "malformed JSON: it ends too soon"
        if _SURROGATE.search(raw) is not None:
            text += ", or a \\u escape is half a surrogate pair"
    else:
        text = text.replace("JSON is malformed", "malformed JSON")
    return invalid("body", text)


# --- append ----------------------------------------------------------------------------------------------------------


# Bodies without unknown keys, which is nearly all of them, can nest too deep in `data` only. So the first attempt
# forbids unknown keys, and the body as a whole is scanned for its depth only where that fails.
class _StrictRecord(RecordIn, forbid_unknown_fields=True, gc=False):
    pass


class _StrictAppend(AppendRequest, kw_only=True, forbid_unknown_fields=True):
    records: list[_StrictRecord]  # type: ignore[assignment]


_strict_append: Final = msgspec.json.Decoder(_StrictAppend)
_lenient_append: Final = msgspec.json.Decoder(AppendRequest)


# A body may hold 6 million records of `{"data":1}`, which are 900 MB once they are decoded. So those of a body that may
# have too many are counted while they are decoded, which takes four times as long.
class _TooManyRecords(Exception):
    """There are more than there may be."""


class _Counter:
    def __init__(self) -> None:
        self.left = 0

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _TooManyRecords


_counter: Final = _Counter()


class _StrictCounted(_StrictRecord, forbid_unknown_fields=True, gc=False):
    def __post_init__(self) -> None:
        _counter.count()


class _LenientCounted(RecordIn, gc=False):
    def __post_init__(self) -> None:
        _counter.count()


class _StrictCountedAppend(AppendRequest, kw_only=True, forbid_unknown_fields=True):
    records: list[_StrictCounted]  # type: ignore[assignment]


class _LenientCountedAppend(AppendRequest, kw_only=True):
    records: list[_LenientCounted]  # type: ignore[assignment]


_strict_counted: Final = msgspec.json.Decoder(_StrictCountedAppend)
_lenient_counted: Final = msgspec.json.Decoder(_LenientCountedAppend)
_encode: Final = msgspec.json.encode


def decode_append(
    raw: bytes, settings: Settings, header_key: str | None = None, *, strict: bool = False
) -> CheckedAppend:
    """The body of an append (`docs/spec/api.md` section 4). `header_key` is the `Idempotency-Key` header; the body's
    wins. `strict` refuses unknown keys of it and of its records.

    Raises 400 `invalid_request`, `batch_too_large` or `record_too_large`. An inline config has its types checked, not
    its ranges.
    """
    check_utf8(raw)
    maximum = settings.max_batch_records
    request = _decode_records(raw, settings, only_known=strict)
    records = request.records
    count = len(records)
    if count == 0:
        raise invalid("records", "must hold at least one record")
    if count > maximum:
        raise _too_many_records(f"{count} records", maximum, count=count)
    datas = [bytes(record.data) for record in records]
    if b"\n" in raw or b"\r" in raw:
        datas = [data.translate(_LINE_ENDS) for data in datas]
        for record, data in zip(records, datas, strict=True):
            record.data = data  # type: ignore[assignment]
    # The stored form of a record is never longer than its text in the body.
    if len(raw) > settings.max_record_bytes or len(raw) >= _DEEP_BYTES:
        longest = max(map(len, datas))
        if longest > settings.max_record_bytes or longest >= _DEEP_BYTES:
            _check_datas(datas, settings.max_record_bytes)
    extras = _check_extras(raw, records, datas, settings)
    if request.node is not None:
        check_text("node", request.node, settings.max_node_bytes)
    return CheckedAppend(
        records=records,
        node=request.node,
        idempotency_key=_idempotency_key(request.idempotency_key, header_key),
        create=request.create,
        config=request.config,
        disable_backpressure=request.disable_backpressure,
        datas=datas,
        nodes=extras.nodes,
        tags=extras.tags,
        metas=extras.metas,
    )


def _decode_records(raw: bytes, settings: Settings, *, only_known: bool) -> AppendRequest:
    """Decode the body of an append; `only_known` refuses unknown keys. Raises 400, and then has made neither many more
    records than there may be nor a `meta` of many more keys."""
    maximum = settings.max_batch_records
    strict: msgspec.json.Decoder[Any] = _strict_append
    lenient: msgspec.json.Decoder[Any] = _lenient_append
    request: AppendRequest
    if len(raw) > _COUNT_FROM * maximum and raw.count(b"{") > _COUNT_FROM * maximum:
        strict, lenient = _strict_counted, _lenient_counted
    try:
        try:
            if len(raw) > _LARGE_BODY and (b'"meta"' in raw or b"\\" in raw):
                _counter.left = maximum
                for i, record in enumerate(decode_json(_metas_of_append, raw).records):
                    _check_keys(f"records[{i}].meta", record, settings)
            _counter.left = maximum
            request = strict.decode(raw)
        except msgspec.ValidationError:
            _counter.left = maximum
            request = decode_json(strict if only_known else lenient, raw)
            _check_depth_around_data(raw)
    except _TooManyRecords:
        raise _too_many_records(f"more than {maximum} records", maximum) from None
    except msgspec.DecodeError as error:
        raise _malformed(str(error), raw) from None
    except RecursionError:
        raise _too_deep("body") from None
    return request


class _OnlyMeta(msgspec.Struct, gc=False):
    meta: msgspec.Raw | UnsetType = UNSET


class _CountedMeta(_OnlyMeta, gc=False):
    def __post_init__(self) -> None:
        _counter.count()


class _AppendOfMetas(msgspec.Struct):
    records: list[_CountedMeta]


_metas_of_append: Final = msgspec.json.Decoder(_AppendOfMetas)
_meta_of_line: Final = msgspec.json.Decoder(_OnlyMeta)
_LARGE_BODY: Final = 256 << 10
"""Bytes from which on a body is looked at before it is decoded, because of what may come of a `meta`: as many as take
15 ms. Nearly all bodies are smaller."""
_LARGE_LINE: Final = 64 << 10
"""The same of a line."""


def _check_keys(field: str, record: _OnlyMeta, settings: Settings) -> None:
    """Refuse a `meta` that cannot be within its limits, before a key of it is made: it has more quotes than the most
    keys and values, and all the quotes that may be in these."""
    if record.meta is UNSET:
        return
    if bytes(record.meta).count(b'"') > 4 * MAX_META_KEYS + settings.max_meta_bytes:
        raise invalid(field, f"has more than {MAX_META_KEYS} keys", max=MAX_META_KEYS)


_COUNT_FROM: Final = 4
"""How many times as many objects as records there may be before records are counted while they are decoded."""


def _too_many_records(what: str, maximum: int, **detail: int) -> ApiError:
    return ApiError(
        "batch_too_large",
        f"records: {what}, at most {maximum} are allowed in one append",
        detail={"field": "records", **detail, "max": maximum},
    )


def _check_depth_around_data(raw: bytes, around: int = 3) -> None:
    """Refuse unknown keys that nest too deep. `data` may be as deep itself, inside `records` and a record."""
    if len(raw) >= _DEEP_BYTES and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and depth_of(raw) > MAX_DEPTH + around:
        raise _too_deep("body")


def _check_datas(datas: list[bytes], maximum: int) -> None:
    for i, data in enumerate(datas):
        if len(data) > maximum:
            raise _record_too_large(i, len(data), maximum)
        check_depth(data, f"records[{i}].data")


def _record_too_large(i: int, size: int, maximum: int) -> ApiError:
    return ApiError(
        "record_too_large",
        f"records[{i}]: data and meta are {size} bytes, at most {maximum} are allowed",
        detail={"field": f"records[{i}]", "size": size, "max": maximum},
    )


class _Extras(NamedTuple):
    """What records may have beside `data`, column by column; None for a column in which no record has anything."""

    nodes: list[str | None] | None
    tags: list[str | None] | None
    metas: list[bytes] | None


def _check_extras(raw: bytes, records: list[RecordIn], datas: list[bytes], settings: Settings) -> _Extras:
    """Check tags, nodes and metas. One look at the body, instead of one at each record, tells which there can be."""
    escaped = b"\\" in raw
    tags: list[str | None] | None = None
    nodes: list[str | None] | None = None
    if escaped or b'"tag"' in raw:
        tags = _column("tag", [record.tag for record in records], settings.max_tag_bytes)
    if escaped or b'"node"' in raw:
        nodes = _column("node", [record.node for record in records], settings.max_node_bytes)
    metas = None
    if escaped or b'"meta"' in raw:
        metas = _metas(records, datas, settings, reserved=escaped or _RESERVED in raw)
    return _Extras(nodes, tags, metas)


def _column(name: str, values: list[str | None], maximum: int) -> list[str | None] | None:
    """Check each value once; None when there is none at all."""
    distinct = set(values)
    if distinct == {None}:
        return None
    sure = maximum // 4  # as many characters always fit, without being encoded
    if any(value is not None and not 0 < len(value) <= sure for value in distinct):
        for i, value in enumerate(values):
            if value is not None:
                check_text(f"records[{i}].{name}", value, maximum)
    return values


def _metas(records: list[RecordIn], datas: list[bytes], settings: Settings, *, reserved: bool) -> list[bytes] | None:
    """Each `meta` as compact JSON, checked. `reserved`: the body may hold a reserved key."""
    max_meta, max_record = settings.max_meta_bytes, settings.max_record_bytes
    metas = [_encode(record.meta) if record.meta else b"" for record in records]
    if not any(metas):
        return None
    for i, (record, text, data) in enumerate(zip(records, metas, datas, strict=True)):
        if record.meta and (reserved or len(text) > max_meta or len(record.meta) > MAX_META_KEYS):
            _check_meta(i, record.meta, text, max_meta)
        if len(text) + len(data) > max_record:
            raise _record_too_large(i, len(text) + len(data), max_record)
    return metas


def check_text(field: str, value: str, maximum: int) -> None:
    if not value:
        raise invalid(field, "must not be empty")
    size = len(value.encode())
    if size > maximum:
        raise invalid(field, f"is {size} bytes long, at most {maximum} are allowed", max=maximum)


def _check_meta(i: int, meta: dict[str, str], text: bytes, maximum: int) -> None:
    field = f"records[{i}].meta"
    if len(meta) > MAX_META_KEYS:
        raise invalid(field, f"has {len(meta)} keys, at most {MAX_META_KEYS} are allowed", max=MAX_META_KEYS)
    if any(key.startswith(RESERVED_META_PREFIX) for key in meta):
        raise invalid(field, f"keys that start with {RESERVED_META_PREFIX} are reserved")
    if len(text) > maximum:
        raise invalid(field, f"is {len(text)} bytes long as JSON, at most {maximum} are allowed", max=maximum)


def _idempotency_key(body: str | None, header: str | None) -> str | None:
    return check_key(body, "idempotency_key") if body is not None else check_key(header, "Idempotency-Key")


def check_key(key: str | None, field: str) -> str | None:
    """An idempotency key, if there is one. Raises 400."""
    if key is not None and not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        raise invalid(field, f"must have 1 to {MAX_IDEMPOTENCY_KEY} characters", max=MAX_IDEMPOTENCY_KEY)
    return key


def check_inline_config(topic: str, patch: TopicConfigPatch) -> None:
    """Refuse an append's `config` that could not create `topic`, whether or not the call is going to."""
    try:
        resolve_config(None, patch, topic=topic)
    except ApiError as error:
        field = error.detail.get("field")
        if isinstance(field, str):
            raise ApiError(
                error.code, f"config.{error.message}", detail={**error.detail, "field": f"config.{field}"}
            ) from None
        raise


# --- ingest ----------------------------------------------------------------------------------------------------------

_strict_record: Final = msgspec.json.Decoder(_StrictRecord)
_lenient_record: Final = msgspec.json.Decoder(RecordIn)
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])
_RECORD_FIELD: Final = re.compile(r"records\[(?P<index>\d+)\]\.?")


class BadLine(Exception):
    """Why a line of a batch is no record; `index` counts from 0."""

    def __init__(self, index: int, error: ApiError) -> None:
        super().__init__(error.message)
        self.index = index
        self.error = error


def longest_line(settings: Settings) -> int:
    """No record within the limits needs a longer line: nearly everything may be escaped, `data` counts as it comes."""
    texts = settings.max_meta_bytes + settings.max_tag_bytes + settings.max_node_bytes
    return settings.max_record_bytes + 6 * texts + _LINE_SLACK


_LINE_SLACK: Final = 4096
"""For keys, and blanks between them."""


def decode_plain(values: list[bytes], settings: Settings) -> CheckedAppend | None:
    """The records of a batch of lines `{"data":VALUE}`, of which only the values are given; None if a value is not
    exactly one JSON value within the limits: `decode_lines` has to look at the lines.

    All of them are parsed as one array. Its elements are the values if there are as many, each as long as its value:
    then nothing is left between them but the commas, so each begins and ends where its value does. The records
    themselves are not made: columns are all that an append needs.
    """
    joined = b",".join(values)
    try:
        check_utf8(joined)
        found = _raws.decode(b"[%b]" % joined)
    except (ApiError, msgspec.DecodeError, RecursionError):
        return None
    lengths = list(map(len, values))
    if list(map(len, found)) != lengths:
        return None
    longest = max(lengths)
    if longest > settings.max_record_bytes or longest >= _DEEP_BYTES:
        try:
            _check_datas(values, settings.max_record_bytes)
        except ApiError:
            return None
    if b"\r" in joined:
        values = [value.translate(_LINE_ENDS) for value in values]
    return CheckedAppend(records=[], datas=values, nodes=None, tags=None, metas=None)


def decode_lines(lines: list[bytes], settings: Settings, *, strict: bool = False) -> CheckedAppend:
    """The records of a batch, each a line (`docs/spec/pipeline.md` section 1). Raises `BadLine` for the first that is
    none. `strict` refuses unknown keys.

    Each line is decoded by itself: joined, two wrong lines can make a right one.
    """
    raw = b"\n".join(lines)
    if not raw.isascii():
        for i, line in enumerate(lines):
            try:
                check_utf8(line)
            except ApiError as error:
                raise BadLine(i, error) from None
    for i, line in enumerate(lines):
        if len(line) > _LARGE_LINE:
            try:
                _check_keys("meta", decode_json(_meta_of_line, line), settings)
            except ApiError as error:
                raise BadLine(i, error) from None
    try:
        records: list[RecordIn] = list(map(_strict_record.decode, lines))
    except (msgspec.DecodeError, RecursionError):
        records = [_decode_line(i, line, strict) for i, line in enumerate(lines)]
    datas = [bytes(record.data) for record in records]
    if b"\r" in raw:
        datas = [data.translate(_LINE_ENDS) for data in datas]
    try:
        longest = max(map(len, datas))
        if longest > settings.max_record_bytes or longest >= _DEEP_BYTES:
            _check_datas(datas, settings.max_record_bytes)
        extras = _check_extras(raw, records, datas, settings)
    except ApiError as error:
        raise _bad_line_of(error) from None
    return CheckedAppend(records=records, datas=datas, nodes=extras.nodes, tags=extras.tags, metas=extras.metas)


def _decode_line(i: int, line: bytes, strict: bool) -> RecordIn:
    try:
        try:
            return _strict_record.decode(line)
        except msgspec.ValidationError:
            record = decode_json(_strict_record, line) if strict else decode_json(_lenient_record, line)
            _check_depth_around_data(line, around=1)
            return record
        except msgspec.DecodeError as error:
            raise _malformed(str(error), line) from None
        except RecursionError:
            raise _too_deep("body") from None
    except ApiError as error:
        raise BadLine(i, error) from None


def _bad_line_of(error: ApiError) -> BadLine:
    """An error about `records[3].tag` of a batch as one about `tag` of its line."""
    found = _RECORD_FIELD.match(error.detail["field"])
    assert found is not None
    detail = {**error.detail, "field": error.detail["field"][found.end() :] or "data"}
    message = error.message.replace(found[0], "", 1).removeprefix(": ")
    return BadLine(int(found["index"]), ApiError(error.code, message, detail=detail))


class IngestQuery(msgspec.Struct, kw_only=True):
    """What an upload says beside its records, as query parameters: as in the body of an append."""

    node: str | None = None
    create: bool | UnsetType = UNSET
    disable_backpressure: bool = False
    stage: str | None = None


def decode_ingest_query(query: bytes, settings: Settings) -> IngestQuery:
    """`node`, `create`, `disable_backpressure` and `stage` of an ingest."""
    values = Query(query)
    node = values.text("node", "") if values.all("node") else None
    if node is not None:
        check_text("node", node, settings.max_node_bytes)
    return IngestQuery(
        node=node,
        create=values.boolean("create", True) if values.all("create") else UNSET,
        disable_backpressure=values.boolean("disable_backpressure", False),
        stage=values.topic("stage"),
    )


# --- staging ---------------------------------------------------------------------------------------------------------


class CommitBody(msgspec.Struct, kw_only=True):
    """The body of a commit of stages."""

    stages: list[str]
    idempotency_key: str


_commit_body: Final = msgspec.json.Decoder(CommitBody)


def decode_commit(raw: bytes) -> CommitBody:
    """The body of a commit of stages (`docs/spec/pipeline.md` section 1)."""
    if not raw:
        raise invalid("stages", "is required")
    check_utf8(raw)
    # With an allowance for what is not known here, and ignored.
    if raw.count(b'"') > 2 * MAX_STAGES + 1000 or raw.count(b",") > MAX_STAGES + 1000:
        raise invalid("stages", f"at most {MAX_STAGES} can be published at once", max=MAX_STAGES)
    body = decode_json(_commit_body, raw)
    check_depth(raw, "body")
    count = len(body.stages)
    if not 1 <= count <= MAX_STAGES:
        raise invalid("stages", f"{count} stages, 1 to {MAX_STAGES} can be published at once", max=MAX_STAGES)
    for i, stage in enumerate(body.stages):
        check_topic_name(stage, f"stages[{i}]")
    if len(set(body.stages)) < count:
        raise invalid("stages", "names a stage twice")
    check_key(body.idempotency_key, "idempotency_key")
    return body


# --- export ----------------------------------------------------------------------------------------------------------


class ExportQuery(msgspec.Struct, kw_only=True):
    """The parameters of an export."""

    from_seq: int = 0
    to_seq: int | None = None
    from_ts: int | None = None
    to_ts: int | None = None
    match: str | None = None
    node: str | list[str] | None = None
    include_tags: bool = True
    include_meta: bool = True
    include_data: bool = True
    epoch: int | None = None


def decode_export(query: bytes, settings: Settings) -> ExportRequest:
    """The query of an export (`docs/spec/pipeline.md` section 1); `node` may be repeated."""
    values = Query(query)
    nodes = values.all("node")
    check_nodes(nodes, settings)
    match = None
    if values.all("match"):
        text = values.text("match", "")
        if not text:
            raise invalid("match", "must not be empty")
        match = _checked(parse_match(["tag", "Glob" if text.endswith("*") else "Eq", text]), "match", settings)
    return ExportRequest(
        from_seq=values.integer("from_seq", 0),
        to_seq=values.integer("to_seq", None),
        from_ts=values.integer("from_ts", None),
        to_ts=values.integer("to_ts", None),
        match=match,
        nodes=frozenset(nodes),
        include_tags=values.boolean("include_tags", True),
        include_meta=values.boolean("include_meta", True),
        include_data=values.boolean("include_data", True),
        epoch=values.integer("epoch", None),
    )


# --- read ------------------------------------------------------------------------------------------------------------


class ReadBody(msgspec.Struct, kw_only=True):
    from_seq: int = 0
    epoch: int | None = None
    limit: int = DEFAULT_LIMIT
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = DEFAULT_BATCH_BYTES


_read_body: Final = msgspec.json.Decoder(ReadBody)


def decode_read(raw: bytes, settings: Settings) -> ReadRequest:
    """The body of a diff (`docs/spec/api.md` section 5), clamped."""
    body = ReadBody()
    if raw:
        check_utf8(raw)
        body = decode_json(_read_body, raw)
        check_depth(raw, "body")
    nodes = [body.node] if isinstance(body.node, str) else body.node or []
    return _read_request(body, nodes, settings)


def decode_read_query(query: bytes, settings: Settings) -> ReadRequest:
    """The same as query parameters; `node` may be repeated."""
    values = Query(query)
    body = ReadBody(
        from_seq=values.integer("from_seq", 0),
        epoch=values.integer("epoch", None),
        limit=values.integer("limit", DEFAULT_LIMIT),
        include_tags=values.boolean("include_tags", False),
        include_meta=values.boolean("include_meta", True),
        wait_ms=values.integer("wait_ms", 0),
        max_batch_bytes=values.integer("max_batch_bytes", DEFAULT_BATCH_BYTES),
    )
    return _read_request(body, values.all("node"), settings)


def _read_request(body: ReadBody, nodes: list[str], settings: Settings) -> ReadRequest:
    for name in ("from_seq", "epoch", "limit", "wait_ms", "max_batch_bytes"):
        value = getattr(body, name)
        if value is not None and not 0 <= value <= MAX_U64:
            raise not_u64(name)
    check_nodes(nodes, settings)
    return ReadRequest(
        from_seq=body.from_seq,
        epoch=body.epoch,
        limit=min(body.limit or DEFAULT_LIMIT, settings.max_limit),
        nodes=frozenset(nodes),
        include_tags=body.include_tags,
        include_meta=body.include_meta,
        wait_ms=min(body.wait_ms, MAX_WAIT_MS),
        max_batch_bytes=min(body.max_batch_bytes or DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES),
    )


def check_nodes(nodes: list[str], settings: Settings) -> None:
    """The nodes that a reader leaves out. Raises 400."""
    if len(nodes) > MAX_NODES:
        raise invalid("node", f"{len(nodes)} nodes, at most {MAX_NODES} can be left out", max=MAX_NODES)
    for node in nodes:
        check_text("node", node, settings.max_node_bytes)


def _checked(match: Match, field: str, settings: Settings) -> Match:
    """No tag is longer than `TOPICS_MAX_TAG_BYTES`, so no pattern need be. Raises 400."""
    size = len(match.pattern.encode())
    if size > settings.max_tag_bytes:
        raise invalid(field, f"is {size} bytes long, a tag has at most {settings.max_tag_bytes}")
    return match


def not_u64(field: str) -> ApiError:
    return invalid(field, "must be an integer from 0 to 2^64 - 1")


# --- control plane ---------------------------------------------------------------------------------------------------


class DeleteSelection(NamedTuple):
    """What a record deletion selects: both conditions hold for a record that goes."""

    before_seq: int | None
    match: Match | None


_delete_body: Final = msgspec.json.Decoder(DeleteRequest)
_config_body: Final = msgspec.json.Decoder(TopicConfigPatch)
_router_body: Final = msgspec.json.Decoder(RouterPatch)


def decode_delete(raw: bytes, settings: Settings) -> DeleteSelection:
    """The body of a record deletion (`docs/spec/api.md` section 6)."""
    if not raw:
        raise _nothing_selected()
    check_utf8(raw)
    body = decode_json(_delete_body, raw)
    check_depth(raw, "body")
    before: int | UnsetType = body.before_seq
    if before is not UNSET and not 0 <= before <= MAX_U64:
        raise not_u64("before_seq")
    if before is UNSET and body.match is UNSET:
        raise _nothing_selected()
    return DeleteSelection(
        before_seq=None if before is UNSET else before,
        match=None if body.match is UNSET else _checked(parse_match(body.match), "match", settings),
    )


def _nothing_selected() -> ApiError:
    return invalid("before_seq", "before_seq, match or both are required")


def decode_config_patch(raw: bytes) -> TopicConfigPatch:
    """The body of a topic's PUT (`docs/spec/api.md` section 2); types and keys, ranges are checked where it is
    merged."""
    if not raw:
        return TopicConfigPatch()
    check_utf8(raw)
    return decode_json(_config_body, raw)


def decode_router_patch(raw: bytes, settings: Settings) -> RouterPatch:
    """The body of a router's PUT (`docs/spec/api.md` section 7): types, keys, names, and what its filter is.

    What a router needs is checked where it is merged.
    """
    if not raw:
        return RouterPatch()
    check_utf8(raw)
    patch = decode_json(_router_body, raw)
    check_depth(raw, "body")
    for field, name in (("source", patch.source), ("dest", patch.dest)):
        if name is not UNSET:
            check_topic_name(name, field)
    if patch.filter is not UNSET and patch.filter is not None:
        _checked(parse_match(patch.filter, "filter"), "filter", settings)
    return patch


class Cursors:
    """The cursors of one list: a marker and a name as unpadded base64url.

    The marker says which list a cursor belongs to, so that one of another list is refused.
    """

    __slots__ = ("_check", "_marker")

    def __init__(self, marker: bytes, check: Callable[[str, str], str]) -> None:
        self._marker = marker
        self._check = check

    def encode(self, last: str) -> str:
        """The cursor that means "names after `last`"."""
        return base64.urlsafe_b64encode(self._marker + last.encode()).rstrip(b"=").decode()

    def decode(self, cursor: str) -> str:
        """The name of a cursor; `400 invalid_request` unless it is one that `encode` could have made."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            name = self._check(raw.removeprefix(self._marker).decode(), "cursor")
        except (ValueError, binascii.Error, ApiError):
            raise invalid("cursor", "is not a cursor of this list") from None
        if self.encode(name) != cursor.rstrip("="):
            raise invalid("cursor", "is not a cursor of this list")
        return name


TOPIC_CURSORS: Final = Cursors(b"t:", check_topic_name)
ROUTER_CURSORS: Final = Cursors(b"r:", check_router_name)


class Page(NamedTuple):
    """Which part of a list is asked for: names that begin with `prefix` and come after `after`. `touch`: whether that
    counts as a use of them."""

    prefix: str
    after: str | None
    page_size: int
    touch: bool = False


def decode_list_query(query: bytes) -> Page:
    """`prefix`, `cursor`, `page_size` and `touch` of a topic list (`docs/spec/api.md` sections 1 and 3)."""
    values = Query(query)
    return _page(values, TOPIC_CURSORS, touch=values.boolean("touch", False))


class RouterSelection(NamedTuple):
    """Which routers are asked for: a page of those from `source` and to `dest`, where these are given."""

    page: Page
    source: str | None
    dest: str | None


def decode_router_list_query(query: bytes) -> RouterSelection:
    """`prefix`, `source`, `dest`, `cursor` and `page_size` of a router list (`docs/spec/api.md` sections 1 and 7)."""
    values = Query(query)
    return RouterSelection(page=_page(values, ROUTER_CURSORS), source=values.topic("source"), dest=values.topic("dest"))


def _page(values: Query, cursors: Cursors, *, touch: bool = False) -> Page:
    cursor = values.text("cursor", "")
    return Page(
        prefix=values.text("prefix", ""),
        after=cursors.decode(cursor) if cursor else None,
        page_size=max(1, min(MAX_PAGE, values.integer("page_size", DEFAULT_PAGE, signed=True))),
        touch=touch,
    )


# --- query strings ---------------------------------------------------------------------------------------------------

_BOOLEANS: Final = {"1": True, "true": True, "0": False, "false": False}
_INTEGER: Final = re.compile(r"-?[0-9]{1,40}", re.ASCII)


class Query:
    """The parameters of a query string. Unknown ones are ignored; bad values are 400 and name the parameter."""

    __slots__ = ("_values",)

    def __init__(self, query: bytes) -> None:
        self._values: dict[str, list[str]] = {}
        if not query:
            return
        if query.count(b"&") >= MAX_PARAMETERS:
            raise invalid("query", f"has more than {MAX_PARAMETERS} parameters", max=MAX_PARAMETERS)
        try:
            pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict")
        except UnicodeDecodeError:
            raise invalid("query", "is not valid UTF-8") from None
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def all(self, name: str) -> list[str]:
        """Every value of a parameter that may be repeated."""
        return self._values.get(name, [])

    def _one(self, name: str) -> str | None:
        values = self._values.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise invalid(name, "is given more than once")
        return values[0]

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self._one(name)
        return default if value is None else value

    def topic(self, name: str) -> str | None:
        """The name of a topic."""
        value = self._one(name)
        return None if value is None else check_topic_name(value, name)

    def boolean(self, name: str, default: bool) -> bool:
        """`1/0/true/false`, and nothing else."""
        value = self._one(name)
        if value is None:
            return default
        if value not in _BOOLEANS:
            raise invalid(name, "must be one of 1, 0, true, false")
        return _BOOLEANS[value]

    def integer(self, name: str, default: Any, *, signed: bool = False) -> Any:
        """A decimal integer. `signed` ones are about to be clamped; the others may not be negative."""
        value = self._one(name)
        if value is None:
            return default
        if _INTEGER.fullmatch(value) is None:
            raise invalid(name, "must be an integer")
        number = int(value)
        if not signed and not 0 <= number <= MAX_U64:
            raise not_u64(name)
        return number


def decode_if_empty(query: bytes) -> bool:
    """`if_empty` of a topic's DELETE."""
    return Query(query).boolean("if_empty", False)


def decode_create(query: bytes) -> bool:
    """`create` of the PUT of a topic or router."""
    return Query(query).boolean("create", True)


def decode_touch(query: bytes) -> bool:
    """`touch` of a state read."""
    return Query(query).boolean("touch", True)


def decode_hold_ms(query: bytes) -> int:
    """`hold_ms` of a checkpoint; the longest hold there is (`docs/spec/crash.md` 13) for anything above it."""
    return int(Query(query).integer("hold_ms", 0))


class AppendQuery(NamedTuple):
    """The parameters of an append of JSON."""

    return_seqs: bool = True
    stage: str | None = None


def decode_append_query(query: bytes) -> AppendQuery:
    """`return_seqs` and `stage` of an append."""
    if not query:
        return AppendQuery()
    values = Query(query)
    return AppendQuery(values.boolean("return_seqs", True), values.topic("stage"))
