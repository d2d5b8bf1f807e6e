"""What a request may cost before it is refused: bounds on what is made of it, looked at and repeated.

Nothing here measures time. Where a bound is one of work, what would be done beyond it is counted or made to fail.
"""

from __future__ import annotations

import codecs
import gc
import gzip
import json
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.engine.life import living
from tests.http.conftest import Served
from tests.http.requests.test_bodies import WIDE
from tests.http.test_gate import error_of
from topics.engine.delivery.kept_filters import KeptFilters
from topics.engine.delivery.node_lists import NodeLists
from topics.errors import ApiError, invalid
from topics.filters.record_filter import Filter, parse_filter
from topics.http.requests import (
    append_requests,
    body_reader,
    json_checks,
    query_strings,
    queue_requests,
    read_requests,
    topic_requests,
    transaction_requests,
    watch_requests,
)
from topics.http.routes import RouteTable
from topics.model import WatchRequest, WatchStart
from topics.telemetry.audit_log import make_entry

HUGE = 300 << 10


def error_from(call: Any, *arguments: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        call(*arguments)
    error: ApiError = raised.value
    assert len(error.message) < 1200
    assert all(len(str(value)) < 500 for value in error.detail.values()), "what is repeated is short"
    return error


# --- bodies ----------------------------------------------------------------------------------------------------------

CALLS = [
    ("PUT", "/v0/topics/a"), ("PUT", "/v0/routers/r"), ("POST", "/v0/topics/a/delete"), ("POST", "/v0/topics/a/diff"),
    ("POST", "/v0/topics/a/claim"), ("POST", "/v0/topics/a/nack"), ("POST", "/v0/topics/a/redrive"),
    ("POST", "/v0/topics/a/jobs/retry"), ("POST", "/v0/topics/a/jobs/cancel"),
    ("POST", "/v0/topics/a/extend"), ("POST", "/v0/watch"),
]  # fmt: skip


@pytest.mark.trio
@pytest.mark.parametrize("how", ["announced", "chunked", "gzipped"])
async def test_a_call_that_appends_nothing_has_a_small_body(served: Served, how: str) -> None:
    body = b'{"x":"%b"}' % (b"y" * HUGE)
    headers = {"content-type": "application/json"}
    content: Any = body
    if how == "chunked":

        async def content_of() -> Any:
            yield body

    if how == "gzipped":
        content, headers["content-encoding"] = gzip.compress(body), "gzip"
    async with served.client() as client:
        for method, path in CALLS:
            sent = content_of() if how == "chunked" else content
            answer = await client.request(method, path, content=sent, headers=headers)
            assert error_of(answer, 413, "payload_too_large") == {"limit": "max_call_bytes", "max": 256 << 10}
        assert served.gate._reader.budget.used == 0
        # An append may be larger, and so may the names of stages.
        answer = await client.post(
            "/v0/topics/a",
            content=b'{"records":[{"data":1}],"x":"%b"}' % (b"y" * HUGE),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 201
        names = {"stages": ["s" * 200 + str(i) for i in range(2000)], "idempotency_key": "k"}
        error_of(await client.post("/v0/topics/a/commit", json=names), 404, "stage_not_found")


def test_pieces_of_two_bytes_are_put_together() -> None:
    joiner = body_reader._Joiner()
    for i in range(100_000):
        joiner.add(b"%02d" % (i % 100))
    joiner.add(b"y" * 50_000)
    joiner.add(b"z")
    assert joiner.objects < 100
    assert joiner.join() == b"".join(b"%02d" % (i % 100) for i in range(100_000)) + b"y" * 50_000 + b"z"
    assert body_reader._Joiner().join() == b""


@pytest.mark.trio
async def test_a_body_in_pieces_of_two_bytes_is_whole(served: Served) -> None:
    body = b'{"records":[{"data":"%b"}]}' % (b"x" * 20_000)
    pieces = [body[i : i + 2] for i in range(0, len(body), 2)]
    request = b"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request += b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    request += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    assert b"201" in (await served.exchange(request)).split(b"\r\n")[0]
    [append] = served.engine.appends
    assert append.datas == [b'"%b"' % (b"x" * 20_000)]  # type: ignore[attr-defined]


def test_records_beyond_the_limit_are_not_made() -> None:
    few = replace(WIDE, max_batch_records=10)
    for record in (b'{"data":1}', b'{"data":1,"colour":"red"}'):
        # If they were decoded before they are counted, the last one would be the mistake.
        body = b'{"records":[%b{"data":1,"tag":5}]}' % ((record + b",") * 1000)
        error = error_from(append_requests.decode_append, body, few)
        assert (error.code, error.detail["max"]) == ("batch_too_large", 10)
    nested = b'{"records":[%b]}' % b",".join([b'{"data":[%b{}]}' % (b"{}," * 100)] * 10)
    assert len(append_requests.decode_append(nested, few).datas) == 10


def test_a_meta_of_many_keys_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_requests, "_strict_append", None)
    monkeypatch.setattr(append_requests, "_strict_record", None)
    keys = b",".join(b'"%x":""' % i for i in range(30_000))
    for name in (b"meta", b"m\\u0065ta"):
        error = error_from(
            append_requests.decode_append, b'{"records":[{"data":1},{"data":1,"%b":{%b}}]}' % (name, keys), WIDE
        )
        assert error.detail == {"field": "records[1].meta", "max": 64}
    with pytest.raises(append_requests.BadLine) as bad:
        append_requests.decode_lines([b'{"data":1}', b'{"data":1,"meta":{%b}}' % keys], WIDE)
    assert (bad.value.index, bad.value.error.detail["field"]) == (1, "meta")


def test_a_meta_may_be_full_of_quotes_and_blanks() -> None:
    meta = {f"k{i}": '"' * 100 for i in range(64)}
    text = json.dumps({"records": [{"data": "x" * 300_000, "meta": meta}]}, indent=40).encode()
    assert append_requests.decode_append(text, WIDE).metas == [msgspec.json.encode(meta)]
    line = json.dumps({"data": "x" * 300_000, "meta": meta}).encode()
    assert append_requests.decode_lines([line], WIDE).metas == [msgspec.json.encode(meta)]


def test_text_is_checked_in_pieces() -> None:
    most: list[int] = []

    class Decoder:
        def __init__(self) -> None:
            self._decoder = codecs.getincrementaldecoder("utf-8")()

        def getstate(self) -> Any:
            return self._decoder.getstate()

        def decode(self, data: memoryview, final: bool) -> str:
            most.append(len(data))
            text: str = self._decoder.decode(bytes(data), final)
            return text

    before = json_checks._utf8
    try:
        json_checks._utf8 = Decoder  # type: ignore[misc, assignment]
        json_checks.check_utf8("\U0001f600".encode() * (1 << 20))
    finally:
        json_checks._utf8 = before  # type: ignore[misc]
    assert max(most) == 1 << 20


@pytest.mark.parametrize("at", [0, 1, 7, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) - 2, (2 << 20) + 3])
def test_the_first_byte_that_is_no_text_is_named_wherever_it_stands(at: int) -> None:
    for around in ("x", "\u00e9", "\U0001f600"):
        text = (around * (3 << 20)).encode()
        at_character = at - at % len(around.encode())
        raw = text[:at_character] + b"\xff" + text[at_character : 2 << 20]
        assert f"byte {at_character})" in error_from(json_checks.check_utf8, raw).message
    assert "byte 5)" in error_from(json_checks.check_utf8, b"12345\xf0\x9f").message


