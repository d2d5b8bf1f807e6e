"""Decoding and checking the bodies of appends and the lines of uploads: every limit on records of `docs/spec/api.md`
sections 1 and 4.

Bytes and query strings become checked requests of `topics.model`. Nothing here does I/O or calls the engine. A mistake
raises an `ApiError` that names the field. `topics.log.topic_config` checks the configuration of a topic.

The specification leaves some cases open. An empty `tag` or `node` is refused, because a reader could not tell it from a
missing one. `data` may nest 512 levels of its own. A lone surrogate escape (`"\\ud800"`) is refused, because it has no
form in UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.engine.redrives.letters import MARKERS
from topics.errors import ApiError, invalid, placed
from topics.http.requests.condition_requests import (
    ConditionFields,
    check_members,
    conditions_of,
    largest_tag_seqs,
    refuse_parameters,
)
from topics.http.requests.job_fields import jobs_of, may_have_jobs, refuse_unique
from topics.http.requests.json_checks import (
    DEEP_BYTES,
    MAX_DEPTH,
    check_depth,
    check_text,
    check_utf8,
    check_utf8_in_steps,
    decode_json,
    depth_in_steps,
    depth_of,
    malformed,
    malformed_in_steps,
    too_deep,
    wrong_value,
)
from topics.http.requests.query_strings import Query
from topics.http.requests.record_slices import (
    LONGEST,
    MOST_BESIDE,
    SLICE,
    Bounds,
    RecordSlices,
    Take,
    count_in_steps,
    find_in_steps,
    record_too_large,
    too_many_records,
)
from topics.log.topic_config import resolve_config
from topics.model import (
    CheckedAppend,
    RecordIn,
    TopicConfigPatch,
)

MAX_META_KEYS: Final = 64

MAX_IDEMPOTENCY_KEY: Final = 256

RESERVED_META_PREFIX: Final = "_topics"

_RESERVED: Final = (RESERVED_META_PREFIX.encode(), MARKERS.encode())

_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


class AppendBody(ConditionFields, kw_only=True):
    """The body of an append."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | UnsetType = UNSET
    config: TopicConfigPatch | None = None
    disable_backpressure: bool = False


# A body without unknown keys can nest too deep only in `data`. Nearly all bodies have none. So decoding forbids unknown
# keys at first; only if that fails is the whole body scanned for its depth.
class _StrictRecord(RecordIn, forbid_unknown_fields=True, gc=False):
    pass


class _StrictAppend(AppendBody, kw_only=True, forbid_unknown_fields=True):
    records: list[_StrictRecord]  # type: ignore[assignment]


_strict_append: Final = msgspec.json.Decoder(_StrictAppend)

_lenient_append: Final = msgspec.json.Decoder(AppendBody)


# A body may have 6 million records `{"data":1}`, which take 900 MB when they are decoded. So if a body may have too
# many records, they are counted while they are decoded. That takes four times as long, so other bodies are not counted.
class _TooManyRecords(Exception):
    """A body has more records than are allowed."""


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


class _StrictCountedAppend(AppendBody, kw_only=True, forbid_unknown_fields=True):
    records: list[_StrictCounted]  # type: ignore[assignment]


class _LenientCountedAppend(AppendBody, kw_only=True):
    records: list[_LenientCounted]  # type: ignore[assignment]


_strict_counted: Final = msgspec.json.Decoder(_StrictCountedAppend)

_lenient_counted: Final = msgspec.json.Decoder(_LenientCountedAppend)

# The records of a slice of a large body, in one list of a list.
_strict_lists: Final = msgspec.json.Decoder(list[list[_StrictRecord]])

_lenient_lists: Final = msgspec.json.Decoder(list[list[RecordIn]])

_strict_counted_lists: Final = msgspec.json.Decoder(list[list[_StrictCounted]])

_lenient_counted_lists: Final = msgspec.json.Decoder(list[list[_LenientCounted]])


