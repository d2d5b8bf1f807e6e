"""Section 10 and pipeline 1: an upload of lines is stored in batches that depend on the lines alone."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.bulk_client import LINES_TYPE, export, forget_peak, lines_of, peak_of, pid_of, upload
from tests.conformance.client import (
    JSON_TYPE,
    Client,
    RawConnection,
    body_of,
    data_of,
    error_of,
    invalid,
    running,
    seqs_of,
    until,
)
from tests.conformance.keys import callers_of
from tests.conformance.test_hostile_values import TEXTS
from topics.raw_bytes import RAW_TYPES

MIB = 1 << 20
FIELDS = {
    "topic", "first_seq", "last_seq", "count", "batches", "head_seq", "created", "deduped_batches", "performance",
}  # fmt: skip


def uploaded(response: httpx.Response, status: int = 200) -> Any:
    answer = body_of(response, status)
    assert set(answer) == FIELDS
    return answer


def numbered(count: int, **more: Any) -> bytes:
    return lines_of({"data": i, **more} for i in range(count))


def stopped(response: httpx.Response, status: int, code: str, line: int, committed: int, last_seq: int) -> Any:
    """It was refused at a line, after so many records."""
    error = error_of(response, status, code)
    assert (error["detail"]["line"], error["detail"]["committed"], error["detail"]["last_seq"]) == (
        line, committed, last_seq,
    ), error  # fmt: skip
    return error


# --- what is stored --------------------------------------------------------------------------------------------------


def test_each_line_is_a_record_in_order(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    records = [{"data": 1}, {"data": {"a": [None]}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": "x"}]
    answer = uploaded(upload(client, topic, lines_of(records)))
    assert (answer["topic"], answer["first_seq"], answer["last_seq"], answer["count"]) == (topic, 1, 3, 3)
    assert (answer["batches"], answer["head_seq"], answer["created"], answer["deduped_batches"]) == (1, 3, False, 0)
    found = export(client, topic).records
    assert [{name.lstrip("$"): r[name] for name in r if name not in ("$seq", "$ts")} for r in found] == records


def test_a_missing_topic_is_created_under_the_rules_of_an_append(client: Client, topic: str) -> None:
    stopped(upload(client, topic, numbered(3), create="false"), 404, "topic_not_found", 1, 0, 0)
    assert uploaded(upload(client, topic, numbered(3)), 201)["created"] is True
    assert uploaded(upload(client, topic, numbered(3), create="false"))["created"] is False


def test_the_node_of_the_query_is_that_of_records_without_one(client: Client, topic: str) -> None:
    uploaded(upload(client, topic, lines_of([{"data": 1}, {"data": 2, "node": "own"}]), node="all"), 201)
    assert [record["$node"] for record in client.read(topic)["records"]] == ["all", "own"]


def test_lines_end_in_lf_or_cr_lf_or_not_at_all_and_empty_ones_do_not_count(client: Client, topic: str) -> None:
    content = b'\n\r\n{"data":1}\r\n \t \n{"data":[2,\r3]}\n\n\n {"data" : 4, "unknown": [1]} \n{"data":5}'
    assert uploaded(upload(client, topic, content), 201)["count"] == 4
    assert data_of(client.read(topic)) == [1, [2, 3], 4, 5]
    stopped(upload(client, topic, content + b"\n\nx"), 400, "invalid_request", 11, 0, 0)


def test_however_it_comes_it_breaks_into_the_same_batches(client: Client, topic: str) -> None:
    content = numbered(2500, meta={"k": "é" * 40})
    whole = uploaded(upload(client, topic, content, "whole"), 201)
    assert (whole["batches"], whole["count"], whole["deduped_batches"]) == (3, 2500, 0)
    for size in (997, 65_536, 10**9):
        pieces = (content[at : at + size] for at in range(0, len(content), size))
        again = uploaded(upload(client, topic, pieces, "whole"))
        assert (again["deduped_batches"], again["count"]) == (3, 2500)
        assert (again["first_seq"], again["last_seq"], again["created"]) == (1, 2500, False)
    with Client(client.daemon, http2=True) as other:
        assert uploaded(upload(other, topic, content, "whole"))["deduped_batches"] == 3
    headers = {"content-type": LINES_TYPE, "content-encoding": "gzip", "idempotency-key": "whole"}
    zipped = client.post(f"/v0/topics/{topic}", content=gzip.compress(content), headers=headers)
    assert uploaded(zipped)["deduped_batches"] == 3
    assert client.state(topic)["head_seq"] == 2500


def test_batches_end_at_1000_records_or_a_mebibyte(client: Client, topic: str) -> None:
    small, large = b'{"data":1}\n', b'{"data":"' + b"x" * 300_000 + b'"}\n'
    for content, batches in (
        (small * 1000, 1), (small * 1001, 2), (large * 3, 1), (large * 4, 2), (large * 7, 3),
        (small * 997 + large * 3, 1), (small * 998 + large * 3, 2), (b'{"data":"' + b"x" * (MIB - 2) + b'"}', 1),
    ):  # fmt: skip
        answer = body_of(upload(client, topic, content), 200, 201)
        assert (answer["batches"], answer["count"]) == (batches, content.count(b"{"))


def test_a_topic_that_is_full_keeps_what_fits_and_batches_fit_its_caps(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=250, discard="reject")
    error = stopped(upload(client, topic, numbered(300)), 422, "topic_full", 251, 250, 250)
    assert error["detail"]["cap_records"] == 250
    assert data_of(client.read(topic, limit=1000)) == list(range(250))
    stopped(upload(client, topic, numbered(1)), 422, "topic_full", 1, 0, 0)
    by_bytes = f"{topic}-bytes"
    client.put_topic(by_bytes, cap_bytes=1000, discard="reject")
    line = b'{"data":"' + b"x" * 98 + b'"}\n'
    stopped(upload(client, by_bytes, line * 20), 422, "topic_full", 10, 9, 9)
    stopped(upload(client, by_bytes, line.replace(b"x", b"x" * 20)), 400, "record_too_large", 1, 0, 0)


def test_a_topic_that_evicts_keeps_the_newest(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=300)
    assert uploaded(upload(client, topic, numbered(2000)))["count"] == 2000
    assert data_of(client.read(topic, limit=1000)) == list(range(1700, 2000))


def test_text_comes_back_as_it_was_written(client: Client, topic: str) -> None:
    records = [{"data": {t: t}, "tag": t, "node": t, "meta": {t: t}} for t in TEXTS]
    for ascii_only in (True, False):
        content = b"".join(json.dumps(r, ensure_ascii=ascii_only).encode() + b"\n" for r in records)
        body_of(upload(client, topic, content), 200, 201)
    found = export(client, topic).records
    assert [(r["data"], r["$tag"], r["$node"], r["meta"]) for r in found] == [
        ({t: t}, t, t, {t: t}) for t in [*TEXTS, *TEXTS]
    ]


def test_an_empty_upload_is_refused(client: Client, topic: str) -> None:
    for content in (b"", b"\n", b" \r\n\n"):
        invalid(upload(client, topic, content), "record")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


# --- what is refused -------------------------------------------------------------------------------------------------


BAD_LINES: list[tuple[bytes, str, str]] = [
    (b"x", "invalid_request", "malformed"), (b"{", "invalid_request", "malformed"), (b"[]", "invalid_request", ""),
    (b"1", "invalid_request", ""), (b"{}", "invalid_request", "data"), (b'{"data":}', "invalid_request", "malformed"),
    (b'{"data":1},{"data":2}', "invalid_request", ""), (b'{"data":1}{"data":2}', "invalid_request", ""),
    (b'{"data":[1,', "invalid_request", ""), (b'{"data":"\xff"}', "invalid_request", "UTF-8"),
    (b'{"data":"\\ud800"}', "invalid_request", "surrogate"), (b'\xef\xbb\xbf{"data":1}', "invalid_request", ""),
    (b'{"data":1,"tag":""}', "invalid_request", "tag"), (b'{"data":1,"tag":5}', "invalid_request", "tag"),
    (b'{"data":1,"tag":"' + b"t" * 257 + b'"}', "invalid_request", "tag"),
    (b'{"data":1,"node":"' + b"n" * 129 + b'"}', "invalid_request", "node"),
    (b'{"data":1,"meta":{"k":1}}', "invalid_request", "meta"),
    (b'{"data":1,"meta":{"_topics":"v"}}', "invalid_request", "meta"),
    (b'{"data":1,"meta":{"\\u005ftopics":"v"}}', "invalid_request", "meta"),
    (b'{"data":1,"meta":{"k":"' + b"v" * (16 << 10) + b'"}}', "invalid_request", "meta"),
    (b'{"data":' + b"[" * 513 + b"]" * 513 + b"}", "invalid_request", "nesting"),
    (b'{"data":1,"u":' + b"[" * 600 + b"]" * 600 + b"}", "invalid_request", "nesting"),
    (b'{"data":"' + b"x" * MIB + b'"}', "record_too_large", ""),
    (b'{"data":"' + b"x" * 3 * MIB + b'"}', "record_too_large", ""),
    (b" " * 3 * MIB, "record_too_large", ""),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD_LINES)))
def test_a_bad_line_is_named_and_its_batch_is_not_stored(client: Client, topic: str, number: int) -> None:
    line, code, text = BAD_LINES[number]
    content = numbered(1000) + b"\n" + numbered(500) + line + b"\n" + numbered(10)
    # A line that no batch of others has room for ends theirs.
    committed = 1500 if MIB < len(line) < 2 * MIB else 1000
    error = stopped(upload(client, topic, content), 400, code, 1502, committed, committed)
    assert text in json.dumps(error)
    assert client.state(topic)["head_seq"] == committed


def test_of_two_bad_lines_that_would_make_a_right_one_the_first_is_named(client: Client, topic: str) -> None:
    for content in (b'{"data":[1\n2]}\n', b'{"data":1},{"data":2}\n{"data":[1\n2]}\n', b'{"data":[1,\n2]}'):
        stopped(upload(client, topic, content), 400, "invalid_request", 1, 0, 0)


def test_a_line_without_an_end_is_refused_when_it_is_too_long(client: Client, topic: str) -> None:
    with RawConnection(client) as connection:
        connection.send_head("POST", f"/v0/topics/{topic}", content_type=LINES_TYPE, transfer_encoding="chunked")
        connection.send(b'9\r\n{"data":"\r\n')
        connection.send_until_refused(b"%x\r\n%b\r\n" % (1 << 16, b"x" * (1 << 16)), 64 * MIB)
        error = connection.receive_error(400, "record_too_large")
    assert error["detail"]["line"] == 1


@pytest.mark.parametrize("content_type", ["text/plain", "application/ndjson", "application/x-ndjson-seq", ""])
def test_other_content_types_are_415(client: Client, topic: str, content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    error = error_of(client.post(f"/v0/topics/{topic}", content=b"{}", headers=headers), 415)
    assert error["detail"]["supported"] == [JSON_TYPE, LINES_TYPE, *RAW_TYPES]
    headers = {"content-type": f"{LINES_TYPE}; charset=utf-8"}
    body_of(client.post(f"/v0/topics/{topic}", content=b'{"data":1}', headers=headers), 201)
    error_of(client.post(f"/v0/topics/{topic}/diff", content=b"{}", headers=headers), 415)


@pytest.mark.parametrize(
    ("query", "field"),
    [("create=maybe", "create"), ("node=", "node"), ("disable_backpressure=2", "disable_backpressure")],
)
def test_a_bad_parameter_is_400_and_named(client: Client, topic: str, query: str, field: str) -> None:
    headers = {"content-type": LINES_TYPE}
    invalid(client.post(f"/v0/topics/{topic}?{query}", content=numbered(1), headers=headers), field)
    invalid(upload(client, topic, numbered(1), "k" * 257), "Idempotency-Key")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_it_takes_the_scope_write_and_a_name_that_the_key_covers(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,writer:w:in-,reader:r") as client, callers_of(client) as callers:
        uploaded(upload(callers["writer"], "in-topic", numbered(3)), 201)
        error_of(upload(callers["writer"], "out-topic", numbered(3)), 403, "forbidden")
        error_of(upload(callers["reader"], "in-topic", numbered(3)), 403, "forbidden")
        error_of(upload(callers[None], "in-topic", numbered(3)), 401, "unauthorized")


def test_a_disk_that_is_nearly_full_takes_nothing(tmp_path: Path) -> None:
    with running(tmp_path, min_free_bytes="1000TiB") as client:
        answer = upload(client, "t", numbered(3))
        stopped(answer, 503, "read_only", 1, 0, 0)
        assert answer.headers["retry-after"]


def test_keys_that_there_are_too_many_of_stop_it_and_it_can_be_repeated(tmp_path: Path) -> None:
    with running(tmp_path, max_idempotency_keys=2) as client:
        answer = upload(client, "t", numbered(3500), "k")
        error = stopped(answer, 429, "throttled", 2001, 2000, 2000)
        assert (error["detail"]["limit"], answer.headers["retry-after"]) == ("max_idempotency_keys", "1")
        client = client.daemon.restart(signal.SIGKILL)
        again = upload(client, "t", numbered(3500), "k")
        stopped(again, 429, "throttled", 2001, 2000, 2000)
        assert seqs_of(client.read("t", limit=1000)) == list(range(1, 1001))


# --- streams ---------------------------------------------------------------------------------------------------------


class Uploading:
    """An upload that goes on."""

    def __init__(self, client: Client, topic: str, **headers: str) -> None:
        self._connection = RawConnection(client)
        self._connection.send_head(
            "POST", f"/v0/topics/{topic}", content_type=LINES_TYPE, transfer_encoding="chunked", **headers
        )

    def __enter__(self) -> Uploading:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.socket.close()

    def send(self, data: bytes) -> None:
        self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self) -> Any:
        self._connection.send(b"0\r\n\r\n")
        status, _, body = self._connection.receive()
        return status, json.loads(body)

    def receive_error(self, status: int, code: str) -> Any:
        return self._connection.receive_error(status, code)


def head_of(client: Client, topic: str) -> int:
    state = client.get(f"/v0/topics/{topic}")
    return int(state.json()["head_seq"]) if state.status_code == 200 else 0


def test_batches_are_there_before_the_upload_ends(client: Client, topic: str) -> None:
    with Uploading(client, topic) as going:
        going.send(numbered(1500))
        until(lambda: head_of(client, topic) == 1000)
        going.send(numbered(499))
        going.send(b'{"da')
        assert data_of(client.read(topic, 999)) == [999]
        going.send(b'ta":"end"}')
        status, answer = going.finish()
    assert (status, answer["count"], answer["batches"]) == (201, 2000, 2)
    assert data_of(client.read(topic, 1999)) == ["end"]


def test_what_others_append_meanwhile_stands_between_batches(client: Client, topic: str) -> None:
    with Uploading(client, topic) as going:
        going.send(numbered(1000))
        until(lambda: head_of(client, topic) == 1000)
        client.append(topic, "other")
        going.send(numbered(1))
        _, answer = going.finish()
    assert (answer["first_seq"], answer["last_seq"], answer["count"], answer["head_seq"]) == (1, 1002, 1001, 1002)


def test_a_client_that_leaves_leaves_whole_batches_and_can_come_again(client: Client, topic: str) -> None:
    with Uploading(client, topic, idempotency_key="k") as going:
        going.send(numbered(1999))
        until(lambda: head_of(client, topic) == 1000)
    assert uploaded(upload(client, topic, numbered(3000), "k"))["deduped_batches"] == 1
    assert export(client, topic).data == list(range(3000))


def test_a_topic_that_is_deleted_meanwhile_is_not_made_again(client: Client, topic: str) -> None:
    with Uploading(client, topic) as going:
        going.send(numbered(1000))
        until(lambda: head_of(client, topic) == 1000)
        client.delete_topic(topic)
        going.send(numbered(1000))
        error = going.receive_error(404, "topic_not_found")
    assert (error["detail"]["line"], error["detail"]["committed"]) == (1001, 1000)
    assert head_of(client, topic) == 0


def test_a_daemon_that_is_killed_in_the_middle_has_each_record_once_after_a_repeat(tmp_path: Path) -> None:
    content = numbered(20_000)

    def until_killed() -> Iterator[bytes]:
        for at in range(0, len(content), 20_000):
            if at == 200_000:
                until(lambda: head_of(client, "t") >= 3000)
                client.daemon.send_signal(signal.SIGKILL)
            yield content[at : at + 20_000]

    with running(tmp_path) as client:
        with pytest.raises(httpx.TransportError):
            upload(client, "t", until_killed(), "k")
        client.daemon.wait()
        client = client.daemon.start()
        there = head_of(client, "t")
        assert there >= 3000
        assert there % 1000 == 0, "whole batches"
        answer = uploaded(upload(client, "t", content, "k"))
        assert (answer["batches"], answer["deduped_batches"]) == (20, there // 1000)
        assert export(client, "t").data == list(range(20_000))


def accepts(client: Client) -> bool:
    """Whether a new connection is taken. A daemon that drains takes none, and has ended its idle ones."""
    try:
        socket.create_connection(("127.0.0.1", client.daemon.port), timeout=40).close()
    except ConnectionError:
        return False
    return True


def test_one_that_goes_on_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with running(tmp_path, drain_ms=600_000) as client:
        with Uploading(client, "t") as going:
            going.send(numbered(1500))
            until(lambda: head_of(client, "t") == 1000)
            client.daemon.send_signal(signal.SIGTERM)
            until(lambda: not accepts(client))
            going.send(numbered(1))
            error = going.receive_error(503, "shutting_down")
            assert (error["detail"]["committed"], error["detail"]["last_seq"]) == (1000, 1000)
        assert client.daemon.wait() == 0
        assert "drain_timed_out" not in (client.daemon.root / "log").read_text()
        client = client.daemon.start()
        assert head_of(client, "t") == 1000


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_does_not_depend_on_the_length(tmp_path: Path) -> None:
    line = b'{"data":"' + b"x" * (MIB // 10) + b'"}\n'
    with running(tmp_path, cache_bytes="8MiB", max_body_bytes="1MiB") as client:
        client.put_topic("t", durability="memory")
        uploaded(upload(client, "t", line * 100))
        before = forget_peak(pid_of(client))
        answer = uploaded(upload(client, "t", (line * 20 for _ in range(100))))
        assert (answer["count"], answer["batches"]) == (2000, 223)
        assert peak_of(pid_of(client)) - before < 100, "MiB of 200; the queue of the log, and what waits to be sealed"


def test_a_bomb_is_inflated_no_further_than_a_line(client: Client, topic: str) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(b"x" * MIB) for _ in range(200)) + packer.flush()
    before = forget_peak(pid_of(client))
    headers = {"content-type": LINES_TYPE, "content-encoding": "gzip"}
    answer = client.post(f"/v0/topics/{topic}", content=gzip.compress(numbered(1000)) + bomb, headers=headers)
    stopped(answer, 400, "record_too_large", 1001, 1000, 1000)
    assert peak_of(pid_of(client)) - before < 20
    broken = gzip.compress(numbered(1500))[:-20]
    answer = client.post(f"/v0/topics/{topic}", content=broken, headers=headers)
    assert error_of(answer, 400, "invalid_request")["detail"]["committed"] in (0, 1000)
    error_of(client.post(f"/v0/topics/{topic}", content=b"x", headers={**headers, "content-encoding": "br"}), 415)


def test_bodies_of_all_requests_together_bound_it(tmp_path: Path) -> None:
    with running(tmp_path, max_inflight_bytes="1MiB", max_body_bytes="512KiB", admission_ms=100) as client:
        with Uploading(client, "t") as going:
            going.send(b'{"data":"' + b"x" * 900_000)
            until(lambda: client.send_append("u", "y" * 300_000).status_code == 429)
            going.send(b'"}\n')
            assert going.finish()[0] == 201
        until(lambda: client.send_append("u", "y" * 300_000).status_code in (200, 201))
