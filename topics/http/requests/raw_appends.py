"""Raw bytes as the body of an append: one record (`docs/spec/consumers.md` section 7).

The fields of a JSON body are query parameters of the same names. A parameter whose value is an object is JSON:
`fence={"name":"leader","token":7}`, percent-encoded.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw

from topics.config import Settings
from topics.errors import invalid
from topics.http.requests.append_requests import IngestQuery, check_key, check_meta
from topics.http.requests.body_reader import raw_too_large
from topics.http.requests.condition_requests import ConditionFields, check_parameters, conditions_of
from topics.http.requests.json_checks import check_text
from topics.http.requests.query_strings import Query
from topics.model import CheckedAppend, Fence
from topics.raw_bytes import room_for_bytes

T = TypeVar("T")

_metas: Final = msgspec.json.Decoder(dict[str, str])

_fences: Final = msgspec.json.Decoder(Fence | None)


class RawQuery(IngestQuery, kw_only=True):
    """The query parameters of an append of raw bytes. `meta`, `expected_tag_seqs` and `fence` are JSON."""

    tag: str | None = None
    meta: str | None = None
    idempotency_key: str | None = None
    expected_head_seq: int | None = None
    expected_tag_seqs: str | None = None
    fence: str | None = None


class RawAppend(NamedTuple):
    """The query of an append of raw bytes."""

    request: CheckedAppend
    """The append, still without its data."""
    stage: str | None
    return_seqs: bool


def decode_raw_query(query: bytes, settings: Settings, header_key: str | None) -> RawAppend:
    """The query of an append of raw bytes, checked. `header_key` is the `Idempotency-Key` header, which counts if the
    query has no key. Raises 400."""
    values = Query(query)
    check_parameters(values.names())
    found = RawQuery(
        node=_text(values, "node"),
        create=values.boolean("create", True) if values.all("create") else UNSET,
        disable_backpressure=values.boolean("disable_backpressure", False),
        stage=values.stage(),
        tag=_text(values, "tag"),
        meta=_text(values, "meta"),
        idempotency_key=_text(values, "idempotency_key"),
        expected_head_seq=values.integer("expected_head_seq", None),
        expected_tag_seqs=_text(values, "expected_tag_seqs"),
        fence=_text(values, "fence"),
    )
    if found.tag is not None:
        check_text("tag", found.tag, settings.max_tag_bytes)
    if found.node is not None:
        check_text("node", found.node, settings.max_node_bytes)
    meta = _meta_of(found.meta, settings)
    key = found.idempotency_key
    request = CheckedAppend(
        records=[],
        node=found.node,
        idempotency_key=check_key(header_key, "Idempotency-Key") if key is None else check_key(key, "idempotency_key"),
        create=found.create,
        disable_backpressure=found.disable_backpressure,
        conditions=conditions_of(_conditions_of(found), settings),
        datas=[],
        nodes=None,
        tags=None if found.tag is None else [found.tag],
        metas=[meta] if meta else None,
    )
    return RawAppend(request, found.stage, values.boolean("return_seqs", True))


def check_raw_size(request: CheckedAppend, size: int, content_type: str, settings: Settings) -> None:
    """Check that so many raw bytes of this type fit into the record of an append, beside its meta. Raises `400
    record_too_large`."""
    meta = request.metas[0] if request.metas else b""
    room = room_for_bytes(settings.max_record_bytes - len(meta), content_type)
    if size > room:
        raise raw_too_large(settings.max_record_bytes, max(0, room))


def _text(values: Query, name: str) -> str | None:
    return values.text(name, "") if values.all(name) else None


def _meta_of(text: str | None, settings: Settings) -> bytes:
    """The `meta` of a query as compact JSON; empty if there is none."""
    if text is None:
        return b""
    meta = _decoded("meta", _metas, text, "an object of strings")
    if not meta:
        return b""
    compact = msgspec.json.encode(meta)
    check_meta("meta", meta, compact, settings.max_meta_bytes)
    return compact


def _conditions_of(query: RawQuery) -> ConditionFields:
    tag_seqs, fence = query.expected_tag_seqs, query.fence
    return ConditionFields(
        expected_head_seq=query.expected_head_seq,
        expected_tag_seqs=UNSET if tag_seqs is None else Raw(tag_seqs.encode()),
        fence=None if fence is None else _decoded("fence", _fences, fence, 'an object {"name", "token"}'),
    )


def _decoded(field: str, decoder: msgspec.json.Decoder[T], text: str, wanted: str) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise invalid(field, f"must be the JSON of {wanted}") from None