# A strict `publish` on a WebSocket has these keys beside those of an append.
class _StrictPublish(_StrictAppend, kw_only=True, forbid_unknown_fields=True):
    op: msgspec.Raw
    topic: msgspec.Raw
    request_id: msgspec.Raw | UnsetType = UNSET
    return_seqs: msgspec.Raw | UnsetType = UNSET


class _StrictCountedPublish(_StrictPublish, kw_only=True, forbid_unknown_fields=True):
    records: list[_StrictCounted]  # type: ignore[assignment]


# An append of a strict transaction has its topic beside the keys of an append.
class _StrictMember(_StrictAppend, kw_only=True, forbid_unknown_fields=True):
    topic: msgspec.Raw


class _StrictCountedMember(_StrictMember, kw_only=True, forbid_unknown_fields=True):
    records: list[_StrictCounted]  # type: ignore[assignment]


_strict_publish: Final = msgspec.json.Decoder(_StrictPublish)

_strict_counted_publish: Final = msgspec.json.Decoder(_StrictCountedPublish)

Carrier = Literal["append", "publish", "member"]
"""Messages that have the fields of an append: its body, a `publish` command of a WebSocket, or one of the appends of a
transaction."""

_of_carrier: Final[Mapping[Carrier, tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]]] = {
    "append": (_strict_append, _strict_counted),
    "publish": (_strict_publish, _strict_counted_publish),
    "member": (msgspec.json.Decoder(_StrictMember), msgspec.json.Decoder(_StrictCountedMember)),
}
"""The decoders that refuse unknown keys, without and with counting the records."""

_encode: Final = msgspec.json.encode


def decode_append(
    raw: bytes, settings: Settings, header_key: str | None = None, *, strict: bool = False, carrier: Carrier = "append"
) -> CheckedAppend:
    """The body of an append, checked (`docs/spec/api.md` section 4).

    `header_key` is the `Idempotency-Key` header, which counts if the body has no key. `strict` refuses unknown keys in
    the body and in its records, but for those that `carrier` has beside an append. Raises 400
    `invalid_request`, `batch_too_large` or `record_too_large`. Of an inline config only the types are checked
    (`check_inline_config` checks the ranges).
    """
    check_utf8(raw)
    maximum = settings.max_batch_records
    request = _decode_records(raw, settings, only_known=strict, carrier=carrier)
    records = request.records
    count = len(records)
    if count == 0:
        raise invalid("records", "must hold at least one record")
    if count > maximum:
        raise too_many_records(f"{count} records", maximum, count=count)
    datas = [bytes(record.data) for record in records]
    if b"\n" in raw or b"\r" in raw:
        datas = [data.translate(_LINE_ENDS) for data in datas]
        for record, data in zip(records, datas, strict=True):
            record.data = data  # type: ignore[assignment]
    # The stored form of a record is never longer than its text in the body.
    if len(raw) > settings.max_record_bytes or len(raw) >= DEEP_BYTES:
        longest = max(map(len, datas))
        if longest > settings.max_record_bytes or longest >= DEEP_BYTES:
            _check_datas(datas, settings.max_record_bytes)
    extras = _check_extras(raw, records, datas, settings)
    if request.node is not None:
        check_text("node", request.node, settings.max_node_bytes)
    return CheckedAppend(
        records=records,
        jobs=jobs_of(records) if may_have_jobs(raw) else None,
        node=request.node,
        idempotency_key=_idempotency_key(request.idempotency_key, header_key),
        create=request.create,
        config=request.config,
        disable_backpressure=request.disable_backpressure,
        conditions=conditions_of(request, settings),
        datas=datas,
        nodes=extras.nodes,
        tags=extras.tags,
        metas=extras.metas,
    )


