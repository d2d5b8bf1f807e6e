"""Targets in text: what people and programs write for the daemon, the clients and the command line, and what a client
reads of a daemon that may be another service.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import httpx
import msgspec

from tests.fuzz import mutations
from tests.fuzz.asked import checked
from tests.fuzz.target import Target
from topics.auth.keys import Key, Keyring, MalformedKeys, parse_key_file, parse_keys
from topics.cli.records.record_input import BadInput, Form, LineSplitter, Parser
from topics.cli.values import parse_duration, parse_size
from topics.client import calls, daemon_calls, results
from topics.client.bulk import ExportDownload
from topics.client.errors import ProtocolError, TopicsError
from topics.client.streams.follower import Follower, named, watch
from topics.client.streams.sse import EventDecoder
from topics.client.transport import result
from topics.config import ConfigError, load_settings
from topics.engine.delivery.feed import SHUTTING_DOWN
from topics.http.accept import qualities
from topics.http.answers.sse import EVENTS, heartbeat, job_event, with_id
from topics.http.requests.append_requests import check_key
from topics.log.names import check_node, check_router_name, check_topic_name
from topics.log.tag_match import TagMatch, parse_match
from topics.model import Tombstone
from topics.telemetry.audit_log import make_entry

CLIENT: Final = ("topics.client",)
PIECE: Final = 17
"""Bytes a stream comes in, beside all at once."""


def _text(data: bytes) -> str:
    """As it comes from the command line and the environment."""
    return data.decode("utf-8", "surrogateescape")


# ----------------------------------------------------------------- the operator


def _keys(data: bytes) -> None:
    with suppress(MalformedKeys, UnicodeDecodeError):
        _check_keys(parse_key_file(data.decode()))
    with suppress(MalformedKeys):
        _check_keys(parse_keys(_text(data)))


def _check_keys(keys: Iterable[Key]) -> None:
    ring = Keyring(keys)
    for key in ring:
        assert len(key.digest) == 32
        assert ring.find(b"no such key") is None
        key.covers("orders")
        key.covered("ord")
        assert list(key.prefixes) == sorted(key.prefixes)


def _settings(data: bytes) -> None:
    """One setting a line, as the environment has them."""
    lines = _text(data).replace("\x00", "").split("\n")
    environ = {name: value for name, _, value in (line.partition("=") for line in lines) if name}
    with suppress(ConfigError):
        load_settings(environ)
    with suppress(ConfigError):
        load_settings({}, {name.removeprefix("TOPICS_").lower(): value for name, value in environ.items()})


def _value(data: bytes) -> None:
    for parse in (parse_duration, parse_size):
        with suppress(ValueError):
            assert parse(_text(data)) >= 0


# ----------------------------------------------------------------- names and words of requests


def _match(data: bytes) -> None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = _text(data)
    match = checked(partial(parse_match, value))
    if isinstance(match, TagMatch):
        assert parse_match(match.to_wire()) == match
        match.matches(None)
        match.matches(match.pattern)


def _name(data: bytes) -> None:
    text = _text(data)
    for check in (
        check_topic_name,
        check_router_name,
        partial(check_node, max_bytes=128),
        partial(check_key, field="k"),
    ):
        checked(partial(check, text))


def _accept(data: bytes) -> None:
    for quality in qualities(data).values():
        assert isinstance(quality, float)


def _audited(data: bytes) -> None:
    """A line of the audit log holds any text that a client has sent, and is one line."""
    half = len(data) // 2
    entry = make_entry(
        now_ms=1,
        request_id="id",
        key="none",
        peer=("host", 1),
        call="put_topic" if half % 2 else "publish",
        topic=_text(data[:half]).encode("utf-8", "replace").decode(),
        query=data[:half],
        body=data,
        status=200,
        ms=1.0,
    )
    assert b"\n" not in msgspec.json.encode(entry)


# ----------------------------------------------------------------- what a client reads


def _events(data: bytes) -> None:
    """The same events from pieces of any sizes."""
    found = []
    for size in (len(data) or 1, PIECE):
        decoder = EventDecoder()
        events: list[object] = []
        try:
            for at in range(0, len(data), size):
                events += decoder.feed(data[at : at + size])
        except ProtocolError:
            events.append("refused")
        found.append(events)
    assert found[0] == found[1]


def _following(data: bytes) -> None:
    """A follower that is given a stream, and asks again after it."""
    following: Follower = watch({"orders": 0, "events": "tail"}, caught_up=True)
    topics = {
        name: results.WatchedTopic(from_seq=0, head_seq=9, earliest_seq=1, epoch=1) for name in ("orders", "events")
    }
    following.answered(results.Watch(wid="wid", stream_url="/v0/watch/wid", session_ttl_ms=1, topics=topics))
    following.next_call()
    with suppress(ProtocolError):
        following.feed(data, 0.0)
    while following.take() is not None:
        pass
    with suppress(TopicsError):
        following.finished(0.0)
    if not following.ended:
        following.next_call()


def _export(data: bytes) -> None:
    for size in (len(data) or 1, PIECE):
        export = ExportDownload("orders", 0, 99, 1)
        with suppress(ProtocolError):
            for at in range(0, len(data), size):
                for value in export.feed(data[at : at + size]):
                    repr(value)


_ANSWERS: Final[tuple[calls.ClientCall[Any], ...]] = (
    calls.state("orders"),
    calls.topic_page(),
    calls.append("orders", [1], idempotency_key="k"),
    calls.diff("orders"),
    calls.claim("orders", "node"),
    calls.extend("orders", "node", [1], lease_ms=1000),
    calls.create_watch({"orders": {"from_seq": 0}}),
    calls.router("copying"),
    daemon_calls.metrics(),
)


def _answer(data: bytes) -> None:
    """An answer to any call, with any status; and of the page of a read each value."""
    headers = httpx.Headers({"retry-after": _text(data[:4]).encode("ascii", "replace").decode()})
    for call in _ANSWERS:
        for status in (200, 400, 429, 500, 503):
            with suppress(TopicsError):
                found = result(call, status, headers, data)
                if isinstance(found, results.Page):
                    for value in calls.values_of(found):
                        repr(value)


def _id(data: bytes) -> None:
    assert all(isinstance(name, str) for name in named(_text(data)))


def _records_in(form: Form, data: bytes) -> None:
    """Records for `topics append`; what cannot be one is told with its line."""
    parser = Parser(
        form=form, tag_field="tag" if form in ("ndjson", "csv") else None, node_field=None, meta={"source": "file"}
    )
    for size in (len(data) or 1, PIECE):
        splitter = LineSplitter()
        refused: BadInput | None = None
        try:
            lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
            for parsed in parser.parse([*lines, *splitter.end()]):
                calls.encode_record(parsed.record)
        except BadInput as error:
            refused = error
        if refused is not None:
            assert refused.number >= 1
            assert refused.problem


# ----------------------------------------------------------------- seeds


def _key_seeds() -> list[bytes]:
    return [
        b"secret",
        b"secret:rw,other:read+delete:orders|events,third::a",
        b"# of the operators\nsecret:a\n\n  other:r+w:orders \r\n",
        b"k" * 200 + b":admin:" + b"|".join(b"p%d" % i for i in range(30)),
    ]


def _stream_seeds() -> list[bytes]:
    cursor = b"eyJvcmRlcnMiOjMsImV2ZW50cyI6MX0"
    gap = Tombstone(gap_from=4, gap_to=6, reason="cap", missed_estimate=3, earliest_seq=7, head_seq=9)
    record = b'{"$seq":3,"$ts":1,"$tag":"t","$node":"n","data":{"a":[1,2]},"meta":{"k":"v"}}'
    frames = [
        EVENTS.record("orders", record, 2, 3, 9),
        EVENTS.tombstone("orders", gap, "cap"),
        EVENTS.caught_up("orders", 9),
        EVENTS.topic_deleted("events", 4),
        EVENTS.paced(["orders"], 500),
    ]
    named_frames = b"".join(with_id(cursor) + frame for frame in frames)
    return [
        b"retry: 2000\n\n" + named_frames,
        heartbeat(5) + frames[0] + EVENTS.final(SHUTTING_DOWN),
        job_event(3, record),
    ]


def _export_seeds() -> list[bytes]:
    record = b'{"$seq":3,"$ts":1,"$tag":"t","data":{"a":1},"meta":{"k":"v"}}\n'
    gap = b'{"$tombstone":{"gap_from":4,"gap_to":6,"reason":"ttl","earliest_seq":7,"head_seq":9}}\n'
    end = b'{"$end":{"next_from_seq":9,"head_seq":9,"count":2}}\n'
    return [record + gap + end, record * 3, end]


def _answer_seeds() -> list[bytes]:
    said = [
        {"error": {"code": "throttled", "message": "wait", "detail": {"limit": "x", "retry_after_ms": 5}}},
        {
            "topic": "orders",
            "epoch": 1,
            "records": [{"$seq": 1, "$ts": 2, "data": {"a": 1}, "meta": {"k": "v"}}],
            "next_from_seq": 1,
            "head_seq": 1,
            "earliest_seq": 1,
            "caught_up": True,
            "tombstone": {"gap_from": 1, "gap_to": 2, "reason": "cap", "earliest_seq": 3, "head_seq": 4},
            "lag": 0,
        },
        {
            "topic": "orders",
            "claimed": [{"$seq": 1, "$ts": 2, "data": 1, "lease_id": "lease_1", "deadline": 3, "deliveries": 1}],
            "count": 1,
            "ready": 0,
        },
        {"topic": "orders", "extended": 1, "skipped": [2], "deadlines": {"1": 5}},
        {"topics_up": 1.0, "topics_requests_total": [{"labels": {"route": "x"}, "value": 3}]},
    ]
    return [json.dumps(answer).encode() for answer in said]


def _setting_seeds() -> list[bytes]:
    return [
        b"TOPICS_WAL_SHARDS=2\nTOPICS_CACHE_BYTES=64MiB\nTOPICS_CHECKPOINT_MS=5s\nTOPICS_RECOVERY=salvage",
        b"TOPICS_API_KEYS=k:rw:orders\nTOPICS_RATE_PER_KEY=10/1MiB\nTOPICS_CORS_ORIGINS=https://a.example,http://[::1]:8",
        b"TOPICS_REWRITE_LIVE_RATIO=0.25\nTOPICS_DATA_DIR=/data\nTOPICS_LISTEN=127.0.0.1:4000\nTOPICS_PROBE_AUTH=1",
    ]


_LINES: Final[dict[Form, list[bytes]]] = {
    "text": [b"one\ntwo\r\n\nlast", "für\n".encode()],
    "ndjson": [b'{"tag":"t","n":1}\n{"tag":7}\n\n', b'{"tag":null}\n'],
    "records": [b'{"data":1,"tag":"t","meta":{"k":"v"}}\n{"$seq":1,"$tag":"x","data":[]}\n{"$end":{}}\n'],
    "csv": [b'tag,b\r\nx,"a ""quoted""\r\nfield"\r\n,2\r\n', b"\xef\xbb\xbftag,b\n1,2\n"],
}


def _written(name: str, about: str, take: Callable[[bytes], None], seeds: Any, **more: Any) -> Target:
    return Target(name, about, take, seeds if callable(seeds) else lambda: seeds, **more)


TARGETS: Final[tuple[Target, ...]] = (
    _written("keys", "API keys, of a file and of the environment", _keys, _key_seeds, modules=("topics.auth.keys",)),
    _written("settings", "settings of the environment and the command line", _settings, _setting_seeds),
    _written("values", "durations and sizes on the command line", _value, [b"1h30m", b"1.5s", b"64KiB", b"10MB", b"7"]),
    _written(
        "match",
        "conditions on tags",
        _match,
        [b'["tag","Glob","a*"]', b'["tag","Eq","x"]', b'"plain"'],
        vary=mutations.vary_json,
    ),
    _written(
        "names", "names of topics, routers and nodes, idempotency keys", _name, [b"orders:eu-1", b"a>b", b"key/1"]
    ),
    _written("accept", "Accept and Accept-Encoding", _accept, [b"text/event-stream;q=0.5, */*;q=0", b"gzip, br;q=1.0"]),
    _written("audit", "a line of the audit log", _audited, [b'{"cap_records":1}', b'{"records":[],"config":{}}']),
    _written("events", "a stream of events, in pieces", _events, _stream_seeds, modules=CLIENT),
    _written("following", "a stream of events that a client follows", _following, _stream_seeds, modules=CLIENT),
    _written("export", "the lines of an export", _export, _export_seeds, modules=CLIENT),
    _written("answer", "answers to a client's calls", _answer, _answer_seeds, vary=mutations.vary_json, modules=CLIENT),
    _written(
        "event-id", "an id of an event, as a client keeps it", _id, [b"eyJvcmRlcnMiOjN9", b"WzEsMl0"], modules=CLIENT
    ),
    *(
        _written(f"lines-{form}", f"lines for topics append, as {form}", partial(_records_in, form), seeds)
        for form, seeds in _LINES.items()
    ),
)
