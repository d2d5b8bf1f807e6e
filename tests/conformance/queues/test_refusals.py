"""Section 9: calls of a queue that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import JSON_TYPE, Client, error_of, invalid, running
from tests.conformance.client import seqs_of as seqs_read
from tests.conformance.queue_client import Counts, Queue, new_queue, seqs_of
from tests.conformance.queues.calls import BY_SEQS, CALLS

MISSING = object()


@pytest.fixture(scope="module")
def guarded(client: Client) -> Queue:
    """A queue of three jobs of which the first is held by `n`; what is refused must leave it so."""
    queue = new_queue(client, "a", "b", "c")
    queue.claim("n")
    return queue


def is_untouched(guarded: Queue) -> None:
    assert guarded.counts() == Counts(ready=2, in_flight=1)
    guarded.has_left(1, 2, 3)


def test_a_missing_topic_is_404_and_stays_missing(client: Client, topic: str, call: str) -> None:
    error_of(Queue(client, topic).send(call, **CALLS[call]), 404, "topic_not_found")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_a_log_is_409(client: Client, topic: str, call: str) -> None:
    client.append(topic, 1)
    error_of(Queue(client, topic).send(call, **CALLS[call]), 409, "not_a_queue")
    assert seqs_read(client.read(topic)) == [1]


@pytest.mark.parametrize("name", ["-bad", "a>b", "a" * 256])
def test_a_bad_name_is_400(client: Client, call: str, name: str) -> None:
    error_of(Queue(client, name).send(call, **CALLS[call]), 400, "invalid_request")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_the_calls_are_posts(client: Client, guarded: Queue, call: str, method: str) -> None:
    answer = client.request(method, f"/v0/topics/{guarded.topic}/{call}")
    error_of(answer, 405, "method_not_allowed")
    assert {name.strip() for name in answer.headers["allow"].split(",")} - {"OPTIONS"} == {"POST"}


WRONG_OF_FIELDS: list[tuple[list[str], str, list[Any]]] = [
    (list(CALLS), "node", [MISSING, "", "x" * 129, "é" * 65, "😀" * 33, 1, True, None, [], ["n"], {}]),
    (BY_SEQS, "seqs", [MISSING, [], None, 1, "1", {}, True]),
    (BY_SEQS, "seqs", [["1"], [1.5], [True], [None], [-1], [2**64], [[1]], [{}], [2, "1"], [2, -1]]),
    (BY_SEQS, "lease_ids", [[], ["lease_0", "lease_1"], "lease_0", 1, True, {}, [1], [None], [True], [["lease_0"]]]),
    (["claim"], "max", ["1", 1.5, True, [], {}]),
    (["claim", "extend"], "lease_ms", ["1000", 1000.5, True, [], {}]),
    (["extend"], "lease_ms", [MISSING, None]),
    (["claim"], "wait_ms", ["1", 1.5, True, [], {}]),
    (["nack"], "delay_ms", ["1", 1.5, True, [], {}]),
]
WRONG = [
    pytest.param(name, field, value, id=f"{name}-{field}-{'missing' if value is MISSING else str(value)[:24]}")
    for names, field, values in WRONG_OF_FIELDS
    for name in names
    for value in values
]


@pytest.mark.parametrize(("name", "field", "value"), WRONG)
def test_a_wrong_field_is_400_and_does_nothing(guarded: Queue, name: str, field: str, value: Any) -> None:
    fields = CALLS[name] | {field: value}
    invalid(guarded.send(name, **{key: given for key, given in fields.items() if given is not MISSING}), field)
    is_untouched(guarded)


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"{}{}", b'{"node":"\xff"}', b'{"node":"n",}', b"\x00"])
def test_malformed_json_is_400(client: Client, guarded: Queue, call: str, content: bytes) -> None:
    url = f"/v0/topics/{guarded.topic}/{call}"
    error_of(client.post(url, content=content, headers={"content-type": JSON_TYPE}), 400, "invalid_request")
    is_untouched(guarded)


def test_no_body_is_400(client: Client, guarded: Queue, call: str) -> None:
    error_of(client.post(f"/v0/topics/{guarded.topic}/{call}"), 400, "invalid_request")
    is_untouched(guarded)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-ndjson"])
def test_a_body_of_no_or_another_type_is_415(client: Client, guarded: Queue, call: str, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post(f"/v0/topics/{guarded.topic}/{call}", content=b'{"node":"n"}', headers=headers)
    error_of(answer, 415, "unsupported_media_type")
    is_untouched(guarded)


def test_unknown_keys_are_ignored(client: Client) -> None:
    queue = new_queue(client, 1)
    for call in ("claim", "extend", "nack", "claim", "ack"):
        answer = queue.call(call, **CALLS[call], colour={"deep": [1]}, Node=7)
        assert answer.get("skipped", []) == []
    assert queue.counts() == Counts()


@pytest.mark.parametrize("node", ["x" * 128, "é" * 64, "😀" * 32, " ", "\u0000", '"'])
def test_a_node_is_any_text_of_up_to_128_bytes(client: Client, node: str) -> None:
    queue = new_queue(client, 1, 2)
    assert seqs_of(queue.claim(node, 2)) == [1, 2]
    assert queue.extend(1, node=node)["extended"] == 1
    assert queue.nack(2, node=node)["nacked"] == 1
    assert queue.ack(1, node=node)["acked"] == 1


def test_a_thousand_seqs_are_taken_and_no_more(client: Client, guarded: Queue, call_by_seqs: str) -> None:
    fields = {**CALLS[call_by_seqs], "node": "other"}
    for seqs in (range(1, 1001), range(2**64 - 1000, 2**64)):
        answer = guarded.call(call_by_seqs, **fields | {"seqs": list(seqs)})
        assert sorted(answer["skipped"]) == list(seqs)
    answer = guarded.send(call_by_seqs, **fields | {"seqs": list(range(1, 1002))})
    error_of(answer, 400, "batch_too_large")
    is_untouched(guarded)


def test_a_repeated_seq_counts_once_towards_the_limit(guarded: Queue, call_by_seqs: str) -> None:
    fields = {**CALLS[call_by_seqs], "node": "other", "seqs": [*range(1, 1001), 1, 1000]}
    assert sorted(guarded.call(call_by_seqs, **fields)["skipped"]) == list(range(1, 1001))
    is_untouched(guarded)


def test_smaller_limits(tmp_path: Path) -> None:
    with running(tmp_path, max_claim=3, max_node_bytes=4) as client:
        queue = new_queue(client, *range(6))
        invalid(queue.send("claim", node="12345"), "node")
        invalid(queue.send("claim", node="éé1"), "node")
        assert seqs_of(queue.claim("éé", 99)) == [1, 2, 3]
        for call in BY_SEQS:
            for seqs in ([1, 2, 3, 4], [4, 5, 6, 7]):
                refused = queue.send(call, node="éé", seqs=seqs, lease_ms=1000)
                error_of(refused, 400, "batch_too_large")
        assert queue.counts() == Counts(ready=3, in_flight=3)
        assert queue.ack(1, 2, 2, 3, 1, node="éé")["acked"] == 3
