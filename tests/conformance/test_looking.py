"""What the interface has for those who look (`docs/spec/api.md` sections 3, 5, 6 and 11): the caller's rights, figures,
connections, filters from text, lists over all topics, reading backwards, counting before deleting, entity tags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, invalid, running, seqs_of, until
from topics.filters.filter_error import FilterError
from topics.filters.filter_text import json_of

KEYS = "all,reader:read:in-,operator:admin"

TEXTS = [
    'tag = "eu"',
    'tag ~ "eu:*" and data./total >= 10',
    'not node = "test" and (data./state in ("new", "paid") or meta.trace exists)',
    'data."/a b/0" != null or data missing',
    'tag == "a" or tag = "b" and node = "c"',
    "tag = ",
    "tag > 3",
    "tag = eu",
    '(tag = "a"',
    'data./x ~ "a"',
    "",
    'tag = "\\ud800"',
    "not " * 40 + 'tag = "a"',
]
"""Shared by the command line and the daemon: the same text is the same filter, and the same mistake."""


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("keyed"), api_keys=KEYS) as client:
        yield client


def read_text(text: str) -> tuple[str, Any]:
    """The mistake in a filter as text, empty for none, and else its JSON."""
    try:
        return "", json.loads(json_of(text))
    except FilterError as error:
        return str(error), None


def as_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_caller_is_told_what_it_may_do(client: Client, keyed: Client) -> None:
    answer = body_of(client.get("/v0/key"))
    assert (answer["has_keys"], answer["key"], answer["prefixes"]) == (False, "none", [])
    assert answer["scopes"] == ["read", "write", "delete", "admin"]
    answer = body_of(keyed.get("/v0/key", headers=as_key("reader")))
    assert (answer["has_keys"], answer["scopes"], answer["prefixes"]) == (True, ["read"], ["in-"])
    assert "reader" not in str(answer)
    error_of(keyed.get("/v0/key"), 401, "unauthorized")


@pytest.mark.parametrize("text", TEXTS)
def test_a_filter_from_text_is_that_of_the_command_line(client: Client, text: str) -> None:
    answer = client.get("/v0/filter", params={"text": text})
    mistake, expected = read_text(text)
    if mistake:
        refused = error_of(answer, 400, "invalid_request")
        assert (refused["message"], refused["detail"]["field"]) == (f"text: {mistake}", "text")
    else:
        assert body_of(answer)["filter"] == expected


def test_figures_say_what_comes_in_and_goes_out(client: Client, topic: str) -> None:
    before = body_of(client.get("/v0/figures"))
    client.append(topic, *range(100))
    client.read(topic)
    client.post(f"/v0/topics/{topic}?stage=s", json={"records": [{"data": 1}] * 7}).raise_for_status()
    client.post(f"/v0/topics/{topic}/commit", json={"stages": ["s"], "idempotency_key": "k"}).raise_for_status()
    assert client.get(f"/v0/topics/{topic}/records").status_code == 200
    after = body_of(client.get("/v0/figures"))
    assert after["totals"]["records_in"] - before["totals"]["records_in"] == 107
    assert after["totals"]["records_out"] - before["totals"]["records_out"] == 207
    assert after["totals"]["requests"] > before["totals"]["requests"]
    assert after["phase"] == "ready"
    assert after["memory"]["resident_bytes"] > 1 << 20
    assert after["disk"]["free_bytes"] > 0
    until(lambda: body_of(client.get("/v0/figures"))["rates"] is not None)
    client.append(topic, 1)
    latencies = body_of(client.get("/v0/figures"))["latencies"]
    assert latencies["append"]["count"] >= 1
    assert 0 < latencies["append"]["p50_ms"] <= latencies["append"]["p99_ms"]


def test_the_storage_has_its_shards_and_segments(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    client.post(f"/v0/topics/{topic}/seal").raise_for_status()
    answer = body_of(client.get("/v0/storage"))
    assert sum(shard["frames"] for shard in answer["shards"]) >= 10
    assert answer["tiers"][0]["tier"] == "hot"
    assert answer["tiers"][0]["seqs"] >= 10
    assert answer["checkpoints"]["taken"] >= 1
    assert answer["checkpoints"]["age_ms"] >= 0
    assert (answer["cold"], "bucket" in answer) == ("none", False)


def test_connections_are_listed_for_those_who_may_see_all(keyed: Client) -> None:
    error_of(keyed.get("/v0/connections", headers=as_key("reader")), 403, "forbidden")
    keyed.post("/v0/topics/in-a", json={"records": [{"data": i} for i in range(3)]}, headers=as_key("all"))
    with keyed.stream("GET", "/v0/topics/in-a/stream?tail=true", headers=as_key("reader")) as stream:
        assert stream.status_code == 200
        answer = body_of(keyed.get("/v0/connections", headers=as_key("operator")))
        (shown,) = answer["connections"]
        assert (shown["kind"], shown["topics"], shown["topics_total"], shown["lag"]) == ("stream", ["in-a"], 1, 0)
        assert shown["peer"].startswith("127.0.0.1:")
        assert (answer["total"], len(answer["keys"])) == (1, 3)
        use = {key["key"]: key["connections"] for key in answer["keys"]}
        assert use[shown["key"]] == 1
        assert answer["limits"]["connections"] == 1000
        again = body_of(keyed.get("/v0/connections?page_size=1", headers=as_key("operator")))
        assert "next_cursor" not in again
    until(lambda: body_of(keyed.get("/v0/connections", headers=as_key("operator")))["total"] == 0)
    error_of(keyed.get("/v0/connections?cursor=xyz", headers=as_key("operator")), 400, "invalid_request")


def test_pages_of_connections_have_each_once(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with ExitStack() as open_streams:
        for _ in range(3):
            open_streams.enter_context(client.stream("GET", f"/v0/topics/{topic}/stream"))
        until(lambda: body_of(client.get("/v0/connections"))["total"] == 3)
        first = body_of(client.get("/v0/connections?page_size=2"))
        second = body_of(client.get("/v0/connections", params={"page_size": 2, "cursor": first["next_cursor"]}))
        ids = [one["id"] for one in (*first["connections"], *second["connections"])]
        assert len(ids) == len(set(ids)) == 3
        assert "next_cursor" not in second


def test_groups_and_consumers_of_all_topics_are_lists(keyed: Client) -> None:
    everything = as_key("all")
    for name in ("in-b", "in-c", "out-d"):
        keyed.put(f"/v0/topics/{name}", headers=everything).raise_for_status()
        for one in ("x", "y"):
            keyed.put(f"/v0/topics/{name}/groups/{one}", headers=everything).raise_for_status()
            keyed.put(f"/v0/topics/{name}/consumers/{one}", headers=everything).raise_for_status()
    for kind, field in (("groups", "group"), ("consumers", "consumer")):
        found: list[Any] = []
        cursor = None
        while True:
            params = {"page_size": 4, **({"cursor": cursor} if cursor else {})}
            answer = body_of(keyed.get(f"/v0/{kind}", params=params, headers=everything))
            found += answer[kind]
            cursor = answer.get("next_cursor")
            if cursor is None:
                break
        names = [(one["topic"], one[field]) for one in found]
        assert names == [(topic, one) for topic in ("in-b", "in-c", "out-d") for one in ("x", "y")]
        seen = body_of(keyed.get(f"/v0/{kind}", headers=as_key("reader")))[kind]
        assert {one["topic"] for one in seen} == {"in-b", "in-c"}
        some = body_of(keyed.get(f"/v0/{kind}?prefix=in-c", headers=everything))[kind]
        assert {one["topic"] for one in some} == {"in-c"}
        error_of(keyed.get(f"/v0/{kind}?cursor=!", headers=everything), 400, "invalid_request")


def test_topics_are_listed_by_type_and_in_other_orders(client: Client) -> None:
    stem = fresh_name("sorted") + "."
    for i, kind in enumerate(("log", "queue", "log", "queue")):
        client.put_topic(f"{stem}{i}", type=kind)
        client.append(f"{stem}{i}", *["x" * 10 * (4 - i)] * (i + 1))

    def listed(**query: Any) -> list[str]:
        answer = body_of(client.get("/v0/topics", params={"prefix": stem, **query}))
        return [one["topic"].removeprefix(stem) for one in answer["topics"]]

    assert listed(type="queue") == ["1", "3"]
    assert listed(type="log", page_size=1) == ["0"]
    assert listed(sort="records") == ["3", "2", "1", "0"]
    assert listed(sort="bytes")[0] in ("1", "2")
    assert listed(sort="written")[0] == "3"
    assert listed(sort="records", type="log", page_size=1) == ["2"]
    queues = body_of(client.get("/v0/topics", params={"prefix": stem, "type": "queue"}))["topics"]
    assert [one["queue"]["ready"] for one in queues] == [2, 4]
    invalid(client.get("/v0/topics?type=table"), "type")
    invalid(client.get("/v0/topics?sort=size"), "sort")
    cursor = body_of(client.get(f"/v0/topics?prefix={stem}&page_size=1"))["next_cursor"]
    invalid(client.get("/v0/topics", params={"sort": "bytes", "cursor": cursor}), "cursor")


def test_a_topic_is_read_backwards(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=20)
    client.append(topic, *range(15))
    client.append(topic, *range(15, 30))
    first = body_of(client.get(f"/v0/topics/{topic}/diff?before_seq=31&limit=8"))
    assert seqs_of(first) == list(range(30, 22, -1))
    assert (first["next_before_seq"], first["next_from_seq"], first["caught_up"]) == (23, 30, False)
    rest = body_of(client.post(f"/v0/topics/{topic}/diff", json={"before_seq": first["next_before_seq"]}))
    assert seqs_of(rest) == list(range(22, 10, -1))
    assert (rest["tombstone"]["gap_from"], rest["tombstone"]["gap_to"], rest["tombstone"]["reason"]) == (1, 10, "cap")
    assert rest["caught_up"] is True
    assert data_of(client.read(topic, first["next_from_seq"])) == [], "reading on forwards, there is nothing newer"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"wait_ms": 5}, "wait_ms"),
        ({"consumer": "c"}, "consumer"),
        ({"commit_seq": 1}, "commit_seq"),
        ({"before_seq": -1}, "before_seq"),
    ],
)
def test_what_only_a_read_forwards_has_is_refused(client: Client, topic: str, more: Any, field: str) -> None:
    client.put_topic(topic)
    invalid(client.post(f"/v0/topics/{topic}/diff", json={"before_seq": 9, **more}), field)


def test_a_deletion_is_counted_before(client: Client, topic: str) -> None:
    client.tagged(topic, "a", "b", "a", None, "a")
    for body, count in (
        ({"match": "a"}, 3),
        ({"before_seq": 3}, 2),
        ({"after_seq": 1, "match": "a"}, 2),
        ({"before_ts": 0}, 0),
    ):
        counted = client.delete_records(topic, **body, dry_run=True)
        assert (counted["deleted"], counted["dry_run"], counted["count"]) == (count, True, 5)
    assert client.state(topic)["count"] == 5
    assert "dry_run" not in client.delete_records(topic, match="a")
    assert client.delete_records(topic, match="a", dry_run=True)["deleted"] == 0
    error_of(client.post("/v0/topics/no-such/delete", json={"before_seq": 1, "dry_run": True}), 404, "topic_not_found")


def test_looking_is_no_use_of_a_topic(client: Client, topic: str) -> None:
    client.append(topic, 1)
    client.get(f"/v0/topics/{topic}/diff?touch=false").raise_for_status()
    client.get(f"/v0/topics/{topic}/diff?before_seq=9&touch=false").raise_for_status()
    with client.stream("GET", f"/v0/topics/{topic}/stream?touch=false") as stream:
        next(line for line in stream.iter_lines() if "caught-up" in line)
        assert client.state(topic, touch=False)["last_read_ts"] is None
    with client.stream("GET", f"/v0/topics/{topic}/stream") as stream:
        next(line for line in stream.iter_lines() if "caught-up" in line)
        assert client.state(topic, touch=False)["last_read_ts"] is not None
    queue = fresh_name("q")
    client.put_topic(queue, type="queue")
    client.append(queue, 1)
    client.get(f"/v0/topics/{queue}/jobs?touch=false").raise_for_status()
    assert client.state(queue, touch=False)["last_read_ts"] is None


def test_an_answer_that_has_not_changed_is_not_sent_again(client: Client, topic: str) -> None:
    client.append(topic, 1)
    path = f"/v0/topics/{topic}/diff?touch=false"
    first = client.get(path)
    again = client.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    client.append(topic, 2)
    changed = client.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (changed.status_code, seqs_of(changed.json())) == (200, [1, 2])
    assert "etag" not in client.post(f"/v0/topics/{topic}/diff", json={}).headers