def decode_append_in_steps(
    raw: bytes, settings: Settings, header_key: str | None = None, *, strict: bool = False, carrier: Carrier = "append"
) -> Generator[None, None, CheckedAppend]:
    """The same as `decode_append`, for bodies of `LARGE_APPEND` bytes or more. Yields after each step of some
    milliseconds, so that the loop can do something else. A record of more than `SLICE` bytes, and all other members,
    are decoded in one step. Members that are too large for that (`bounds_of`) are refused."""
    yield from check_utf8_in_steps(raw)
    maximum = settings.max_batch_records
    table = _LINE_ENDS if b"\n" in raw or b"\r" in raw else None

    refused = maximum
    """The index of the first record whose `meta` will be refused for its keys."""

    def with_data(records: list[RecordIn], first: int) -> list[RecordIn]:
        nonlocal refused
        refused = refused if first else maximum
        for i, record in enumerate(records, first):
            # A `Raw` would keep the text of all records of its slice.
            record.data = bytes(record.data).translate(table)  # type: ignore[assignment]
            if record.meta and len(record.meta) > MAX_META_KEYS:
                if i > refused:
                    record.meta = None  # to free millions of keys would take long
                refused = min(refused, i)
        return records

    request = yield from _decode_in_slices(raw, settings, with_data, only_known=strict, carrier=carrier)
    records = request.records
    count = len(records)
    if count == 0:
        raise invalid("records", "must hold at least one record")
    if count > maximum:
        raise too_many_records(f"{count} records", maximum, count=count)
    datas = [bytes(record.data) for record in records]
    checked = 0
    for i, data in enumerate(datas):
        if len(data) <= SLICE or len(data) > settings.max_record_bytes:
            _check_datas([data], settings.max_record_bytes, i)
        elif (yield from depth_in_steps(data)) > MAX_DEPTH:
            raise too_deep(f"records[{i}].data")
        checked += len(data)
        if checked > SLICE:
            checked = 0
            yield
    extras = yield from _extras_in_steps(raw, records, datas, settings)
    if request.node is not None:
        check_text("node", request.node, settings.max_node_bytes)
    return CheckedAppend(
        records=records,
        jobs=jobs_of(records),
        node=request.node,
        idempotency_key=_idempotency_key(request.idempotency_key, header_key),
        create=request.create,
        config=request.config,
        disable_backpressure=request.disable_backpressure,
        conditions=conditions_of(request, settings),
        datas=datas,
        nodes=extras.nodes,
        tags=extras.tags,
        metas=extras.metas,
    )


def bounds_of(settings: Settings) -> Bounds:
    """Return the bounds of a large append. Conditions are the largest member beside the records; in a record, escapes
    make a meta, a tag and a node up to six times as long."""
    within = settings.max_meta_bytes + settings.max_tag_bytes + settings.max_node_bytes
    return Bounds(
        beside=max(MOST_BESIDE, 2 * largest_tag_seqs(settings.max_tag_bytes)),
        record=max(LONGEST, 2 * settings.max_record_bytes) + 6 * within,
        max_record=settings.max_record_bytes,
        max_records=settings.max_batch_records,
    )


_Decoders = tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]
"""Of a body, and of the records of a slice."""


def _decode_in_slices(
    raw: bytes, settings: Settings, take: Take, *, only_known: bool, carrier: Carrier
) -> Generator[None, None, AppendBody]:
    """Like `_decode_records`. `take` is given the records of each slice, and returns them."""
    maximum = settings.max_batch_records
    strict: _Decoders = _strict_append, _strict_lists
    again: _Decoders = _lenient_append, _lenient_lists
    counted = yield from count_in_steps(raw, b"{", _COUNT_FROM * maximum)
    if counted:
        strict, again = (_strict_counted, _strict_counted_lists), (_lenient_counted, _lenient_counted_lists)
    if only_known:
        again = _of_carrier[carrier][counted], strict[1]

    def count_from(count: int) -> None:
        _counter.left = maximum - count

    slices = RecordSlices(raw, count_from, bounds_of(settings))
    try:
        try:
            if b"\\" in raw or (yield from find_in_steps(raw, b'"meta"')):
                yield from _check_keys_in_slices(slices, settings)
            request: AppendBody = yield from slices.decode(*strict, take)
            return request
        except msgspec.ValidationError:
            try:
                request = yield from slices.decode(*again, take)
            except msgspec.ValidationError as error:
                raise wrong_value(str(error)) from None
            if (yield from depth_in_steps(raw)) > MAX_DEPTH + _AROUND_DATA:
                raise too_deep("body") from None
            if not only_known:
                check_members(slices.without_records())
            return request
    except _TooManyRecords:
        raise too_many_records(f"more than {maximum} records", maximum) from None
    except msgspec.DecodeError as error:
        raise (yield from malformed_in_steps(str(error), raw)) from None
    except RecursionError:
        raise too_deep("body") from None


