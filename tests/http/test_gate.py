"""What every request passes, seen by a client: answers, refusals, encodings, memory, phases of the daemon."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from tests.http.conftest import SMALL, Served, serving, until
from topics.config import Settings
from topics.errors import ApiError, not_owner
from topics.http.gate import accepts_gzip

pytestmark = pytest.mark.trio

APPEND = {"records": [{"data": {"n": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}]}


def error_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The `detail` of an error envelope with this status and code."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body["error"].keys() == {"code", "message", "detail"}
    assert body["error"]["code"] == code
    detail: dict[str, Any] = body["error"]["detail"]
    return detail


@pytest.mark.parametrize("http2", [False, True])
async def test_a_topic_is_written_read_and_deleted(served: Served, http2: bool) -> None:
    async with served.client(http2=http2) as client:
        put = await client.put("/v0/topics/jobs", json={"ttl_ms": 5})
        assert (put.status_code, put.json()["created"], put.json()["config"]["ttl_ms"]) == (201, True, 5)
        assert put.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        again = await client.put("/v0/topics/jobs")
        assert (again.status_code, again.json()["created"], again.json()["config"]["ttl_ms"]) == (200, False, 5)

        appended = await client.post("/v0/topics/jobs", json=APPEND)
        assert appended.status_code == 200
        body = appended.json()
        assert body["performance"].pop("server_total_ms") > 0
        assert body == {
            "topic": "jobs", "first_seq": 1, "last_seq": 1, "seqs": [1], "head_seq": 1, "count": 1, "created": False,
            "deduped": False, "performance": {"wal_append_ms": 0.1},
        }  # fmt: skip
        assert "seqs" not in (await client.post("/v0/topics/jobs?return_seqs=false", json=APPEND)).json()
        assert (await client.post("/v0/topics/new", json=APPEND)).status_code == 201

        by_post = (await client.post("/v0/topics/jobs/diff", json={"from_seq": 1})).json()
        by_get = (await client.get("/v0/topics/jobs/diff?from_seq=1")).json()
        assert by_post.pop("performance").keys() == by_get.pop("performance").keys()
        assert by_post == by_get
        assert by_post.keys() == {
            "topic", "epoch", "records", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "tombstone", "lag",
        }  # fmt: skip
        assert [record["data"] for record in by_post["records"]] == [{"n": 1}]
        assert by_post["caught_up"] is True

        deleted = (await client.post("/v0/topics/jobs/delete", json={"before_seq": 2})).json()
        assert (deleted["deleted"], deleted["count"], deleted["head_seq"]) == (1, 1, 2)
        state = (await client.get("/v0/topics/jobs?touch=false")).json()
        assert (state["next_seq"], state["count"], state["last_read_ts"]) == (3, 1, None)
        error_of(await client.delete("/v0/topics/jobs?if_empty=true"), 409, "topic_not_empty")
        assert (await client.delete("/v0/topics/jobs")).json()["deleted"] is True
        assert (await client.delete("/v0/topics/jobs")).json()["deleted"] is False
        error_of(await client.get("/v0/topics/jobs"), 404, "topic_not_found")


async def test_every_success_has_a_performance_block(served: Served) -> None:
    async with served.client() as client:
        for method, path, body in [
            ("PUT", "/v0/topics/a", {}), ("POST", "/v0/topics/a", APPEND), ("GET", "/v0/topics/a", None),
            ("GET", "/v0/topics", None), ("GET", "/v0/topics/a/diff", None), ("POST", "/v0/topics/a/diff", {}),
            ("POST", "/v0/topics/a/delete", {"before_seq": 0}), ("DELETE", "/v0/topics/a", None),
        ]:  # fmt: skip
            response = await client.request(method, path, json=body)
            assert response.json()["performance"]["server_total_ms"] > 0, (method, path)


async def test_lists_go_on_after_the_cursor(served: Served) -> None:
    async with served.client() as client:
        for name in ("a", "b", "c", "d", "x"):
            await client.put(f"/v0/topics/{name}")
        first = (await client.get("/v0/topics?page_size=2")).json()
        assert [topic["topic"] for topic in first["topics"]] == ["a", "b"]
        await client.delete("/v0/topics/b")
        second = (await client.get(f"/v0/topics?page_size=2&cursor={first['next_cursor']}")).json()
        assert [topic["topic"] for topic in second["topics"]] == ["c", "d"]
        last = (await client.get(f"/v0/topics?page_size=2&cursor={second['next_cursor']}")).json()
        assert [topic["topic"] for topic in last["topics"]] == ["x"]
        assert "next_cursor" not in last
        error_of(await client.get("/v0/topics?cursor=nonsense"), 400, "invalid_request")


async def test_a_checkpoint_names_its_files_and_where_replay_begins(served: Served) -> None:
    async with served.client() as client:
        plain = (await client.post("/v0/admin/checkpoint")).json()
        assert plain["files"] == ["FORMAT", "meta/snapshot.1.cbor"]
        assert plain["position"] == [{"shard": 0, "file": 3, "offset": 4711}, {"shard": 1, "file": 0, "offset": 0}]
        assert (await client.post("/v0/admin/checkpoint?hold_ms=60000")).status_code == 200
        assert served.engine.holds == [0, 60_000]
        error_of(await client.post("/v0/admin/checkpoint?hold_ms=x"), 400, "invalid_request")
        error_of(await client.post("/v0/admin/checkpoint?hold_ms=-1"), 400, "invalid_request")


# --- routes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v0", "/v0/", "/v0/topics/", "/v0/topics/a/", "/v0/topics/a/b", "/v1/topics", "/healthz/", "/x"]
)
async def test_unknown_routes(served: Served, path: str) -> None:
    async with served.client() as client:
        error_of(await client.get(path), 404, "not_found")
        error_of(await client.post(path, json=APPEND), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", "/v0/topics/a", "DELETE, GET, POST, PUT"), ("POST", "/v0/topics", "GET"), ("PUT", "/healthz", "GET"),
        ("DELETE", "/v0/topics/a/diff", "GET, POST"), ("GET", "/v0/topics/a/delete", "POST"),
        ("OPTIONS", "/v0/topics/a", "DELETE, GET, POST, PUT"), ("POST", "/v0/metrics", "GET"),
    ],
)  # fmt: skip
async def test_methods_that_are_not_allowed(served: Served, method: str, path: str, allow: str) -> None:
    async with served.client() as client:
        response = await client.request(method, path)
        error_of(response, 405, "method_not_allowed")
        assert response.headers["allow"] == allow


@pytest.mark.parametrize("http2", [False, True])
async def test_head_is_not_allowed(served: Served, http2: bool) -> None:
    async with served.client(http2=http2) as client:
        response = await client.head("/v0/health")
        assert (response.status_code, response.headers["allow"], response.content) == (405, "GET", b"")
        assert (await client.get("/v0/health")).status_code == 200


@pytest.mark.parametrize("name", ["a%2Fb", "-a", "a%20b", "%ff", "a%00", "%C3%A9", "a" * 256, "%2e%2e", "a%0A", "a>b"])
@pytest.mark.parametrize("suffix", ["", "/diff", "/delete"])
async def test_a_bad_name_is_refused_on_every_path(served: Served, name: str, suffix: str) -> None:
    method = "GET" if suffix != "/delete" else "POST"
    request = f"{method} /v0/topics/{name}{suffix} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    head, _, body = (await served.exchange(request)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["detail"]["field"] == "topic"


async def test_a_percent_encoded_path_is_the_same_path(served: Served) -> None:
    async with served.client() as client:
        await client.put("/v0/topics/a:b")
    for target in (b"/v0/topics/a%3Ab", b"/v0/%74opics/a:b", b"http://x/v0/topics/a:b"):
        answer = await served.exchange(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 "), target


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v0/topics/a"), ("POST", "/v0/topics/a/diff"), ("POST", "/v0/topics/a/delete"), ("PUT", "/v0/topics/a")],
)
async def test_a_body_needs_the_right_content_type(served: Served, method: str, path: str) -> None:
    async with served.client() as client:
        for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/jsonx"}):
            response = await client.request(method, path, content=b'{"x":1}', headers=headers)
            error_of(response, 415, "unsupported_media_type")
        chunked = await client.request(method, path, content=pieces(b"{", b"}"))
        error_of(chunked, 415, "unsupported_media_type")
    assert not served.engine.topics


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=utf-8", "application/json;x=y"]
)
async def test_json_with_parameters_is_json(served: Served, content_type: str) -> None:
    async with served.client() as client:
        headers = {"content-type": content_type}
        assert (await client.put("/v0/topics/a", content=b"{}", headers=headers)).status_code == 201


async def test_no_body_needs_no_content_type(served: Served) -> None:
    async with served.client() as client:
        refused = await client.put("/v0/topics/a", headers={"content-type": "text/plain"})
        assert refused.status_code == 415  # a page of a stranger could send it
        assert (await client.put("/v0/topics/a")).status_code == 201
        assert (await client.post("/v0/topics/a/diff")).status_code == 200
        assert error_of(await client.post("/v0/topics/a"), 400, "invalid_request")["field"] == "records"
        assert error_of(await client.post("/v0/topics/a/delete"), 400, "invalid_request")["field"] == "before_seq"


async def pieces(*parts: bytes) -> Any:
    for part in parts:
        yield part


@pytest.mark.parametrize("http2", [False, True])
async def test_a_body_may_come_in_pieces(served: Served, http2: bool) -> None:
    raw = json.dumps(APPEND).encode()
    async with served.client(http2=http2) as client:
        headers = {"content-type": "application/json"}
        response = await client.post("/v0/topics/a", content=pieces(*(bytes([byte]) for byte in raw)), headers=headers)
        assert response.status_code == 201
    assert served.gate._reader.budget.used == 0


def filler(size: int) -> bytes:
    """A JSON body of exactly `size` bytes that appends one small record."""
    empty = b'{"records":[{"data":1}],"x":""}'
    return empty[:-2] + b"y" * (size - len(empty)) + empty[-2:]


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_may_be_as_large_as_the_limit_and_no_larger(served: Served, http2: bool, chunked: bool) -> None:
    headers = {"content-type": "application/json"}
    async with served.client(http2=http2) as client:
        for size, status in ((SMALL.max_body_bytes, 201), (SMALL.max_body_bytes + 1, 413)):
            body = filler(size)
            content = pieces(body[:70_000], body[70_000:]) if chunked else body
            response = await client.post("/v0/topics/a", content=content, headers=headers)
            assert response.status_code == status, response.text
        detail = error_of(response, 413, "payload_too_large")
        assert detail == {"limit": "max_body_bytes", "max": SMALL.max_body_bytes}
        assert (await client.get("/v0/health")).status_code == 200
    assert served.gate._reader.budget.used == 0


async def test_gzip_bodies_are_inflated(served: Served) -> None:
    raw = json.dumps(APPEND).encode()
    async with served.client() as client:
        for encoding, body in (
            ("gzip", gzip.compress(raw)),
            ("X-GZIP", gzip.compress(raw)),
            ("identity", raw),
            ("gzip", gzip.compress(raw[:9]) + gzip.compress(raw[9:])),
            ("gzip", gzip.compress(filler(SMALL.max_body_bytes))),
        ):
            headers = {"content-type": "application/json", "content-encoding": encoding}
            response = await client.post("/v0/topics/a", content=body, headers=headers)
            assert response.status_code in (200, 201), response.text
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        assert (await client.post("/v0/topics/a", content=pieces(*[bytes([b]) for b in gzip.compress(raw)]),
                                  headers=headers)).status_code == 200  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(b"{}" * 5000, mtime=0)[:-9],
        gzip.compress(b"{}", mtime=0) + b"tail", gzip.compress(b"{}", mtime=0)[:5],
        b"{}", gzip.compress(b"{}", mtime=0)[:-4] + b"\0\0\0\1", zlib.compress(b"{}"),
    ],
    ids=["truncated", "trailing garbage", "header only", "plain", "wrong length", "zlib"],
)  # fmt: skip
async def test_bad_gzip_is_refused(served: Served, body: bytes) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    async with served.client() as client:
        detail = error_of(await client.put("/v0/topics/a", content=body, headers=headers), 400, "invalid_request")
        assert detail["field"] == "body"
    assert not served.engine.topics
    assert served.gate._reader.budget.used == 0


@pytest.mark.parametrize("size", [SMALL.max_body_bytes + 1, 64 << 20])
async def test_a_gzip_bomb_is_cut_off_at_the_limit(served: Served, size: int) -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    step = 1 << 20
    parts = [compressor.compress(b" " * min(step, size - at)) for at in range(0, size, step)]
    bomb = b"".join(parts) + compressor.flush()
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    async with served.client() as client:
        error_of(await client.post("/v0/topics/a", content=bomb, headers=headers), 413, "payload_too_large")
        assert (await client.get("/v0/health")).status_code == 200
    assert served.gate._reader.budget.used == 0


async def test_gzip_without_end_or_output_is_cut_off(served: Served) -> None:
    # Empty stored blocks: 5 bytes each, no output.
    endless = gzip.compress(b"")[:10] + b"\x00\x00\x00\xff\xff" * (2 * SMALL.max_body_bytes // 5)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    async with served.client() as client:
        error_of(await client.post("/v0/topics/a", content=endless, headers=headers), 413, "payload_too_large")


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd"])
async def test_other_encodings_are_refused(served: Served, encoding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    async with served.client() as client:
        response = await client.post("/v0/topics/a", content=b"{}", headers=headers)
        error_of(response, 415, "unsupported_media_type")


async def test_bodies_wait_for_memory_and_are_refused_after_a_while(served: Served) -> None:
    release = trio.Event()
    served.engine.before = release.wait
    headers = {"content-type": "application/json"}
    body = filler(SMALL.max_body_bytes)
    statuses: list[int] = []

    async def post(topic: str) -> None:
        async with served.client() as client:
            statuses.append((await client.post(f"/v0/topics/{topic}", content=body, headers=headers)).status_code)

    async with trio.open_nursery() as nursery:
        for topic in ("a", "b"):
            nursery.start_soon(post, topic)
        await until(lambda: served.gate._reader.budget.used == 2 * SMALL.max_body_bytes)
        async with served.client() as client:
            response = await client.post("/v0/topics/c", content=body, headers=headers)
            detail = error_of(response, 429, "throttled")
            assert detail == {"limit": "max_inflight_bytes", "max": SMALL.max_inflight_bytes}
            assert int(response.headers["retry-after"]) >= 1
            text = (await client.get("/v0/metrics")).text
            assert 'topics_throttled_total{reason="max_inflight_bytes"} 1.0' in text
        release.set()
    assert statuses == [201, 201]
    assert served.gate._reader.budget.used == 0


async def test_two_half_read_bodies_do_not_wait_for_each_other_for_ever() -> None:
    limits = Settings(wal_shards=1, max_body_bytes=1 << 20, max_inflight_bytes=1 << 20, admission_ms=100)
    async with serving(limits) as served:
        size = 900_000
        head = b"POST /v0/topics/%d HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\n\r\n"
        body = filler(size)
        first, second = await served.connect(), await served.connect()
        for stream, name in ((first, 1), (second, 2)):
            await stream.send_all(head % (name, size) + body[:500_000])
        await until(lambda: served.gate._reader.budget.used > 900_000)
        answers: list[bytes] = []

        async def finish(stream: trio.SocketStream) -> None:
            await stream.send_all(body[500_000:])
            answers.append((await stream.receive_some(1 << 16)).split(b" ")[1])

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(finish, first)
                nursery.start_soon(finish, second)
        assert b"429" in answers
        await until(lambda: served.gate._reader.budget.used == 0)


async def test_memory_is_given_back_when_the_client_leaves_in_the_middle(served: Served) -> None:
    stream = await served.connect()
    await stream.send_all(
        b"POST /v0/topics/a HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
        + b"x" * 50_000
    )
    await until(lambda: served.gate._reader.budget.used == 50_000)
    await stream.aclose()
    await until(lambda: served.gate._reader.budget.used == 0)
    await until(lambda: served.gate.figures.requests["POST /v0/topics/{topic}", 499] == 1)
    assert not served.engine.topics


# --- responses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (b"", False),
        (b"gzip", True),
        (b"GZIP", True),
        (b"br, gzip;q=0.5", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.0", False),
        (b"*", True),
        (b"*;q=0", False),
        (b"gzip;q=0, *", False),
        (b"br", False),
        (b"identity, gzip;q=0.5", False),
        (b"identity;q=0.2, gzip;q=0.5", True),
        (b"gzip;q=x", False),
        (b"x-gzip", True),
    ],
)
async def test_accept_encoding(header: bytes, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted


async def test_large_answers_are_compressed_for_those_who_ask(served: Served) -> None:
    async with served.client() as client:
        await client.post("/v0/topics/a", json={"records": [{"data": "x" * 5000}]})
        plain = await client.get("/v0/topics/a/diff", headers={"accept-encoding": "identity"})
        packed = await client.get("/v0/topics/a/diff", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"
        assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) == len(plain.content)
        assert packed.json()["records"] == plain.json()["records"]
        small = await client.get("/v0/health", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in small.headers


async def test_request_ids_come_back(served: Served) -> None:
    async with served.client() as client:
        echoed = await client.get("/v0/health", headers={"x-request-id": "abc-123"})
        assert echoed.headers["x-request-id"] == "abc-123"
        ids = set()
        for bad in ("", "x" * 129, "a b"):
            ids.add((await client.get("/nowhere", headers={"x-request-id": bad})).headers["x-request-id"])
        assert len(ids) == 3
        assert not ids & {"", "x" * 129, "a b"}


async def test_a_failure_nobody_thought_of_is_a_500_of_that_request_only(served: Served) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("oh")

    async with served.client() as client:
        await client.put("/v0/topics/a")
        served.engine.before = fail
        with capture_logs() as logged:
            error_of(await client.put("/v0/topics/a"), 500, "internal")
            for path in ("/v0/topics/a/diff", "/v0/topics/a/diff?wait_ms=9"):
                error_of(await client.get(path), 500, "internal")
        assert [entry["event"] for entry in logged if entry["event"] != "request"] == ["request_failed"] * 3
        assert logged[0]["route"] == "PUT /v0/topics/{topic}"
        served.engine.before = None
        assert (await client.get("/v0/topics/a/diff")).status_code == 200


async def test_an_error_of_the_engine_carries_its_detail_and_retry_after(served: Served) -> None:
    async def refuse() -> None:
        raise ApiError("read_only", "the disk is full", detail={"free": 0}, retry_after_s=5)

    served.engine.before = refuse
    async with served.client() as client:
        for method, path in (("PUT", "/v0/topics/a"), ("GET", "/v0/topics/a/diff")):
            response = await client.request(method, path)
            assert error_of(response, 503, "read_only") == {"free": 0}
            assert response.headers["retry-after"] == "5"


# --- long polls ------------------------------------------------------------------------------------------------------


async def test_a_long_poll_answers_when_something_comes(served: Served) -> None:
    async with served.client() as reader, served.client() as writer:
        await writer.put("/v0/topics/a")
        answers: list[httpx.Response] = []

        async def poll() -> None:
            answers.append(await reader.get("/v0/topics/a/diff?wait_ms=30000"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await until(lambda: served.engine.waiting_reads == 1)
            await writer.post("/v0/topics/a", json=APPEND)
        assert len(answers[0].json()["records"]) == 1
        error_of(await reader.get("/v0/topics/none/diff?wait_ms=1000"), 404, "topic_not_found")


async def test_a_long_poll_ends_when_its_client_leaves(served: Served) -> None:
    async with served.client() as client:
        await client.put("/v0/topics/a")
    stream = await served.connect()
    await stream.send_all(b"GET /v0/topics/a/diff?wait_ms=30000 HTTP/1.1\r\nhost: x\r\n\r\n")
    await until(lambda: served.engine.waiting_reads == 1)
    await stream.aclose()
    await until(lambda: served.engine.cancelled_reads == 1)
    await until(lambda: not served.server.connections)


# --- phases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "code", "detail"),
    [
        ("starting", "not_ready", {"replay_progress": 0.25}),
        ("replaying", "not_ready", {"replay_progress": 0.25}),
        ("draining", "shutting_down", {}),
    ],
)
async def test_only_health_and_metrics_answer_before_the_daemon_is_ready(
    served: Served, phase: str, code: str, detail: dict[str, Any]
) -> None:
    served.engine.status.phase = phase
    served.engine.status.replay_progress = 0.25
    async with served.client() as client:
        for path in ("/v0/health", "/healthz", "/v0/metrics"):
            assert (await client.get(path)).status_code == 200
        for method, path in (
            ("GET", "/v0/ready"), ("GET", "/readyz"), ("GET", "/v0/topics"), ("PUT", "/v0/topics/a"),
            ("POST", "/v0/topics/a"), ("GET", "/v0/topics/a/diff"), ("GET", "/nowhere"), ("PUT", "/v0/topics/-bad"),
        ):  # fmt: skip
            response = await client.request(method, path, json=APPEND if method == "POST" else None)
            assert error_of(response, 503, code) == detail
            assert int(response.headers["retry-after"]) >= 1
    assert not served.engine.topics


async def test_health_and_readiness(served: Served) -> None:
    async with served.client() as client:
        for path in ("/v0/health", "/healthz"):
            health = (await client.get(path)).json()
            assert health.keys() == {"status", "version", "uptime_ms"}
            assert health["status"] == "ok"
        await client.put("/v0/topics/a")
        for path in ("/v0/ready", "/readyz"):
            assert (await client.get(path)).json() == {"status": "ready", "wal_replay_complete": True, "topics": 1}


# --- metrics ---------------------------------------------------------------------------------------------------------


async def test_metrics_as_text_and_as_json_agree(served: Served) -> None:
    async with served.client() as client:
        await client.put("/v0/topics/a")
        await client.get("/nowhere")
        text = await client.get("/v0/metrics")
        assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = set(text.text.splitlines())
        for line in (
            "topics_topics 1.0", 'topics_topics_by_class{class="disk"} 1.0', 'topics_topic_head_seq{topic="a"} 0.0',
            "# TYPE topics_wal_frames_total counter", "topics_wal_frames_total 0.0", "topics_ready 1.0",
            'topics_requests_total{route="PUT /v0/topics/{topic}",status="201"} 1.0',
            'topics_requests_total{route="unmatched",status="404"} 1.0', "topics_request_ms_count 2.0",
            'topics_wal_fsync_latency_us_bucket{le="+Inf"} 0.0', 'topics_throttled_total{reason="max_topics"} 2.0',
        ):  # fmt: skip
            assert line in lines, line
        assert "_total_total" not in text.text
        values = (await client.get("/v0/metrics", headers={"accept": "application/json"})).json()
        assert values["topics_topics"] == 1
        assert values["topics_topics_by_class"] == [{"labels": {"class": "disk"}, "value": 1}]
        assert {"labels": {"reason": "max_topics"}, "value": 2} in values["topics_throttled_total"]
        for name in {line.split(" ")[2] for line in lines if line.startswith("# TYPE")}:
            assert name in values, name


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain"),
        ("*/*", "text/plain"),
        ("text/plain", "text/plain"),
        ("application/json", "application/json"),
        ("application/json, text/plain;q=0.5", "application/json"),
        ("text/plain, application/json;q=0.5", "text/plain"),
        ("application/json, */*", "application/json"),
        ("application/json;q=0", "text/plain"),
        ("nonsense;q=x", "text/plain"),
    ],
)
async def test_metrics_come_in_the_format_asked_for(served: Served, accept: str, kind: str) -> None:
    async with served.client() as client:
        response = await client.get("/v0/metrics", headers={"accept": accept})
        assert response.headers["content-type"].startswith(kind)


class LostLease:
    """Another daemon may own the bucket, and what was begun may have been carried out."""

    is_held = False
    refusal = not_owner("lost", "http://b", refused=False)


async def test_a_former_owner_says_that_nothing_was_done_of_a_call_that_it_does_not_begin(served: Served) -> None:
    async with served.client() as client:
        await client.put("/v0/topics/a")
        right = served.engine.right
        right.lease = LostLease()
        late = await client.post("/v0/topics/a", json=APPEND)
        assert error_of(late, 503, "not_owner") == {"owner": "http://b", "refused": True}
        assert late.headers["topics-role"] == "former"
        right.lease = None

        async def lose_the_lease() -> None:
            right.lease = LostLease()

        served.engine.before = lose_the_lease
        begun = await client.post("/v0/topics/a", json=APPEND)
        assert error_of(begun, 503, "not_owner") == {"owner": "http://b", "refused": False}