def test_a_huge_unknown_key_is_not_repeated() -> None:
    name = "k" * (60 << 20)
    error = error_from(
        append_requests.decode_append, b'{"records":[{"data":1}],"config":{"%b":1}}' % name.encode(), WIDE
    )
    assert error.detail["field"].startswith("config.kkkk")
    assert error_from(topic_requests.decode_config_patch, b'{"%b":1}' % name[:1000].encode()).message.endswith(
        "no such field"
    )


def test_a_key_that_looks_like_a_path_is_none() -> None:
    error = error_from(topic_requests.decode_config_patch, b'{"x - at `$.y`":1}')
    assert error.detail["field"] == "x - at `$.y`"


def test_errors_repeat_little() -> None:
    error = invalid("x" * 10_000, "y" * 10_000)
    assert len(error.message) < 1100
    assert len(error.detail["field"]) < 400


# --- lists -----------------------------------------------------------------------------------------------------------


def test_topics_are_counted_before_any_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(watch_requests, "decode_json", _counting(json_checks.decode_json, looked_at))
    topics: dict[str, dict[str, int]] = {f"t{i}": {} for i in range(10_000)}
    for call, arguments in [
        (watch_requests.decode_watch, (json.dumps({"topics": topics}).encode(), b"", WIDE)),
        (watch_requests.decode_subscribe, (json.dumps({"topics": topics}).encode(), WIDE)),
    ]:
        looked_at.clear()
        error = error_from(call, *arguments)
        assert (error.detail["field"], error.detail["max"]) == ("topics", 256)
        assert len(looked_at) == 1, "the body itself"


