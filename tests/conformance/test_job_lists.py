"""Jobs that are listed, retried and cancelled, over HTTP and through the clients (`docs/spec/consumers.md` section
5)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conformance.client import Client, body_of, error_of, invalid, running, until
from tests.conformance.keys import BOSS, bearer, callers_of
from tests.conformance.queue_client import LONG_MS
from topics.client import Client as TopicsClient

ROW = {"state", "deliveries", "priority", "$seq", "$ts", "data"}


def jobs(client: Client, topic: str, *more: str, **query: Any) -> Any:
    """A page."""
    return body_of(client.get("/".join(["/v0/topics", topic, *more, "jobs"]), params=query))


def change(client: Client, topic: str, verb: str, *more: str, **fields: Any) -> tuple[int, int, int]:
    answer = body_of(client.post("/".join(["/v0/topics", topic, *more, "jobs", verb]), json=fields))
    return answer["matched"], answer["done"], answer["skipped"]


def seqs_of(page: Any) -> list[int]:
    return [job["$seq"] for job in page["jobs"]]


def make(client: Client, topic: str, *records: Any, **config: Any) -> None:
    body_of(client.put(f"/v0/topics/{topic}", json={"type": "queue", "lease_ms": LONG_MS, **config}), 200, 201)
    body_of(client.post(f"/v0/topics/{topic}", json={"records": list(records)}))


def say(client: Client, path: str, **fields: Any) -> Any:
    return body_of(client.post(f"/v0/topics/{path}", json={"node": "n", **fields}))


def test_jobs_are_listed_by_state_and_filter(client: Client, topic: str) -> None:
    make(client, topic, {"data": 1, "tag": "a"}, {"data": 2, "delay_ms": LONG_MS}, {"data": 3, "tag": "a"}, {"data": 4})
    say(client, f"{topic}/claim", max=2)
    say(client, f"{topic}/nack", seqs=[3], delay_ms=LONG_MS, error="no")
    page = jobs(client, topic)
    assert set(page) == {"topic", "jobs", "performance"}
    one, two, three, four = page["jobs"]
    assert [job["state"] for job in page["jobs"]] == ["in_flight", "delayed", "delayed", "ready"]
    assert (set(one) - ROW, one["node"], one["$tag"]) == ({"node", "deadline", "$tag"}, "n", "a")
    assert set(two) - ROW == {"not_before"}
    assert (set(three) - ROW, three["last_error"]) == ({"not_before", "last_error", "$tag"}, "no")
    assert set(four) == ROW
    assert seqs_of(jobs(client, topic, state="ready")) == [4]
    assert seqs_of(jobs(client, topic, state="in_flight")) == [1]
    assert seqs_of(jobs(client, topic, state="delayed")) == [2, 3]
    assert seqs_of(jobs(client, topic, filter='["tag","Eq","a"]')) == [1, 3]
    assert seqs_of(jobs(client, topic, filter='["tag","Eq","a"]', state="delayed")) == [3]


def test_pages_and_their_cursors(client: Client, topic: str) -> None:
    make(client, topic, *({"data": i} for i in range(10)))
    page = jobs(client, topic, page_size=4)
    assert seqs_of(page) == [1, 2, 3, 4]
    page = jobs(client, topic, page_size=4, cursor=page["next_cursor"])
    assert seqs_of(page) == [5, 6, 7, 8]
    last = jobs(client, topic, page_size=4, cursor=page["next_cursor"])
    assert (seqs_of(last), "next_cursor" in last) == ([9, 10], False)
    assert seqs_of(jobs(client, topic, page_size=0)) == [1]
    assert len(seqs_of(jobs(client, topic, page_size=10**9))) == 10


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "bad",
    ["x", "!", "%00", "ä", "9", cursor("j:"), cursor("j:-1"), cursor("j:1.5"), cursor(f"j:{1 << 64}"), cursor("l:1"),
     cursor("t:1"), cursor("j:٣"), cursor("j:1 "), "A" * 3000],
)  # fmt: skip
def test_a_cursor_of_another_list_is_refused(client: Client, topic: str, bad: str) -> None:
    make(client, topic, {"data": 1})
    invalid(client.get(f"/v0/topics/{topic}/jobs", params={"cursor": bad}), "cursor")


def test_a_cursor_beyond_the_end_is_an_empty_page(client: Client, topic: str) -> None:
    make(client, topic, {"data": 1}, dead_letter=f"{topic}.dead")
    for last in (1, 99, (1 << 64) - 1):
        assert jobs(client, topic, cursor=cursor(f"j:{last}"))["jobs"] == []
        assert jobs(client, topic, cursor=cursor(f"l:{last}"), state="dead")["jobs"] == []


def test_bad_queries_and_bodies_name_the_field(client: Client, topic: str) -> None:
    make(client, topic, {"data": 1})
    where = f"/v0/topics/{topic}/jobs"
    for field, value in (("state", "busy"), ("state", ""), ("filter", "["), ("filter", "[]"), ("page_size", "many")):
        invalid(client.get(where, params={field: value}), field)
    invalid(client.get(where, params={"state": "dead"}), "state")
    for verb in ("retry", "cancel"):
        for body, field in (
            ({}, "filter"),
            ({"filter": None}, "filter"),
            ({"state": "delayed"}, "filter"),
            ({"seqs": []}, "seqs"),
            ({"seqs": [-1]}, "seqs[0]"),
            ({"seqs": [1, 1 << 64]}, "seqs[1]"),
            ({"seqs": ["1"]}, "seqs[0]"),
            ({"filter": ["tag", "Eq", 1]}, "filter[2]"),
            ({"seqs": [1], "filter": ["tag", "Eq", "a"]}, "filter"),
            ({"seqs": [1], "state": "busy"}, "state"),
        ):
            invalid(client.post(f"{where}/{verb}", json=body), field)
        error = error_of(client.post(f"{where}/{verb}", json={"seqs": list(range(1, 1002))}), 400, "batch_too_large")
        assert error["detail"]["field"] == "seqs"
        invalid(client.post(f"{where}/{verb}"), "filter")
        invalid(client.post(f"{where}/{verb}", json={"seqs": [1], "stat": "delayed"}), "stat")
    invalid(client.post(f"{where}/cancel", json={"seqs": [1], "state": "dead"}), "state")
    assert seqs_of(jobs(client, topic)) == [1]


def test_what_is_no_queue_has_no_jobs(client: Client, topic: str) -> None:
    client.append(topic, 1)
    error_of(client.get(f"/v0/topics/{topic}/jobs"), 409, "not_a_queue")
    error_of(client.get(f"/v0/topics/{topic}.none/jobs"), 404, "topic_not_found")
    error_of(client.get(f"/v0/topics/{topic}/groups/g/jobs"), 404, "group_not_found")
    for verb in ("retry", "cancel"):
        error_of(client.post(f"/v0/topics/{topic}/jobs/{verb}", json={"seqs": [1]}), 409, "not_a_queue")
    make(client, f"{topic}.q", {"data": 1})
    error_of(client.get(f"/v0/topics/{topic}.q/groups/g/jobs"), 409, "not_a_log")


def test_jobs_are_retried_and_cancelled(client: Client, topic: str) -> None:
    records = (
        {"data": 1},
        {"data": 2, "delay_ms": LONG_MS},
        {"data": 3, "delay_ms": LONG_MS},
        {"data": 4},
        {"data": 5},
    )
    make(client, topic, *records)
    assert change(client, topic, "retry", seqs=[1, 2, 2, 77]) == (1, 1, 2)
    leased = say(client, f"{topic}/claim", max=2)["claimed"]
    assert [job["$seq"] for job in leased] == [1, 2]
    assert change(client, topic, "cancel", seqs=[1, 3, 5], state="in_flight") == (1, 1, 2)
    assert say(client, f"{topic}/ack", seqs=[1, 2])["skipped"] == [1]
    assert change(client, topic, "cancel", filter=["data", "", "Ge", 4]) == (2, 2, 0)
    assert seqs_of(jobs(client, topic)) == [3]
    state = body_of(client.get(f"/v0/topics/{topic}"))
    assert (state["count"], state["queue"]["delayed"]) == (1, 1)


def test_dead_jobs_are_those_of_the_queue_or_the_group(client: Client, topic: str) -> None:
    dead, log = f"{topic}.dead", f"{topic}.log"
    for name, records in ((topic, 3), (f"{topic}.other", 1)):
        make(client, name, *({"data": i, "tag": "x"} for i in range(records)), dead_letter=dead, max_deliveries=9)
        seqs = [job["$seq"] for job in say(client, f"{name}/claim", max=9)["claimed"]]
        say(client, f"{name}/nack", seqs=seqs, dead=True, error="why")
    client.append(log, 1, 2)
    for group in ("g", "h"):
        body_of(
            client.put(
                f"/v0/topics/{log}/groups/{group}", json={"from": "earliest", "dead_letter": dead, "max_deliveries": 9}
            ),
            201,
        )
        say(client, f"{log}/groups/{group}/claim", max=1)
        say(client, f"{log}/groups/{group}/nack", seqs=[1], dead=True)
    until(lambda: body_of(client.get(f"/v0/topics/{dead}"))["count"] == 6)
    found = jobs(client, topic, state="dead")["jobs"]
    assert [(job["state"], job["deliveries"], job["last_error"], job["data"]) for job in found] == [
        ("dead", 1, "why", i) for i in range(3)
    ]
    assert all(job["meta"]["$dead_letter_from"] == topic for job in found)
    assert len(jobs(client, topic, state="dead", filter='["data","","Gt",0]')["jobs"]) == 2
    assert len(jobs(client, log, "groups", "g", state="dead")["jobs"]) == 1
    paged: list[int] = []
    query: dict[str, Any] = {"state": "dead", "page_size": 1}
    while True:
        page = jobs(client, topic, **query)
        paged += seqs_of(page)
        if "next_cursor" not in page:
            break
        query["cursor"] = page["next_cursor"]
    assert paged == [job["$seq"] for job in found]


def test_dead_jobs_are_retried(client: Client, topic: str) -> None:
    dead, log = f"{topic}.dead", f"{topic}.log"
    records = [{"data": i, "tag": "x" if i < 2 else "y", "meta": {"m": str(i)}} for i in range(4)]
    make(client, topic, *records, dead_letter=dead, max_deliveries=9)
    say(client, f"{topic}/claim", max=9)
    say(client, f"{topic}/nack", seqs=[1, 2, 3], dead=True, error="why")
    say(client, f"{topic}/nack", seqs=[4], delay_ms=LONG_MS)
    until(lambda: len(jobs(client, topic, state="dead")["jobs"]) == 3)
    client.append(log, 1)
    body_of(
        client.put(f"/v0/topics/{log}/groups/g", json={"from": "earliest", "dead_letter": dead, "max_deliveries": 9}),
        201,
    )
    say(client, f"{log}/groups/g/claim")
    say(client, f"{log}/groups/g/nack", seqs=[1], dead=True)
    until(lambda: len(jobs(client, log, "groups", "g", state="dead")["jobs"]) == 1)
    letters = {job["data"]: job["$seq"] for job in jobs(client, topic, state="dead")["jobs"]}
    (of_group,) = seqs_of(jobs(client, log, "groups", "g", state="dead"))
    assert change(client, topic, "retry", seqs=[letters[2], of_group, 99], state="dead") == (1, 1, 2)
    (back,) = jobs(client, topic, state="ready")["jobs"]
    assert (back["data"], back["deliveries"], back["meta"], "last_error" in back) == (2, 0, {"m": "2"}, False)
    assert back["$seq"] == 5
    assert change(client, topic, "retry", filter=["data", "", "Exists", True], state="delayed") == (1, 1, 0)
    assert change(client, topic, "retry", filter=["tag", "Eq", "x"]) == (2, 2, 0)
    assert [job["data"] for job in jobs(client, topic, state="ready")["jobs"]] == [3, 2, 0, 1]
    assert jobs(client, topic, state="dead")["jobs"] == []
    assert change(client, log, "retry", "groups", "g", seqs=[of_group], state="dead") == (1, 1, 0)
    assert seqs_of(jobs(client, log, "groups", "g", state="ready")) == [1]
    assert change(client, log, "retry", "groups", "g", filter=["data", "", "Exists", True]) == (0, 0, 0)
    body_of(client.put(f"/v0/topics/{topic}", json={"dead_letter": None}))
    invalid(client.post(f"/v0/topics/{topic}/jobs/retry", json={"seqs": [1], "state": "dead"}), "state")
    assert change(client, topic, "retry", filter=["tag", "Eq", "x"]) == (0, 0, 0)


def test_dead_jobs_are_read_only_with_a_key_for_their_topic_which_is_not_told(tmp_path: Path) -> None:
    entries = [BOSS, "mine::mine", "reader:r:mine|secret"]
    with running(tmp_path, api_keys=",".join(entries)) as client, callers_of(client) as callers:
        boss = callers[BOSS]
        make(boss, "mine", {"data": 1}, dead_letter="secret.dead", max_deliveries=5)
        say(boss, "mine/claim")
        say(boss, "mine/nack", seqs=[1], dead=True)
        until(lambda: bool(jobs(boss, "mine", state="dead")["jobs"]))
        error = error_of(callers["mine"].get("/v0/topics/mine/jobs", params={"state": "dead"}), 403, "forbidden")
        assert "secret" not in json.dumps(error)
        assert len(jobs(callers["reader"], "mine", state="dead")["jobs"]) == 1
        for body in ({"seqs": [1], "state": "dead"}, {"filter": ["tag", "Eq", "x"]}):
            error = error_of(callers["mine"].post("/v0/topics/mine/jobs/retry", json=body), 403, "forbidden")
            assert "secret" not in json.dumps(error)
        assert change(callers["mine"], "mine", "retry", filter=["tag", "Eq", "x"], state="delayed") == (0, 0, 0)
        assert jobs(callers["mine"], "mine")["jobs"] == []
        error_of(callers["reader"].post("/v0/topics/mine/jobs/cancel", json={"seqs": [1]}), 403, "forbidden")
        error_of(callers["mine"].get("/v0/topics/other/jobs"), 403, "forbidden")
        error_of(client.get("/v0/topics/mine/jobs", headers=bearer("nobody")), 401, "unauthorized")


def test_a_group_cancels_without_a_deletion(client: Client, topic: str) -> None:
    client.append(topic, *range(1, 11))
    where = f"{topic}/groups/g"
    even = ["data", "", "In", [2, 4, 6, 8, 10]]
    body_of(client.put(f"/v0/topics/{where}", json={"from": "earliest", "filter": even, "lease_ms": LONG_MS}), 201)
    page = jobs(client, topic, "groups", "g", state="ready")
    assert (page["topic"], page["group"], seqs_of(page)) == (topic, "g", [2, 4, 6, 8, 10])
    assert [job["$seq"] for job in say(client, f"{where}/claim", max=2)["claimed"]] == [2, 4]
    assert change(client, topic, "cancel", "groups", "g", filter=["data", "", "Ge", 4], state="ready") == (3, 3, 0)
    assert change(client, topic, "cancel", "groups", "g", seqs=[1, 2, 3]) == (1, 1, 2)
    assert say(client, f"{where}/ack", seqs=[2, 4])["skipped"] == [2]
    assert jobs(client, topic, "groups", "g")["jobs"] == []
    state = body_of(client.get(f"/v0/topics/{where}"))
    assert state["queue"]["in_flight"] == 0
    assert body_of(client.get(f"/v0/topics/{topic}"))["count"] == 10


def test_both_clients_list_retry_and_cancel(client: Client, topic: str) -> None:
    make(client, topic, *({"data": i, "delay_ms": LONG_MS, "tag": "x"} for i in range(3)), {"data": 9})
    with TopicsClient(client.daemon.url) as topics:
        found = list(topics.all_jobs(topic))
        assert [(job.seq, job.state, job.data, job.holder) for job in found][2:] == [
            (3, "delayed", 2, None),
            (4, "ready", 9, None),
        ]
        assert [job.seq for job in topics.jobs(topic, state="delayed", page_size=1).jobs] == [1]
        assert topics.retry_jobs(topic, [1]).done == 1
        (job,) = topics.claim(topic, "w").claimed
        topics.nack(topic, "w", [job.seq], error="why")
        assert topics.claim(topic, "w").claimed[0].last_error == "why"
        assert [(job.holder, job.last_error) for job in topics.all_jobs(topic, state="in_flight")] == [("w", "why")]

        async def others() -> None:
            async with topics.asynchronous() as concurrent:
                assert [job.seq async for job in concurrent.all_jobs(topic, filter=["tag", "Eq", "x"])] == [1, 2, 3]
                done = await concurrent.cancel_jobs(topic, filter=["tag", "Eq", "x"])
                assert (done.matched, done.done, done.skipped) == (3, 3, 0)

        anyio.run(others)
        assert [job.seq for job in topics.all_jobs(topic)] == [4]
