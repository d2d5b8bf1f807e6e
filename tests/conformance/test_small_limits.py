"""Section 4's limits, each made small enough to be met, and the bodies that are too large."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.client import (
    JSON_TYPE,
    Client,
    RawConnection,
    body_of,
    error_of,
    fresh_name,
    invalid,
    seqs_of,
    until,
)

BOTH_WAYS = True

BODY = 65_536
SETTINGS = {
    "max_batch_records": 3,
    "max_record_bytes": 2000,
    "max_body_bytes": BODY,
    "max_meta_bytes": 100,
    "max_tag_bytes": 5,
    "max_node_bytes": 4,
    "max_inflight_bytes": 2 * BODY,
    "max_limit": 4,
    "max_idempotency_keys": 3,
}


def padded(length: int) -> bytes:
    """An append of one record in a body of this many bytes."""
    body = b'{"records":[{"data":1}],"padding":""}'
    return body[:-2] + b"x" * (length - len(body)) + body[-2:]


def test_the_records_of_a_batch(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    error_of(client.send_append(topic, 1, 2, 3, 4), 400, "batch_too_large")
    assert client.state(topic)["head_seq"] == 3


def test_the_bytes_of_a_record(client: Client, topic: str) -> None:
    client.append(topic, "x" * 1998)
    error_of(client.send_append(topic, "x" * 1999), 400, "record_too_large")
    error_of(
        client.send_append(topic, records=[{"data": "x" * 1990, "meta": {"k": "v" * 50}}]), 400, "record_too_large"
    )


def test_the_bytes_of_meta_tag_and_node(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "12345", "node": "1234", "meta": {"k": "v" * 70}}])
    invalid(client.send_append(topic, records=[{"data": 1, "meta": {"k": "v" * 100}}]), "meta")
    invalid(client.send_append(topic, records=[{"data": 1, "tag": "123456"}]), "tag")
    invalid(client.send_append(topic, records=[{"data": 1, "node": "12345"}]), "node")


def test_the_records_of_a_read(client: Client, topic: str) -> None:
    for number in range(6):
        client.append(topic, number)
    assert seqs_of(client.read(topic, limit=5)) == [1, 2, 3, 4]


def test_a_body_of_the_limit_is_taken_and_a_larger_one_is_413(client: Client, topic: str) -> None:
    for http2 in (False, True):
        with Client(client.daemon, http2=http2) as either:
            headers = {"content-type": JSON_TYPE}
            body_of(either.post(f"/v0/topics/{topic}", content=padded(BODY), headers=headers), 200, 201)
            answer = either.post(f"/v0/topics/{topic}", content=padded(BODY + 1), headers=headers)
            error_of(answer, 413, "payload_too_large")
            body_of(either.get("/v0/health"))


def test_the_limit_is_of_the_decompressed_body(client: Client, topic: str) -> None:
    headers = {"content-type": JSON_TYPE, "content-encoding": "gzip"}
    body_of(client.post(f"/v0/topics/{topic}", content=gzip.compress(padded(BODY)), headers=headers), 201)
    answer = client.post(f"/v0/topics/{topic}", content=gzip.compress(padded(BODY + 1)), headers=headers)
    error_of(answer, 413, "payload_too_large")


@pytest.fixture(scope="module")
def bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(b"[" * (1 << 20)) for _ in range(50)) + packer.flush()


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("path", ["", "/diff", "/delete"])
def test_a_bomb_is_cut_off_with_413(client: Client, bomb: bytes, topic: str, http2: bool, path: str) -> None:
    client.put_topic(topic)
    headers = {"content-type": JSON_TYPE, "content-encoding": "gzip"}
    with Client(client.daemon, http2=http2) as either:
        began = time.monotonic()
        answer = either.post(f"/v0/topics/{topic}{path}", content=bomb, headers=headers)
        error_of(answer, 413, "payload_too_large")
        assert time.monotonic() - began < 20


def test_a_body_that_never_ends_is_refused_while_it_is_read(client: Client, topic: str) -> None:
    with RawConnection(client) as connection:
        connection.send_head("POST", f"/v0/topics/{topic}", content_type=JSON_TYPE, transfer_encoding="chunked")
        connection.send_until_refused(b"2000\r\n" + b" " * 0x2000 + b"\r\n", 64 << 20)
        connection.receive_error(413, "payload_too_large")


def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(client: Client, topic: str) -> None:
    with RawConnection(client) as connection:
        connection.send_head("POST", f"/v0/topics/{topic}", content_type=JSON_TYPE, content_length=str(10**12))
        connection.send(b'{"records":' + b" " * (BODY + 1))
        connection.receive_error(413, "payload_too_large")


def stalled(client: Client, topic: str) -> RawConnection:
    """A request whose body has come all but for its last byte."""
    connection = RawConnection(client)
    connection.send_head("POST", f"/v0/topics/{topic}", content_type=JSON_TYPE, content_length=str(BODY))
    connection.send(padded(BODY)[:-1])
    return connection


def test_bodies_in_memory_wait_for_one_another_and_then_are_429(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with stalled(client, topic) as first, stalled(client, topic) as second:
        time.sleep(0.3)
        headers = {"content-type": JSON_TYPE}
        refused = client.post(f"/v0/topics/{topic}", content=padded(BODY), headers=headers)
        error = error_of(refused, 429, "throttled")
        assert (error["detail"]["limit"], error["detail"]["max"]) == ("max_inflight_bytes", 2 * BODY)
        assert int(refused.headers["retry-after"]) >= 0
        with ThreadPoolExecutor(1) as pool:
            third = pool.submit(client.post, f"/v0/topics/{topic}", content=padded(BODY), headers=headers)
            time.sleep(0.2)
            assert not third.done()
            first.socket.close()
            body_of(third.result())
        second.send(b"}")
        assert second.receive()[0] == 200
    assert client.state(topic)["head_seq"] == 2


def test_the_bodies_of_clients_that_hung_up_are_in_memory_no_more(client: Client, topic: str) -> None:
    client.put_topic(topic)
    for _ in range(6):
        with stalled(client, topic):
            pass
    headers = {"content-type": JSON_TYPE}

    def succeeds() -> bool:
        return client.post(f"/v0/topics/{topic}", content=padded(BODY), headers=headers).status_code == 200

    until(succeeds)


def test_the_idempotency_keys_of_all_topics_are_limited(client: Client) -> None:
    topics = [fresh_name() for _ in range(3)]
    for topic in topics:
        client.append(topic, 1, idempotency_key="k")
    refused = client.send_append(topics[0], 1, idempotency_key="other")
    error = error_of(refused, 429, "throttled")
    assert (error["detail"]["limit"], error["detail"]["max"]) == ("max_idempotency_keys", 3)
    assert int(refused.headers["retry-after"]) >= 0
    assert client.append(topics[0], 1, idempotency_key="k")["deduped"] is True
    assert client.append(topics[0], 2)["seqs"] == [2]
    for topic in topics:
        client.delete_topic(topic)
    assert client.append(fresh_name(), 1, idempotency_key="other")["deduped"] is False


def test_errors_about_large_bodies_are_json(client: Client, topic: str) -> None:
    with RawConnection(client) as connection:
        connection.send_head("PUT", f"/v0/topics/{topic}", content_type=JSON_TYPE, content_length=str(BODY + 1))
        connection.send(b" " * (BODY + 1))
        status, headers, body = connection.receive()
    assert (status, headers["content-type"].split(";")[0]) == (413, JSON_TYPE)
    assert json.loads(body)["error"]["code"] == "payload_too_large"