def _counting(function: Any, calls: list[str]) -> Any:
    def counted(*arguments: Any) -> Any:
        calls.append("")
        return function(*arguments)

    return counted


def test_seqs_that_come_again_are_looked_at_once() -> None:
    request = queue_requests.decode_ack(b'{"node":"n","seqs":[%b2]}' % (b"1," * 100_000), WIDE)
    assert request.seqs == [1, 2]
    pairs = {"node": "n", "seqs": [1, 2, 1, 1], "lease_ids": ["a", "b", "lease_0000000000000001", "a"]}
    request = queue_requests.decode_ack(json.dumps(pairs).encode(), WIDE)
    assert (request.seqs, request.lease_ids) == ([1, 2, 1], [-1, -1, 1])


def test_a_seq_has_few_lease_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_requests, "_lease_id", None)
    ids = [str(i) for i in range(4001)]
    body = json.dumps({"node": "n", "seqs": [1] * len(ids), "lease_ids": ids}).encode()
    assert error_from(queue_requests.decode_ack, body, WIDE).code == "batch_too_large"


def test_stages_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_requests, "_commit_body", None)
    for many in (b'"",' * 1_000_000, b"1," * 1_000_000):
        body = b'{"stages":[%b],"idempotency_key":"k"}' % many[:-1]
        assert error_from(topic_requests.decode_commit, body).detail == {"field": "stages", "max": 10_000}


def test_nodes_that_are_left_out_are_few() -> None:
    nodes = [f"n{i}" for i in range(1000)]
    most = json.dumps({"node": nodes}).encode()
    assert len(read_requests.decode_read(most, WIDE).nodes) == 1000
    query = "&".join(f"node={node}" for node in nodes).encode()
    assert len(read_requests.decode_read_query(query, WIDE).nodes) == 1000
    watch = json.dumps({"topics": {"a": {}}, "node": [*nodes, "one"]}).encode()
    for call, arguments in [
        (read_requests.decode_read, (json.dumps({"node": [*nodes, "one"]}).encode(), WIDE)),
        (read_requests.decode_read_query, (query + b"&node=one", WIDE)),
        (read_requests.decode_export, (query + b"&node=one", WIDE)),
        (watch_requests.decode_watch, (watch, b"", WIDE)),
        (watch_requests.decode_subscribe, (watch, WIDE)),
        (watch_requests.decode_stream, ("a", query + b"&node=one", WIDE)),
    ]:
        error = error_from(call, *arguments)
        assert error.detail == {"field": "node", "max": 1000}


def test_the_filters_of_one_call_have_a_bounded_number_of_values() -> None:
    """A call of 256 KiB had room for 20 filters of 6,400 values, 50 ms each, in one step."""
    values = ",".join(["1"] * 100)
    predicates = ",".join([f'["data","/n","In",[{values}]]'] * 60)
    largest = f'["Or",{predicates}]'
    for count, is_refused in ((1, False), (2, True)):
        starts = ",".join(f'"t{i}":{{"filter":{largest}}}' for i in range(count))
        watch = f'{{"topics":{{{starts}}},"filter":{largest}}}'.encode()
        calls: list[tuple[Any, tuple[Any, ...]]] = [
            (watch_requests.decode_watch, (watch, b"", WIDE)),
            (watch_requests.decode_watch, (watch.replace(b"topics", b"prefixes"), b"", WIDE)),
            (watch_requests.decode_subscribe, (watch, WIDE)),
        ]
        for call, arguments in calls:
            if is_refused:
                assert error_from(call, *arguments).detail == {"field": "filter", "max": 10_000}
            else:
                assert call(*arguments).filter is not None


