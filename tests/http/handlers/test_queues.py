"""Queues over HTTP: what their bodies and queries may hold, and what a client is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.conftest import SMALL, Served
from tests.http.requests.test_bodies import nested, refused
from tests.http.test_gate import error_of
from topics.errors import ApiError
from topics.http.requests import queue_requests
from topics.job_model import ClaimRequest, HeldRequest, NackTerms

LEASE = "lease_00000000000000ff"


def raw(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def claim(body: Any) -> ClaimRequest:
    return queue_requests.decode_claim(raw(body), SMALL)


def ack(body: Any) -> HeldRequest:
    return queue_requests.decode_ack(raw(body), SMALL)


def nack(body: Any) -> tuple[HeldRequest, NackTerms]:
    return queue_requests.decode_nack(raw(body), SMALL)


def extend(body: Any) -> tuple[HeldRequest, int]:
    return queue_requests.decode_extend(raw(body), SMALL)


def work(query: bytes) -> queue_requests.WorkRequest:
    return queue_requests.decode_work(query, SMALL)


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "most", "lease_ms", "wait_ms"),
    [
        ({}, 1, None, 0),
        ({"max": 0, "lease_ms": 0, "wait_ms": -1}, 1, 100, 0),
        ({"max": -5, "lease_ms": -5, "wait_ms": 10**9}, 1, 100, 30_000),
        ({"max": 10**6, "lease_ms": 10**12, "wait_ms": 5}, 1000, 86_400_000, 5),
        ({"max": 1000, "lease_ms": 100, "unknown": {"a": 1}}, 1000, 100, 0),
    ],
)
def test_numbers_of_a_claim_are_clamped(given: dict[str, Any], most: int, lease_ms: int | None, wait_ms: int) -> None:
    assert claim({"node": "w", **given}) == ClaimRequest(node="w", most=most, lease_ms=lease_ms, wait_ms=wait_ms)


def test_delays_and_leases_are_clamped() -> None:
    held = {"node": "w", "seqs": [1]}
    assert nack(held)[1] == NackTerms()
    assert nack({**held, "delay_ms": -1})[1].delay_ms == 0
    assert nack({**held, "delay_ms": 10**10})[1].delay_ms == 86_400_000
    assert extend({**held, "lease_ms": 1})[1] == 100
    assert extend({**held, "lease_ms": 10**10})[1] == 86_400_000


def test_a_lease_id_that_is_none_fits_no_lease() -> None:
    ids = [LEASE, "lease_FF", "", "lease_" + "0" * 17, "x"]
    held = ack({"node": "w", "seqs": [1, 2, 3, 4, 5], "lease_ids": ids})
    assert held.lease_ids == [255] + [queue_requests.NO_LEASE] * 4


def test_repeated_seqs_count_once() -> None:
    seqs = [*range(1, SMALL.max_claim + 1)] * 2
    assert ack({"node": "w", "seqs": seqs}).seqs == [*range(1, SMALL.max_claim + 1)]
    with pytest.raises(ApiError) as refusal:
        ack({"node": "w", "seqs": [*range(SMALL.max_claim + 1)]})
    assert (refusal.value.code, refusal.value.detail["field"]) == ("batch_too_large", "seqs")


NODES: list[Any] = [None, "", 1, ["w"], "n" * 129, "\u00e9" * 65]
BAD_SEQS: list[Any] = [-1, 2**64, "1", None, True, 1.5]
NO_SEQS: list[Any] = [None, [], 1, "1", {}]
NOT_THE_IDS: list[Any] = [[], [LEASE] * 2, LEASE, 1]
BAD_NUMBERS: list[Any] = ["1", [], True]
HELD: list[tuple[Any, str]] = [
    ({"seqs": [1]}, "node"),
    ({"node": "w"}, "seqs"),
    *(({"node": node, "seqs": [1]}, "node") for node in NODES),
    *(({"node": "w", "seqs": seqs}, "seqs") for seqs in NO_SEQS),
    *(({"node": "w", "seqs": [1, bad]}, "seqs[1]") for bad in BAD_SEQS),
    *(({"node": "w", "seqs": [1], "lease_ids": ids}, "lease_ids") for ids in NOT_THE_IDS),
    ({"node": "w", "seqs": [1], "lease_ids": [1]}, "lease_ids[0]"),
    ([], "body"), (b"", "node"), (b"{", "body"), (b"null", "body"), (b'{"node":"\xff","seqs":[1]}', "body"),
    (b'{"node":"w","seqs":[1],"x":' + nested(600) + b"}", "body"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "field"), HELD)
@pytest.mark.parametrize("decode", [ack, nack])
def test_a_bad_ack_or_nack_names_its_field(decode: Any, body: Any, field: str) -> None:
    assert refused(decode, body) == field


@pytest.mark.parametrize(
    ("decode", "body", "field"),
    [
        *((claim, {"node": node}, "node") for node in NODES),
        *((claim, {"node": "w", name: bad}, name) for name in ("max", "lease_ms", "wait_ms") for bad in BAD_NUMBERS),
        (claim, b"", "node"),
        (claim, {"node": "w", "max": None}, "max"),
        (nack, {"node": "w", "seqs": [1], "delay_ms": "1"}, "delay_ms"),
        (nack, {"node": "w", "seqs": [1], "delay_ms": None}, "delay_ms"),
        (nack, {"node": "w", "seqs": [1], "error": "é" * 2049}, "error"),
        (nack, {"node": "w", "seqs": [1], "count": 1}, "count"),
        (nack, {"node": "w", "seqs": [1], "dead": "yes"}, "dead"),
        (extend, {"node": "w", "seqs": [1]}, "lease_ms"),
        (extend, {"node": "w", "seqs": [1], "lease_ms": None}, "lease_ms"),
    ],
)
def test_a_bad_call_names_its_field(decode: Any, body: Any, field: str) -> None:
    assert refused(decode, body) == field


def test_a_stream_is_asked_for_by_its_query() -> None:
    assert work(b"node=w") == ("w", 1, None)
    assert work(b"node=w&max=-3&lease_ms=5&x=1") == ("w", 1, 100)
    assert work(b"node=w&max=5000&lease_ms=100000000") == ("w", 1000, 86_400_000)


@pytest.mark.parametrize(
    ("query", "field"),
    [(b"", "node"), (b"node=", "node"), (b"node=a&node=b", "node"), (b"node=" + b"x" * 129, "node"),
     (b"node=w&max=x", "max"), (b"node=w&lease_ms=", "lease_ms")],
)  # fmt: skip
def test_a_bad_query_of_a_stream_names_its_parameter(query: bytes, field: str) -> None:
    assert refused(work, query) == field


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_answers(served: Served) -> None:
    async with served.client() as client:
        await client.put("/v0/topics/q", json={"type": "queue"})
        await client.post("/v0/topics/q", json={"records": [{"data": 1, "tag": "t"}, {"data": 2}]})
        answer = (await client.post("/v0/topics/q/claim", json={"node": "w", "max": 2})).json()
        assert set(answer) == {"topic", "claimed", "count", "ready", "performance"}
        assert (answer["count"], answer["ready"]) == (2, 5)
        first = answer["claimed"][0]
        assert (first["$seq"], first["lease_id"], first["deadline"], first["deliveries"]) == (
            1,
            "lease_0000000000000007",
            1234,
            1,
        )
        held = {"node": "w", "seqs": [1, 9]}
        for call, done in (("ack", "acked"), ("nack", "nacked")):
            answer = (await client.post(f"/v0/topics/q/{call}", json=held)).json()
            assert answer.pop("performance")
            assert answer == {"topic": "q", done: 1, "skipped": [9], "ready": 1, "in_flight": 2}
        answer = (await client.post("/v0/topics/q/extend", json={**held, "lease_ms": 500})).json()
        assert answer.pop("performance")
        assert answer == {"topic": "q", "extended": 1, "skipped": [9], "deadlines": {"1": 99}}
        assert served.engine.asked[-2] == 500


@pytest.mark.trio
async def test_every_call_takes_json_only(served: Served) -> None:
    async with served.client() as client:
        for call in ("claim", "ack", "nack", "extend"):
            refusal = await client.post(f"/v0/topics/q/{call}", content=b"{}", headers={"content-type": "text/plain"})
            error_of(refusal, 415, "unsupported_media_type")
            refusal = await client.get(f"/v0/topics/q/{call}")
            assert (refusal.status_code, refusal.headers["allow"]) == (405, "POST")
