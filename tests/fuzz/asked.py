"""Targets of HTTP, decoder by decoder: bodies, queries, headers, ids and lines, as the gate has them decoded.

A refusal is an `ApiError` with a status below 500, or 503; one of a request that is not as it should be names the
field.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tests.fuzz import mutations
from tests.fuzz.target import Target
from topics.config import Settings
from topics.errors import ApiError
from topics.http.answers.sse import accepts_events
from topics.http.calls import error_response
from topics.http.requests import (
    append_requests,
    query_strings,
    queue_requests,
    read_requests,
    topic_requests,
    watch_requests,
)
from topics.http.requests.line_batches import LineBatches
from topics.http.routes import RouteTable
from topics.log.topic_config import resolve_config
from topics.routing.router import resolve_router

T = TypeVar("T")

SETTINGS: Final = Settings(
    data_dir=Path("/nonexistent"),
    max_body_bytes=64 << 10,
    max_record_bytes=4096,
    max_batch_records=50,
    max_meta_bytes=512,
    wal_shards=1,
)
"""Limits that an input of a few KiB can reach."""

HTTP: Final = ("topics.http", "topics.log", "topics.model")


def checked(ask: Callable[[], T]) -> T | None:
    """What comes of it; None for a refusal, which is one that a client may be shown."""
    try:
        return ask()
    except ApiError as error:
        _check(error)
        return None


def _check(error: ApiError) -> None:
    """Whether a client may be shown this."""
    assert 400 <= error.status < 500 or error.status == 503, f"a refusal with {error.status}: {error}"
    if error.code == "invalid_request":
        field = error.detail.get("field")
        assert isinstance(field, str), f"a refusal that names no field: {error}"
        assert field, f"a refusal that names no field: {error}"
    answer = error_response(error)
    assert msgspec.json.decode(answer.body)["error"]["code"] == error.code


def _body(decode: Callable[[bytes], object], data: bytes) -> None:
    checked(partial(decode, data))


def _append(data: bytes) -> None:
    request = checked(partial(append_requests.decode_append, data, SETTINGS, "header"))
    if request is None:
        return
    assert len(request.datas) == len(request.records) <= SETTINGS.max_batch_records
    for column in (request.nodes, request.tags, request.metas):
        assert column is None or len(column) == len(request.datas)
    for stored in request.datas:
        msgspec.json.decode(stored, type=msgspec.Raw)  # a number may be larger than any that Python has
        assert b"\n" not in stored
    if request.config is not None:
        checked(partial(append_requests.check_inline_config, "orders", request.config))


def _config(data: bytes) -> None:
    patch = checked(partial(topic_requests.decode_config_patch, data))
    if patch is not None:
        config = checked(partial(resolve_config, None, patch, topic="orders"))
        if config is not None:
            checked(partial(resolve_config, config, patch, topic="orders"))


def _subscribe(message: bytes) -> None:
    """What has come over a WebSocket was text, so it is UTF-8."""
    checked(partial(watch_requests.decode_subscribe, message, SETTINGS))


def _router(data: bytes) -> None:
    patch = checked(partial(topic_requests.decode_router_patch, data, SETTINGS))
    if patch is not None:
        checked(partial(resolve_router, None, patch, router="copying"))


def _lines(data: bytes) -> None:
    """An upload: the same batches from pieces of any sizes, and the same records of the fast and of the slow way."""
    found = [_batches_of(data, size) for size in (len(data) or 1, 13)]
    assert found[0] == found[1], "batches depend on the pieces"


def _batches_of(data: bytes, size: int) -> list[object]:
    batches = LineBatches(3, 600, append_requests.longest_line(SETTINGS))
    seen: list[object] = []
    try:
        for at in range(0, len(data), size):
            batches.feed(data[at : at + size])
            while (batch := batches.next()) is not None:
                seen.append(_records_of(batch.items, batch.lines, plain=batch.plain))
        while (batch := batches.end()) is not None:
            seen.append(_records_of(batch.items, batch.lines, plain=batch.plain))
    except ApiError as error:
        seen.append(error.code)
    return seen


def _records_of(items: list[bytes], lines: list[bytes], *, plain: bool) -> object:
    quick = append_requests.decode_plain(items, SETTINGS) if plain else None
    try:
        request = append_requests.decode_lines(lines, SETTINGS)
    except append_requests.BadLine as error:
        refused = error
    else:
        assert len(request.datas) == len(lines)
        if quick is not None:
            assert quick.datas == request.datas, "the fast way decodes something else"
        return request.datas
    assert quick is None, "the fast way takes what is refused"
    assert 0 <= refused.index < len(lines)
    assert 400 <= refused.error.status < 500
    return refused.index, refused.error.code


_QUERIES: Final[tuple[Callable[[bytes], object], ...]] = (
    lambda query: read_requests.decode_read_query(query, SETTINGS),
    lambda query: read_requests.decode_export(query, SETTINGS),
    lambda query: append_requests.decode_ingest_query(query, SETTINGS),
    lambda query: watch_requests.decode_stream("orders", query, SETTINGS),
    lambda query: queue_requests.decode_work(query, SETTINGS),
    topic_requests.decode_list_query,
    topic_requests.decode_router_list_query,
    query_strings.decode_if_empty,
    query_strings.decode_look,
    query_strings.decode_hold_ms,
    append_requests.decode_append_query,
)


def _query(data: bytes) -> None:
    """A query, of every call that has one."""
    for decode in _QUERIES:
        checked(partial(decode, data))


def _cursor(data: bytes) -> None:
    text = data.decode("latin-1")
    for cursors in (topic_requests.TOPIC_CURSORS, topic_requests.ROUTER_CURSORS):
        name = checked(partial(cursors.decode, text))
        if name is not None:
            assert cursors.decode(cursors.encode(name)) == name


def _path(data: bytes) -> None:
    table = RouteTable()
    method, _, path = data.partition(b" ")
    found = checked(lambda: table.find(method.decode("latin-1"), path))
    if found is not None:
        found.unchecked()
        if checked(found.params) is not None:
            found.plain_path()


def _accepts(data: bytes) -> None:
    accepts_events(data)


# ----------------------------------------------------------------- seeds


def _json(*values: object) -> list[bytes]:
    return [msgspec.json.encode(value) for value in values]


_RECORDS: Final = [
    {"data": {"a": [1, 2.5, None]}, "tag": "t", "node": "n", "meta": {"k": "v"}},
    {"data": "text"},
]
_SEEDS: Final[dict[str, list[bytes]]] = {
    "append": [
        *_json(
            {"records": _RECORDS, "node": "n", "idempotency_key": "key", "create": True, "disable_backpressure": False},
            {"records": _RECORDS[1:], "config": {"durability": "fsync", "cap_records": 5}},
        ),
        b'{"records":[{"data":"\\u00e9\\n"},\n{"data":' + b"[" * 600 + b"]" * 600 + b"}]}",
    ],
    "diff": _json({"from_seq": 3, "epoch": 1, "limit": 10, "node": ["a", "b"], "include_tags": True, "wait_ms": 5}),
    "delete": _json({"before_seq": 7, "match": ["tag", "Glob", "a*"]}, {"match": "plain"}),
    "config": _json(
        {"type": "queue", "ttl_ms": 5, "cap_records": 3, "discard": "reject", "durability": "disk", "priority": -3},
        {"dead_letter": "dead", "max_deliveries": 3, "lease_ms": 50, "claim_jitter_ms": 1, "idempotency_window_ms": 5},
    ),
    "router": _json({"source": "a", "dest": "b", "filter": ["tag", "Eq", "x"], "guarantee": "exactly_once"}),
    "commit": _json({"stages": ["s1", "s2"], "idempotency_key": "q/1"}),
    "watch": _json(
        {"topics": {"a": {"from_seq": 3}, "b": {"tail": True}}, "node": "n", "limit": 5, "consistency": "strong"}
    ),
    "subscribe": _json({"op": "subscribe", "topic": "a", "from_seq": 3}, {"topics": {"a": {}}, "node": ["x"]}),
    "claim": _json({"node": "n", "max": 3, "lease_ms": 1000, "wait_ms": 5}),
    "ack": _json({"node": "n", "seqs": [1, 2], "lease_ids": ["lease_0000000000000001", "x"]}),
    "nack": _json({"node": "n", "seqs": [1], "delay_ms": 5}),
    "extend": _json({"node": "n", "seqs": [1], "lease_ms": 500}),
}

_DECODERS: Final[dict[str, tuple[str, Callable[[bytes], None]]]] = {
    "append": ("an append", _append),
    "diff": ("a read", partial(_body, lambda raw: read_requests.decode_read(raw, SETTINGS))),
    "delete": ("a deletion of records", partial(_body, lambda raw: topic_requests.decode_delete(raw, SETTINGS))),
    "config": ("the configuration of a topic", _config),
    "router": ("a router", _router),
    "commit": ("a commit of stages", partial(_body, topic_requests.decode_commit)),
    "watch": ("a watch", partial(_body, lambda raw: watch_requests.decode_watch(raw, b"", SETTINGS))),
    "subscribe": ("a subscription", lambda data: _subscribe(data.decode("utf-8", "replace").encode())),
    "claim": ("a claim", partial(_body, lambda raw: queue_requests.decode_claim(raw, SETTINGS))),
    "ack": ("an ack", partial(_body, lambda raw: queue_requests.decode_ack(raw, SETTINGS))),
    "nack": ("a nack", partial(_body, lambda raw: queue_requests.decode_nack(raw, SETTINGS))),
    "extend": ("an extend", partial(_body, lambda raw: queue_requests.decode_extend(raw, SETTINGS))),
}


def _cursors() -> list[bytes]:
    found = [topic_requests.TOPIC_CURSORS.encode("orders"), topic_requests.ROUTER_CURSORS.encode("a>b")]
    return [cursor.encode() for cursor in found] + [urlsafe_b64encode(b"t:\xff")]


def _asked(name: str, about: str, take: Callable[[bytes], None], seeds: Sequence[bytes], **more: Any) -> Target:
    return Target(name, about, take, lambda: seeds, modules=HTTP, **more)


TARGETS: Final[tuple[Target, ...]] = (
    *(
        _asked(f"body-{name}", f"the body of {what}", take, _SEEDS[name], vary=mutations.vary_json)
        for name, (what, take) in _DECODERS.items()
    ),
    _asked(
        "upload",
        "the lines of an upload, in batches",
        _lines,
        [
            b'{"data":1}\n{"data":{"a":"b"}}\r\n\n{"data":"x","tag":"t"}\n',
            b'{"data":1}\n' * 8,
            b'{"data":1,"meta":{"k":"v"},"node":"n"}\n {"data":[]}',
        ],
    ),
    _asked(
        "query",
        "query strings",
        _query,
        [
            b"from_seq=3&limit=10&node=a&node=b&include_tags=1&wait_ms=5",
            b"prefix=or&page_size=-5&cursor=dDpvcmRlcnM&touch=false&source=a&dest=b",
            b"stage=s1&return_seqs=0&match=a%2A&to_ts=9&node=%C3%A9",
            b"node=n&max=3&lease_ms=100&hold_ms=5&if_empty=true",
        ],
    ),
    _asked("cursor", "cursors of lists", _cursor, _cursors()),
    _asked(
        "path",
        "methods and paths",
        _path,
        [b"POST /v0/topics/orders/diff", b"GET http://host/v0/topics/%6Frders", b"DELETE /v0/topics/a/stages/s%201"],
    ),
    _asked("accept-events", "an Accept header of a stream", _accepts, [b"text/event-stream;q=0.1,*/*", b"text/*;q=0"]),
)