def test_the_brackets_of_a_transaction_are_counted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once they take 40 ms for each MiB."""
    steps: list[int] = []
    count = json_checks.depth_of

    def counted(raw: bytes) -> int:
        steps.append(len(raw))
        return count(raw)

    monkeypatch.setattr(json_checks, "depth_of", counted)
    monkeypatch.setattr(transaction_requests, "depth_of", counted, raising=False)
    data: list[Any] = [[]] * 50_000
    member = {"records": [{"data": data}, {"data": data}]}
    body = json.dumps({"appends": [{"topic": "a", **member}, {"topic": "b", **member}]}).encode()
    taken = sum(1 for _ in transaction_requests.decode_transaction(body, WIDE))
    assert not [size for size in steps if size > len(body) // 2]
    assert taken > len(body) // (256 << 10)
    deep = b'{"appends":[{"topic":"a","x":' + b"[" * 600 + b"]" * 600 + b'},{"topic":"b"}]}'
    with pytest.raises(ApiError, match="nesting is deeper"):
        list(transaction_requests.decode_transaction(deep, WIDE))


def test_node_lists_count_until_nobody_holds_them() -> None:
    lists = NodeLists(most=5000)
    nodes = frozenset(f"node-{i}" for i in range(10))
    kept = lists.keep(nodes)
    assert kept == nodes
    assert 0 < lists.used <= 5000
    others: list[frozenset[str]] = []
    while (other := lists.keep(frozenset(["x" * len(others) for _ in range(5)]))) is not None:
        others.append(other)
    assert others
    before = lists.used
    del kept, other
    assert lists.used < before
    others.clear()
    assert lists.used == 0
    assert lists.keep(frozenset()) == frozenset()


def test_filters_of_watchers_count_until_nobody_holds_them_and_once_for_all_that_share_one() -> None:
    filters = KeptFilters(most=1 << 20)
    held: list[Filter] = []
    while filters.keep(wanted := parse_filter(many_places(len(held)))):
        assert filters.keep(wanted)
        held.append(wanted)
    assert filters.used == sum(one.memory for one in held) <= 1 << 20
    assert filters.keep(None)
    del wanted
    held.pop()
    gc.collect()
    assert filters.used == sum(one.memory for one in held)
    held.clear()
    gc.collect()
    assert filters.used == 0


def test_filters_that_are_only_remembered_make_room() -> None:
    """Short ones are kept for the next who sends them. Long ones, which are not, would be refused for ever."""
    filters = KeptFilters(most=1 << 20)
    count = 0
    while filters.used + 300_000 < 1 << 20:
        text = json.dumps(["Or", *(["data", f"/a{place}/b/c", "Eq", count] for place in range(50))])
        assert len(text) < 2048
        assert filters.keep(parse_filter(text))
        count += 1
        assert count < 256
    assert filters.used > 500_000
    held = [parse_filter(many_places(number)) for number in range(10)]
    room = [one for one in held if filters.keep(one)]
    assert room
    assert filters.used == sum(one.memory for one in room)


def many_places(number: int) -> str:
    """A filter that takes much more memory than its text."""
    return json.dumps(["Or", *(["data", f"/a{place}/b/c/d/e/f/g/h", "Eq", number] for place in range(60))])


def test_the_memory_of_a_filter_is_estimated_by_what_it_takes() -> None:
    texts = [many_places(number) for number in range(20)]
    gc.collect()
    tracemalloc.start()
    try:
        filters = [parse_filter(text) for text in texts]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    estimated = sum(one.memory for one in filters)
    assert taken < estimated < 4 * taken


@pytest.mark.trio
async def test_watches_with_filters_beyond_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living() as life:
        await life.put("t")
        sessions = life.engine.watch_sessions
        monkeypatch.setattr(sessions._filters, "most", 1 << 20)
        opened: list[Any] = []

        def open_many() -> None:
            while True:
                wanted = parse_filter(many_places(len(opened)))
                opened.append(sessions.open(WatchRequest(topics={"t": WatchStart()}, filter=wanted)))

        with pytest.raises(ApiError) as refused:
            open_many()
        assert refused.value.code == "throttled"
        assert refused.value.detail["limit"] == "max_filter_bytes"
        assert opened
        assert sessions.session_count == len(opened)


def test_no_pattern_is_longer_than_a_tag() -> None:
    longest = "t" * WIDE.max_tag_bytes
    match = topic_requests.decode_delete(json.dumps({"match": ["tag", "Glob", longest + "*"]}).encode(), WIDE).match
    assert match is not None
    assert match.pattern == longest
    for pattern in (longest + "t", ["tag", "Eq", longest + "t"], ["tag", "Glob", longest + "t*"]):
        assert (
            error_from(topic_requests.decode_delete, json.dumps({"match": pattern}).encode(), WIDE).detail["field"]
            == "match"
        )
        body = json.dumps({"source": "a", "dest": "b", "filter": pattern}).encode()
        assert error_from(topic_requests.decode_router_patch, body, WIDE).detail["field"] == "filter"
    assert error_from(read_requests.decode_export, f"match={longest}t".encode(), WIDE).detail["field"] == "match"


# --- heads -----------------------------------------------------------------------------------------------------------


def test_parameters_are_counted_before_they_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_strings, "parse_qsl", None)
    assert error_from(query_strings.Query, b"a&" * 60_000).detail == {"field": "query", "max": 2000}


def test_a_path_of_many_segments_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.http.routes.unquote_to_bytes", None)
    assert error_from(RouteTable().find, "GET", b"/%41" * 30_000).code == "not_found"


def test_of_a_long_segment_no_more_is_decoded_than_a_name_may_have() -> None:
    found = RouteTable().find("GET", b"/v0/topics/" + b"%41" * 255)
    assert found.params() == {"topic": "A" * 255}
    error = error_from(RouteTable().find("GET", b"/v0/topics/" + b"%41" * 40_000).params)
    assert error.detail["field"] == "topic"


def test_the_audit_log_takes_little_of_a_query() -> None:
    entry = make_entry(now_ms=0, request_id="r", key="k", peer=None, call="c", query=b"a=%41&token=secret&" * 9000,
                       status=200, ms=0.0)  # fmt: skip
    assert len(entry.query) < 1100
    for cut in range(4080, 4100):
        query = b"x" * cut + b"&token=secret"
        shown = make_entry(
            now_ms=0, request_id="r", key="k", peer=None, call="c", query=query, status=200, ms=0.0
        ).query
        assert "secret" not in shown
        assert "token" not in shown


# --- gzip ------------------------------------------------------------------------------------------------------------


def test_members_without_content_are_few() -> None:
    empty = gzip.compress(b"")
    inflater = body_reader._Inflater(1 << 20)
    inflater.feed(gzip.compress(b"[1") + empty * 1000 + gzip.compress(b"]"))
    assert b"".join(_pieces(inflater)) == b"[1]"
    inflater = body_reader._Inflater(1 << 20)
    inflater.feed(empty * 1001)
    with pytest.raises(ApiError, match="empty"):
        list(_pieces(inflater))


def test_a_step_takes_little_input_and_gives_all_of_it_back() -> None:
    text = bytes(range(256)) * 4096
    for level in (0, 9):
        packed = zlib.compress(text, level, 31)
        members = b"".join(gzip.compress(text[i : i + 3]) for i in range(0, 9000, 3))
        inflater = body_reader._Inflater(1 << 16)
        found = b""
        steps = 0
        for data in (packed, members[:5000], members[5000:]):
            inflater.feed(data)
            for piece in _pieces(inflater):
                assert len(inflater._input) <= 16 << 10
                assert len(piece) <= 1 << 16
                found += piece
                steps += 1
        inflater.finish()
        assert found == text + text[:9000]


def _pieces(inflater: Any) -> Any:
    while inflater.pending:
        yield inflater.next_piece()
