"""Section 10 and pipeline 1: what is staged is nobody's until it is published, and then all of it, at once and once."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.bulk_client import LINES_TYPE, export, export_arrow, lines_of, upload
from tests.conformance.client import (
    CLASSES,
    Client,
    RawConnection,
    body_of,
    data_of,
    error_of,
    fresh_name,
    invalid,
    running,
    seqs_of,
    until,
)
from tests.conformance.keys import callers_of

ANSWERS = {
    "stage": {"topic", "stage", "count", "performance"},
    "commit": {"topic", "first_seq", "last_seq", "count", "deduped", "performance"},
    "delete": {"topic", "stage", "deleted", "performance"},
}


def send_stage(client: Client, topic: str, stage: str, *data: Any, **fields: Any) -> httpx.Response:
    fields.setdefault("records", [{"data": value} for value in data])
    return client.post(f"/v0/topics/{topic}", params={"stage": stage}, json=fields)


def staged(client: Client, topic: str, stage: str, *data: Any, **fields: Any) -> int:
    """How much the stage holds after it."""
    body = body_of(send_stage(client, topic, stage, *data, **fields), 200, 201)
    assert set(body) == ANSWERS["stage"]
    assert (body["topic"], body["stage"]) == (topic, stage)
    return int(body["count"])


def send_commit(client: Client, topic: str, *stages: str, key: str = "k") -> httpx.Response:
    return client.post(f"/v0/topics/{topic}/commit", json={"stages": stages, "idempotency_key": key})


def commit(client: Client, topic: str, *stages: str, key: str = "k") -> Any:
    body = body_of(send_commit(client, topic, *stages, key=key))
    assert set(body) == ANSWERS["commit"]
    assert body["last_seq"] - body["first_seq"] + 1 == body["count"]
    return body


def drop(client: Client, topic: str, stage: str) -> bool:
    body = body_of(client.delete(f"/v0/topics/{topic}/stages/{stage}"))
    assert set(body) == ANSWERS["delete"]
    return bool(body["deleted"])


def nothing_is_there(client: Client, topic: str) -> None:
    state = client.state(topic)
    assert [state[name] for name in ("head_seq", "earliest_seq", "count", "bytes")] == [0, 1, 0, 0]
    assert client.read(topic)["records"] == []
    assert export(client, topic).order == ["e"]
    assert [entry["topic"] for entry in client.get("/v0/topics", params={"prefix": topic}).json()["topics"]] == [topic]


# --- before the commit -----------------------------------------------------------------------------------------------


def test_the_first_call_makes_the_topic_and_nobody_sees_a_record(client: Client, topic: str) -> None:
    answer = send_stage(client, topic, "s", 1, 2, config={"ttl_ms": 10**9})
    assert (answer.status_code, answer.json()["count"]) == (201, 2)
    assert client.state(topic)["config"]["ttl_ms"] == 10**9
    with RawConnection(client) as follower:
        follower.send_head("GET", f"/v0/topics/{topic}/stream", accept="text/event-stream")
        assert staged(client, topic, "s", 3) == 3
        assert body_of(upload(client, topic, lines_of([{"data": 4}, {"data": 5}]), stage="s"), 200)["count"] == 5
        nothing_is_there(client, topic)
        assert client.read(topic, wait_ms=50)["records"] == []
        commit(client, topic, "s")
        client.append(topic, "after")
        seen = b""
        while b"after" not in seen:
            seen += follower.socket.recv(65536)
    events = [part for part in seen.split(b"\n") if part.startswith(b"data:") and b'"records"' in part]
    # All five at once; what came after them may be in the same frame.
    assert b'"from_seq":0,"to_seq":5' in events[0] or b'"from_seq":0,"to_seq":6' in events[0]


def test_a_missing_topic_is_made_under_the_rules_of_an_append(client: Client, topic: str) -> None:
    error_of(send_stage(client, topic, "s", 1, create=False), 404, "topic_not_found")
    error_of(send_stage(client, topic, "s", 1, config={"auto_create": False}), 404, "topic_not_found")
    error_of(upload(client, topic, b'{"data":1}\n', stage="s", create="0"), 404, "topic_not_found")
    error_of(send_commit(client, topic, "s"), 404, "topic_not_found")
    assert not drop(client, topic, "s")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    assert upload(client, topic, b'{"data":1}\n', stage="s").status_code == 201


@pytest.mark.parametrize("name", ["", "-s", "a b", "a/b", "x" * 256, "é"])
def test_a_stage_has_a_name_like_a_topic(client: Client, topic: str, name: str) -> None:
    client.put_topic(topic)
    invalid(send_stage(client, topic, name, 1), "stage")
    invalid(upload(client, topic, b'{"data":1}\n', stage=name), "stage")
    invalid(send_commit(client, topic, name), "stages")
    nothing_is_there(client, topic)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"stages": ["s"]}, {"idempotency_key": "k"}, {"stages": "s", "idempotency_key": "k"},
        {"stages": ["s"], "idempotency_key": ""}, {"stages": ["s"], "idempotency_key": "k" * 257},
        {"stages": ["s"], "idempotency_key": None}, {"stages": ["s", "s"], "idempotency_key": "k"}, [],
    ],
)  # fmt: skip
def test_a_commit_that_is_none_publishes_nothing(client: Client, topic: str, body: Any) -> None:
    staged(client, topic, "s", 1)
    error_of(client.post(f"/v0/topics/{topic}/commit", json=body), 400, "invalid_request")
    error_of(client.post(f"/v0/topics/{topic}/commit"), 400, "invalid_request")
    nothing_is_there(client, topic)
    assert commit(client, topic, "s")["count"] == 1


def test_what_an_append_would_refuse_a_stage_refuses(client: Client, topic: str) -> None:
    invalid(send_stage(client, topic, "s"), "records")
    invalid(send_stage(client, topic, "s", records=[{"data": 1, "tag": ""}]), "tag")
    invalid(send_stage(client, topic, "s", records=[{"data": 1, "meta": {"_topics": "x"}}]), "meta")
    error_of(send_stage(client, topic, "s", "x" * (2 << 20)), 400, "record_too_large")
    staged(client, topic, "s", 1)
    error = error_of(upload(client, topic, b'{"data":2}\n\n{bad}\n', stage="s"), 400, "invalid_request")
    assert (error["detail"]["line"], error["detail"]["committed"]) == (3, 0)
    lines = lines_of({"data": i} for i in range(1500)) + b"[]\n"
    error = error_of(upload(client, topic, lines, stage="s"), 400, "invalid_request")
    assert (error["detail"]["line"], error["detail"]["committed"]) == (1501, 1000)
    assert staged(client, topic, "s", 2) == 1002


def test_an_append_under_a_key_is_staged_once(client: Client, topic: str) -> None:
    client.put_topic(topic, idempotency_window_ms=1)
    for _ in range(2):
        assert staged(client, topic, "s", 1, 2, idempotency_key="a") == 2
        time.sleep(0.005)
    assert staged(client, topic, "t", 1, 2, idempotency_key="a") == 2, "a key is one of its stage"
    lines = lines_of({"data": i} for i in range(2500))
    for _ in range(2):
        assert body_of(upload(client, topic, lines, "up", stage="s"))["count"] == 2502
    assert client.append(topic, "own", idempotency_key="a")["deduped"] is False
    assert commit(client, topic, "s")["count"] == 2502
    assert export(client, topic).data == ["own", 1, 2, *range(2500)]


# --- the commit ------------------------------------------------------------------------------------------------------


def test_stages_are_published_in_the_order_that_the_commit_says(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, "before")
    records = [{"data": {"i": i}, "tag": f"t{i}", "node": "n", "meta": {"k": "é"}} for i in range(3)]
    staged(client, topic, "a", records=records)
    staged(client, topic, "b", 1, 2, node="w")
    client.append(topic, "between")
    body_of(upload(client, topic, lines_of({"data": i} for i in range(2500)), stage="c"))
    done = commit(client, topic, "b", "c", "a")
    assert (done["first_seq"], done["last_seq"], done["count"], done["deduped"]) == (3, 2507, 2505, False)
    assert client.append(topic, "after")["first_seq"] == 2508
    found = export(client, topic)
    assert found.seqs == list(range(1, 2509))
    assert found.data == ["before", "between", 1, 2, *range(2500), *({"i": i} for i in range(3)), "after"]
    assert [(r["$tag"], r["$node"], r["meta"]) for r in found.records[-4:-1]] == [
        (f"t{i}", "n", {"k": "é"}) for i in range(3)
    ]
    assert {record["$node"] for record in found.records[2:4]} == {"w"}
    assert len({record["$ts"] for record in found.records[2:-1]}) == 1
    assert export_arrow(client, topic) == found
    assert export(client, topic, match="t1").seqs == [2506]
    state = client.state(topic)
    assert (state["count"], state["head_seq"]) == (2508, 2508)
    until(lambda: client.state(topic)["synced_seq"] == (0 if durability == "ephemeral" else 2508))


def test_one_that_is_repeated_has_the_first_ones_answer(client: Client, topic: str) -> None:
    client.put_topic(topic, idempotency_window_ms=1)
    for name in "ab":
        staged(client, topic, name, name)
    first = commit(client, topic, "a", "b", key="one")
    client.append(topic, "later")
    time.sleep(0.005)
    for stages in (("a", "b"), ("b", "a"), ("none",)):
        again = commit(client, topic, *stages, key="one")
        assert again["deduped"] is True
        assert [again[name] for name in ("first_seq", "last_seq", "count")] == [first["first_seq"], 2, 2]
    error_of(send_commit(client, topic, "a", "b", key="two"), 404, "stage_not_found")
    assert data_of(client.read(topic)) == ["a", "b", "later"]


def test_a_missing_stage_publishes_nothing(client: Client, topic: str) -> None:
    staged(client, topic, "a", 1)
    error_of(send_commit(client, topic, "a", "none"), 404, "stage_not_found")
    error_of(send_commit(client, topic, "none"), 404, "stage_not_found")
    nothing_is_there(client, topic)
    assert commit(client, topic, "a")["count"] == 1, "and the key is not used up"


def test_a_published_stage_takes_no_more(client: Client, topic: str) -> None:
    staged(client, topic, "a", 1)
    commit(client, topic, "a")
    error_of(send_stage(client, topic, "a", 2), 409, "stage_closed")
    error = error_of(upload(client, topic, b'{"data":2}\n', stage="a"), 409, "stage_closed")
    assert error["detail"]["committed"] == 0
    assert not drop(client, topic, "a")
    error_of(send_stage(client, topic, "a", 2), 409, "stage_closed")
    assert data_of(client.read(topic)) == [1]


def test_a_dropped_stage_is_gone_and_its_name_free(client: Client, topic: str) -> None:
    staged(client, topic, "a", 1, 2)
    assert [drop(client, topic, "a") for _ in range(2)] == [True, False]
    error_of(send_commit(client, topic, "a"), 404, "stage_not_found")
    assert staged(client, topic, "a", 3) == 1
    commit(client, topic, "a")
    assert data_of(client.read(topic)) == [3]


def test_stages_go_with_their_topic(client: Client, topic: str) -> None:
    staged(client, topic, "a", 1)
    staged(client, topic, "b", 1)
    commit(client, topic, "b")
    client.delete_topic(topic)
    client.put_topic(topic)
    error_of(send_commit(client, topic, "a"), 404, "stage_not_found")
    assert staged(client, topic, "b", 2) == 1, "another topic, another stage"
    assert commit(client, topic, "b")["deduped"] is False
    assert data_of(client.read(topic)) == [2]


def test_many_stages_are_published_at_once(client: Client, topic: str) -> None:
    names = [f"s{i}" for i in range(100)]
    for i, name in enumerate(names):
        staged(client, topic, name, i)
    names.reverse()
    assert commit(client, topic, *names)["count"] == 100
    assert export(client, topic).data == list(range(99, -1, -1))


@pytest.mark.parametrize("same", [True, False])
def test_of_commits_at_the_same_time_one_publishes(client: Client, topic: str, same: bool) -> None:
    for name in "ab":
        staged(client, topic, name, *(name for _ in range(500)))

    def try_it(number: int) -> httpx.Response:
        return send_commit(client, topic, "a", "b", key="k" if same else f"k{number}")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(try_it, range(8)))
    good = [answer.json() for answer in answers if answer.status_code == 200]
    assert len(good) == (8 if same else 1)
    assert sum(not body["deduped"] for body in good) == 1
    assert {(body["first_seq"], body["count"]) for body in good} == {(1, 1000)}
    for answer in answers:
        if answer.status_code != 200:
            error_of(answer, 404, "stage_not_found")
    assert client.state(topic)["count"] == 1000


# --- limits ----------------------------------------------------------------------------------------------------------


def test_caps_hold_for_the_whole(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3, discard="reject")
    client.append(topic, "x")
    staged(client, topic, "a", 1)
    staged(client, topic, "b", 2, 3)
    staged(client, topic, "c", 4, 5, 6)
    error_of(send_commit(client, topic, "a", "b"), 422, "topic_full")
    error_of(send_commit(client, topic, "b", "c"), 400, "record_too_large")
    assert data_of(client.read(topic)) == ["x"]
    client.delete_records(topic, before_seq=2)
    assert commit(client, topic, "a", "b")["first_seq"] == 2
    assert data_of(client.read(topic)) == [1, 2, 3]


def test_with_discard_old_it_makes_room_even_of_its_own(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, "x", "y")
    staged(client, topic, "a", 1, 2)
    staged(client, topic, "b", 3, 4)
    assert commit(client, topic, "a", "b")["count"] == 4
    answer = client.read(topic)
    assert data_of(answer) == [2, 3, 4]
    assert (answer["tombstone"]["gap_to"], answer["tombstone"]["reason"]) == (3, "cap")


def test_stages_count_in_the_quota_and_expire(tmp_path: Path) -> None:
    with running(tmp_path, max_total_bytes=10_000, stage_ttl_ms=1500, max_stages=3) as client:
        staged(client, "t", "a", "x" * 6000)
        error = error_of(client.send_append("other", "x" * 6000), 429, "throttled")
        assert error["detail"]["limit"] == "max_total_bytes"
        error_of(send_stage(client, "t", "b", "x" * 6000), 429, "throttled")
        staged(client, "t", "c", 1)
        drop(client, "t", "b")  # it may have been made before its record was refused
        staged(client, "t", "d", 1)
        error = error_of(send_stage(client, "t", "e", 1), 429, "throttled")
        assert error["detail"]["limit"] == "max_stages"
        commit(client, "t", "c", key="c")
        # The others are gone when nobody has used them for a while, and what they took with them.
        until(lambda: client.send_append("other", "x" * 6000).status_code in (200, 201), within_s=20)
        until(lambda: send_commit(client, "t", "d").status_code == 404, within_s=20)
        error_of(send_commit(client, "t", "a", key="a"), 404, "stage_not_found")
        assert staged(client, "t", "a", 1) == 1, "a new one"
        assert data_of(client.read("t")) == [1]


def test_scopes_and_prefixes_are_those_of_what_is_done(tmp_path: Path) -> None:
    keys = "boss,reader:r,writer:w:in-,dropper:d:in-"
    with running(tmp_path, api_keys=keys) as client, callers_of(client) as callers:
        writer, dropper = callers["writer"], callers["dropper"]
        for name in "abc":
            staged(writer, "in-t", name, name)
        assert send_stage(callers["reader"], "in-t", "a", 1).status_code == 403
        assert send_stage(writer, "out-t", "a", 1).status_code == 403
        assert send_stage(writer, "in-t", "a", 1, config={}).status_code == 403
        assert send_commit(dropper, "in-t", "a").status_code == 403
        assert send_commit(callers[None], "in-t", "a").status_code == 401
        assert writer.delete("/v0/topics/in-t/stages/a").status_code == 403
        assert drop(dropper, "in-t", "a")
        assert commit(writer, "in-t", "b", "c")["count"] == 2
        assert data_of(callers["boss"].read("in-t")) == ["b", "c"]


# --- what a commit feeds ---------------------------------------------------------------------------------------------


def test_routers_and_queues_get_what_is_published(client: Client, topic: str) -> None:
    jobs, copy = f"{topic}-jobs", f"{topic}-copy"
    client.put_topic(jobs, type="queue")
    routers: list[dict[str, Any]] = [
        {"source": topic, "dest": jobs, "filter": "job"},
        {"source": topic, "dest": copy, "guarantee": "exactly_once"},
    ]
    for fields in routers:
        body_of(client.put(f"/v0/routers/{topic}>{fields['dest']}", json=fields), 201)
    staged(client, topic, "a", records=[{"data": i, "tag": "job" if i % 2 else "other"} for i in range(6)])
    assert client.read(copy)["records"] == []
    commit(client, topic, "a")
    assert export(client, copy).data == list(range(6))
    claimed = body_of(client.post(f"/v0/topics/{jobs}/claim", json={"node": "w", "max": 10}))["claimed"]
    assert [job["data"] for job in claimed] == [1, 3, 5]
    # And a queue may be what is published to.
    staged(client, jobs, "s", "x", "y")
    commit(client, jobs, "s")
    claimed = body_of(client.post(f"/v0/topics/{jobs}/claim", json={"node": "w", "max": 10}))["claimed"]
    assert [job["data"] for job in claimed] == ["x", "y"]


# --- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_restart_between_stage_and_commit_changes_nothing(tmp_path: Path, how: signal.Signals) -> None:
    with running(tmp_path) as client:
        for durability in CLASSES:
            client.put_topic(durability, durability=durability)
            client.append(durability, "x")
            staged(client, durability, "a", *range(1500))
            staged(client, durability, "done", "y")
            commit(client, durability, "done", key="done")
        client = client.daemon.restart(how)
        for durability in CLASSES:
            kept = [] if durability == "ephemeral" else ["x", "y"]
            assert data_of(client.read(durability)) == kept
            assert commit(client, durability, "gone", key="done")["deduped"] is True
            error_of(send_stage(client, durability, "done", 1), 409, "stage_closed")
            assert staged(client, durability, "a", 1500) == 1501
            first = commit(client, durability, "a")
            assert (first["count"], first["deduped"]) == (1501, False)
        if how is signal.SIGTERM:
            return
        client = client.daemon.restart(how)
        for durability in CLASSES:
            kept = [] if durability == "ephemeral" else ["x", "y", *range(1501)]
            assert export(client, durability).data == kept
            assert commit(client, durability, "a")["deduped"] is True


def test_a_kill_around_a_commit_leaves_all_or_nothing_and_a_repeat_completes_it(tmp_path: Path) -> None:
    rng = random.Random(11)
    with running(tmp_path) as client:
        for life in range(4):
            topic = fresh_name("life")
            durability = CLASSES[1 + life % 3]
            client.put_topic(topic, durability=durability)
            for name in "ab":
                body_of(upload(client, topic, lines_of({"data": f"{name}{i}"} for i in range(2000)), stage=name))
            expected = [f"{name}{i}" for name in "ba" for i in range(2000)]
            sender = threading.Thread(target=_send_and_see, args=(client, topic))
            sender.start()
            time.sleep(rng.uniform(0, 0.04))
            client.daemon.send_signal(signal.SIGKILL)
            sender.join()
            client.daemon.wait()
            client = client.daemon.start()
            found = export(client, topic).data
            assert found in ([], expected), (life, durability, len(found))
            done = commit(client, topic, "b", "a")
            assert (done["first_seq"], done["count"]) == (done["last_seq"] - 3999, 4000)
            assert done["deduped"] is bool(found)
            assert export(client, topic).data == expected
            assert commit(client, topic, "b", "a")["deduped"] is True


def _send_and_see(client: Client, topic: str) -> None:
    try:
        send_commit(client, topic, "b", "a")
    except httpx.HTTPError:
        pass


def test_an_upload_that_breaks_and_comes_again_is_staged_once(client: Client, topic: str) -> None:
    client.put_topic(topic)
    lines = lines_of({"data": i} for i in range(5000))
    with RawConnection(client) as connection:
        connection.send_head(
            "POST", f"/v0/topics/{topic}?stage=s", content_type=LINES_TYPE, idempotency_key="u",
            content_length=str(len(lines)),
        )  # fmt: skip
        connection.send(lines[: len(lines) // 2])
    assert body_of(upload(client, topic, lines, "u", stage="s"))["count"] == 5000
    assert seqs_of(client.read(topic)) == []
    commit(client, topic, "s")
    assert export(client, topic).data == list(range(5000))