def _check_keys_in_slices(slices: RecordSlices, settings: Settings) -> Generator[None, None, None]:
    """Refuse a `meta` with too many keys, as `_decode_records` does, once the whole body has been decoded."""
    wrong: dict[int, ApiError] = {}

    def check(records: list[_OnlyMeta], first: int) -> list[_OnlyMeta]:
        if not first:
            wrong.clear()
        for i, record in enumerate(records, first):
            try:
                if not wrong:
                    _check_keys(f"records[{i}].meta", record, settings)
            except ApiError as error:
                wrong[i] = error
        return []

    try:
        yield from slices.decode(_metas_of_append, _lists_of_metas, check)
    except msgspec.ValidationError as error:
        raise wrong_value(str(error)) from None
    if wrong:
        raise wrong[min(wrong)]


def _extras_in_steps(
    raw: bytes, records: list[RecordIn], datas: list[bytes], settings: Settings
) -> Generator[None, None, _Extras]:
    """Like `_check_extras`."""
    escaped = b"\\" in raw
    has_tags = escaped or (yield from find_in_steps(raw, b'"tag"'))
    has_nodes = escaped or (yield from find_in_steps(raw, b'"node"'))
    has_metas = escaped or (yield from find_in_steps(raw, b'"meta"'))
    reserved = escaped
    for prefix in _RESERVED:
        reserved = reserved or (yield from find_in_steps(raw, prefix))
    tags: list[str | None] = []
    nodes: list[str | None] = []
    metas: list[bytes] = []
    steps = range(0, len(records), _CHECKED_RECORDS)
    for at in steps if has_tags else ():
        values = [record.tag for record in records[at : at + _CHECKED_RECORDS]]
        tags += _column("tag", values, settings.max_tag_bytes, at) or values
        yield
    for at in steps if has_nodes else ():
        values = [record.node for record in records[at : at + _CHECKED_RECORDS]]
        nodes += _column("node", values, settings.max_node_bytes, at) or values
        yield
    for at in steps if has_metas else ():
        part = records[at : at + _CHECKED_RECORDS]
        texts = _metas(part, datas[at : at + _CHECKED_RECORDS], settings, reserved=reserved, first=at)
        metas += texts or [b""] * len(part)
        yield
    return _Extras(
        nodes if any(node is not None for node in nodes) else None,
        tags if any(tag is not None for tag in tags) else None,
        metas if any(metas) else None,
    )


def _decode_records(raw: bytes, settings: Settings, *, only_known: bool, carrier: Carrier) -> AppendBody:
    """Decode the body of an append; `only_known` refuses unknown keys. Raises 400 before it has made many more records,
    or a `meta` with many more keys, than are allowed."""
    maximum = settings.max_batch_records
    strict: msgspec.json.Decoder[Any] = _strict_append
    again: msgspec.json.Decoder[Any] = _lenient_append
    counted = len(raw) > _COUNT_FROM * maximum and raw.count(b"{") > _COUNT_FROM * maximum
    if counted:
        strict, again = _strict_counted, _lenient_counted
    if only_known:
        again = _of_carrier[carrier][counted]
    request: AppendBody
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
            request = decode_json(again, raw)
            _check_depth_around_data(raw)
            if not only_known:
                check_members(raw)
    except _TooManyRecords:
        raise too_many_records(f"more than {maximum} records", maximum) from None
    except msgspec.DecodeError as error:
        raise malformed(str(error), raw) from None
    except RecursionError:
        raise too_deep("body") from None
    return request


class _OnlyMeta(msgspec.Struct, gc=False):
    meta: msgspec.Raw | UnsetType = UNSET


class _CountedMeta(_OnlyMeta, gc=False):
    def __post_init__(self) -> None:
        _counter.count()


class _AppendOfMetas(msgspec.Struct):
    records: list[_CountedMeta]


_metas_of_append: Final = msgspec.json.Decoder(_AppendOfMetas)

_lists_of_metas: Final = msgspec.json.Decoder(list[list[_CountedMeta]])

_meta_of_line: Final = msgspec.json.Decoder(_OnlyMeta)

_LARGE_BODY: Final = 256 << 10
"""Bytes from which on the metas of a body are checked before it is decoded. Decoding the worst body below this takes 15
ms. Nearly all bodies are smaller."""

_LARGE_LINE: Final = 64 << 10
"""Bytes from which on the meta of a line is checked before the line is decoded."""


def _check_keys(field: str, record: _OnlyMeta, settings: Settings) -> None:
    """Refuse a `meta` with too many keys before its keys are decoded. A `meta` within the limits has at most four
    quotes for each key with its value, and `max_meta_bytes` quotes within them."""
    if record.meta is UNSET:
        return
    if bytes(record.meta).count(b'"') > 4 * MAX_META_KEYS + settings.max_meta_bytes:
        raise invalid(field, f"has more than {MAX_META_KEYS} keys", max=MAX_META_KEYS)


LARGE_APPEND: Final = 1 << 20
"""Bytes from which on a body is decoded in steps."""

_CHECKED_RECORDS: Final = 32
"""Records whose tags, nodes or metas are checked in one step: 6 ms if each has 500 keys."""

_AROUND_DATA: Final = 3
"""Levels of a body around `data`."""

_COUNT_FROM: Final = 4
"""If a body may have more objects than this many times the allowed records, its records are counted while they are
decoded."""


def _check_depth_around_data(raw: bytes, around: int = _AROUND_DATA) -> None:
    """Refuse a body that nests too deep outside of `data`. `data` itself may nest `MAX_DEPTH` levels, `around` levels
    deep in the body."""
    if len(raw) >= DEEP_BYTES and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and depth_of(raw) > MAX_DEPTH + around:
        raise too_deep("body")


def _check_datas(datas: list[bytes], maximum: int, first: int = 0) -> None:
    """Check values, of which the first belongs to the record `first`."""
    for i, data in enumerate(datas, first):
        if len(data) > maximum:
            raise record_too_large(i, len(data), maximum)
        check_depth(data, f"records[{i}].data")


class _Extras(NamedTuple):
    """The columns of records beside `data`; None for a column for which no record has a value."""

    nodes: list[str | None] | None
    tags: list[str | None] | None
    metas: list[bytes] | None


def _check_extras(raw: bytes, records: list[RecordIn], datas: list[bytes], settings: Settings) -> _Extras:
    """Check tags, nodes and metas, and return them as columns. A search in the body tells which of them it can have,
    which is faster than looking at each record."""
    escaped = b"\\" in raw
    tags: list[str | None] | None = None
    nodes: list[str | None] | None = None
    if escaped or b'"tag"' in raw:
        tags = _column("tag", [record.tag for record in records], settings.max_tag_bytes)
    if escaped or b'"node"' in raw:
        nodes = _column("node", [record.node for record in records], settings.max_node_bytes)
    metas = None
    if escaped or b'"meta"' in raw:
        metas = _metas(records, datas, settings, reserved=escaped or any(prefix in raw for prefix in _RESERVED))
    return _Extras(nodes, tags, metas)


def _column(name: str, values: list[str | None], maximum: int, first: int = 0) -> list[str | None] | None:
    """Check the values of a column, each once; the first belongs to the record `first`. Returns None if no record has
    one."""
    distinct = set(values)
    if distinct == {None}:
        return None
    sure = maximum // 4  # so many characters always fit, because UTF-8 has at most 4 bytes for each
    if any(value is not None and not 0 < len(value) <= sure for value in distinct):
        for i, value in enumerate(values, first):
            if value is not None:
                check_text(f"records[{i}].{name}", value, maximum)
    return values


def _metas(
    records: list[RecordIn], datas: list[bytes], settings: Settings, *, reserved: bool, first: int = 0
) -> list[bytes] | None:
    """The `meta` of each record as compact JSON, checked; None if no record has one. `reserved`: the body may have a
    reserved key. The first record is the record `first`."""
    max_meta, max_record = settings.max_meta_bytes, settings.max_record_bytes
    metas = [_encode(record.meta) if record.meta else b"" for record in records]
    if not any(metas):
        return None
    for i, (record, text, data) in enumerate(zip(records, metas, datas, strict=True), first):
        if record.meta and (reserved or len(text) > max_meta or len(record.meta) > MAX_META_KEYS):
            check_meta(f"records[{i}].meta", record.meta, text, max_meta)
        if len(text) + len(data) > max_record:
            raise record_too_large(i, len(text) + len(data), max_record)
    return metas


def check_meta(field: str, meta: dict[str, str], text: bytes, maximum: int) -> None:
    """Check the `meta` of a record. `text` is its compact JSON, of which `maximum` bytes are allowed. Raises 400."""
    if len(meta) > MAX_META_KEYS:
        raise invalid(field, f"has {len(meta)} keys, at most {MAX_META_KEYS} are allowed", max=MAX_META_KEYS)
    if any(key.startswith(RESERVED_META_PREFIX) for key in meta):
        raise invalid(field, f"keys that start with {RESERVED_META_PREFIX} are reserved")
    if any(key.startswith(MARKERS) for key in meta):
        raise invalid(field, f"keys that start with {MARKERS} say where a dead letter came from, and are reserved")
    if len(text) > maximum:
        raise invalid(field, f"is {len(text)} bytes long as JSON, at most {maximum} are allowed", max=maximum)


def _idempotency_key(body: str | None, header: str | None) -> str | None:
    return check_key(body, "idempotency_key") if body is not None else check_key(header, "Idempotency-Key")


def check_key(key: str | None, field: str) -> str | None:
    """Check the length of an idempotency key, and return it; None stays None. Raises 400."""
    if key is not None and not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY:
        raise invalid(field, f"must have 1 to {MAX_IDEMPOTENCY_KEY} characters", max=MAX_IDEMPOTENCY_KEY)
    return key


def check_inline_config(topic: str, patch: TopicConfigPatch) -> None:
    """Check that `topic` could be created with the `config` of an append, even if the append will not create it. Raises
    400."""
    try:
        resolve_config(None, patch, topic=topic)
    except ApiError as error:
        raise placed(error, "config.") from None


_strict_record: Final = msgspec.json.Decoder(_StrictRecord)

_lenient_record: Final = msgspec.json.Decoder(RecordIn)

_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])

_RECORD_FIELD: Final = re.compile(r"records\[(?P<index>\d+)\]\.?")


class BadLine(Exception):
    """A line of a batch is no valid record. `index` is its place in the batch, from 0."""

    def __init__(self, index: int, error: ApiError) -> None:
        super().__init__(error.message)
        self.index = index
        self.error = error


def longest_line(settings: Settings) -> int:
    """The longest line that a record within the limits can need, bytes. Texts may be escaped, which takes six bytes for
    one; `data` counts as it was sent."""
    texts = settings.max_meta_bytes + settings.max_tag_bytes + settings.max_node_bytes
    return settings.max_record_bytes + 6 * texts + _LINE_SLACK


_LINE_SLACK: Final = 4096
"""Bytes of a line for keys, and for blanks between them."""


def decode_plain(values: list[bytes], settings: Settings) -> CheckedAppend | None:
    """The records of a batch of lines `{"data":VALUE}`, of which `values` has only the values. Returns None if one of
    them is not exactly one JSON value within the limits; `decode_lines` then finds the mistake.

    The values are parsed together, as one array. If it has as many elements as there are values, and each is as long as
    its value, there is nothing between them but the commas, so each element is exactly its value. No record objects are
    made, because an append needs only columns.
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
    if longest > settings.max_record_bytes or longest >= DEEP_BYTES:
        try:
            _check_datas(values, settings.max_record_bytes)
        except ApiError:
            return None
    if b"\r" in joined:
        values = [value.translate(_LINE_ENDS) for value in values]
    return CheckedAppend(records=[], datas=values, nodes=None, tags=None, metas=None)


def decode_lines(lines: list[bytes], settings: Settings, *, strict: bool = False) -> CheckedAppend:
    """The records of a batch of lines (`docs/spec/pipeline.md` section 1). `strict` refuses unknown keys. Raises
    BadLine for the first line that is no valid record.

    Each line is decoded by itself, because two wrong lines may be valid JSON when they are joined.
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
        if longest > settings.max_record_bytes or longest >= DEEP_BYTES:
            _check_datas(datas, settings.max_record_bytes)
        extras = _check_extras(raw, records, datas, settings)
        jobs = jobs_of(records) if may_have_jobs(raw) else None
        refuse_unique(jobs, "a line of an upload")
    except ApiError as error:
        raise _bad_line_of(error) from None
    nodes, tags, metas = extras
    return CheckedAppend(records=records, datas=datas, nodes=nodes, tags=tags, metas=metas, jobs=jobs)


def _decode_line(i: int, line: bytes, strict: bool) -> RecordIn:
    try:
        try:
            return _strict_record.decode(line)
        except msgspec.ValidationError:
            record = decode_json(_strict_record, line) if strict else decode_json(_lenient_record, line)
            _check_depth_around_data(line, around=1)
            return record
        except msgspec.DecodeError as error:
            raise malformed(str(error), line) from None
        except RecursionError:
            raise too_deep("body") from None
    except ApiError as error:
        raise BadLine(i, error) from None


def _bad_line_of(error: ApiError) -> BadLine:
    """Convert an error about `records[3].tag` of a batch into one about `tag` of the line."""
    found = _RECORD_FIELD.match(error.detail["field"])
    assert found is not None
    detail = {**error.detail, "field": error.detail["field"][found.end() :] or "data"}
    message = error.message.replace(found[0], "", 1).removeprefix(": ")
    return BadLine(int(found["index"]), ApiError(error.code, message, detail=detail))


class IngestQuery(msgspec.Struct, kw_only=True):
    """The query parameters of an upload. They mean the same as the fields in the body of an append."""

    node: str | None = None
    create: bool | UnsetType = UNSET
    disable_backpressure: bool = False
    stage: str | None = None


def decode_ingest_query(query: bytes, settings: Settings) -> IngestQuery:
    """The query of an upload. Raises 400."""
    values = Query(query)
    refuse_parameters(values.names())
    node = values.text("node", "") if values.all("node") else None
    if node is not None:
        check_text("node", node, settings.max_node_bytes)
    return IngestQuery(
        node=node,
        create=values.boolean("create", True) if values.all("create") else UNSET,
        disable_backpressure=values.boolean("disable_backpressure", False),
        stage=values.stage(),
    )


class AppendQuery(NamedTuple):
    """The query parameters of an append of JSON."""

    return_seqs: bool = True
    stage: str | None = None


def decode_append_query(query: bytes) -> AppendQuery:
    """The query of an append of JSON. Raises 400."""
    if not query:
        return AppendQuery()
    values = Query(query)
    refuse_parameters(values.names())
    return AppendQuery(values.boolean("return_seqs", True), values.stage())
