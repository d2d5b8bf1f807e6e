"""Schedules over HTTP and through the clients (`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conformance.client import Client, body_of, error_of, fresh_name, invalid, running, until
from tests.conformance.router_client import metric as metric_or_none
from topics.client import AsyncClient
from topics.client import Client as TopicsClient

EVERY = {"topic": "none", "record": {"data": 1}, "every_ms": 86_400_000}


@pytest.fixture
def name(client: Client) -> Iterator[str]:
    name = fresh_name("schedule")
    yield name
    client.delete(path(name))


def path(name: str, *more: str) -> str:
    return "/".join(["/v0/schedules", name, *more])


def metric(client: Client, name: str) -> float:
    value = metric_or_none(client, name)
    assert value is not None
    return value


def put(client: Client, name: str, **fields: Any) -> Any:
    return body_of(client.put(path(name), json=EVERY | fields), 200, 201)


def times_of(client: Client, topic: str) -> list[int]:
    """The times of the records of a topic; empty while there is no such topic."""
    found: list[int] = []
    while True:
        where = f"/v0/topics/{topic}/diff"
        answer = client.get(where, params={"from_seq": len(found), "limit": 1000, "include_meta": "1"})
        if answer.status_code == 404:
            return []
        page = body_of(answer)
        found += [int(record["meta"]["_topics_schedule_ts"]) for record in page["records"]]
        if page["caught_up"]:
            return found


def test_a_schedule_from_its_creation_to_its_deletion(client: Client, topic: str, name: str) -> None:
    error_of(client.get(path(name)), 404, "schedule_not_found")
    record = {"data": {"b": [1, 2.5]}, "tag": "x", "node": "n", "meta": {"k": "v"}}
    wish = {"topic": topic, "record": record, "cron": "0 3 * * 1-5", "time_zone": "Europe/Berlin", "catch_up": "one"}
    state = body_of(client.put(path(name), json=wish), 201)
    assert {key: state[key] for key in wish} == wish
    assert (state["every_ms"], state["paused"], state["last_ts"], state["last_error"]) == (None, False, None, None)
    assert state["created_ts"] < state["next_ts"] <= state["created_ts"] + 3 * 86_400_000
    again = body_of(client.put(path(name), json=wish), 200)
    assert {**again, "performance": 0} == {**state, "performance": 0}
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    ran = body_of(client.post(path(name, "run")))
    assert (ran["schedule"], ran["topic"], ran["seq"]) == (name, topic, 1)
    page = body_of(client.get(f"/v0/topics/{topic}/diff", params={"include_meta": "1", "include_tags": "1"}))
    assert page["records"][0]["meta"] == {"k": "v", "_topics_schedule": name}
    assert page["records"][0]["$tag"] == "x"
    assert body_of(client.get(path(name)))["last_ts"] is None
    for _ in range(2):
        paused = body_of(client.post(path(name, "pause")))
        assert (paused["paused"], paused["next_ts"]) == (True, None)
    assert put(client, name, topic=topic)["paused"] is True
    for _ in range(2):
        assert body_of(client.post(path(name, "resume")))["paused"] is False
    assert body_of(client.delete(path(name)))["deleted"] is True
    assert body_of(client.delete(path(name)))["deleted"] is False
    for verb in ("run", "pause", "resume"):
        error_of(client.post(path(name, verb)), 404, "schedule_not_found")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"topic": None}, "topic"),
        ({"topic": "a b"}, "topic"),
        ({"record": None}, "record"),
        ({"record": {"data": 1, "tug": "x"}}, "record.tug"),
        ({"record": {"tag": "x"}}, "record.data"),
        ({"record": {"data": 1, "tag": ""}}, "record.tag"),
        ({"record": {"data": 1, "meta": {"_topics_schedule": "x"}}}, "record.meta"),
        ({"every_ms": None}, "every_ms"),
        ({"cron": "* * * * *"}, "cron"),
        ({"every_ms": 99}, "every_ms"),
        ({"every_ms": 10**15}, "every_ms"),
        ({"every_ms": 1.5}, "every_ms"),
        ({"every_ms": None, "cron": "* * * *"}, "cron"),
        ({"every_ms": None, "cron": "@daily"}, "cron"),
        ({"every_ms": None, "cron": "0 0 30 2 *"}, "cron"),
        ({"every_ms": None, "cron": "* * * * *", "time_zone": "Mars/Olympus"}, "time_zone"),
        ({"time_zone": "Europe/Berlin"}, "time_zone"),
        ({"catch_up": "some"}, "catch_up"),
        ({"paused": 1}, "paused"),
        ({"pause": True}, "pause"),
    ],
)
def test_a_bad_put_names_the_field(client: Client, name: str, change: dict[str, Any], field: str) -> None:
    body = {key: value for key, value in (EVERY | change).items() if value is not None}
    invalid(client.put(path(name), json=body), field)
    error_of(client.get(path(name)), 404, "schedule_not_found")


def test_a_name_is_checked_and_an_ephemeral_topic_refused(client: Client, topic: str, name: str) -> None:
    invalid(client.put(path("a%20b"), json=EVERY), "schedule")
    body_of(client.put(f"/v0/topics/{topic}", json={"durability": "ephemeral"}), 201)
    error_of(client.put(path(name), json=EVERY | {"topic": topic}), 409, "topic_exists_incompatible")


def test_it_fires_shows_that_in_the_metrics_and_stops_when_it_is_paused(client: Client, topic: str, name: str) -> None:
    before = metric(client, "schedule_firings_total")
    created = put(client, name, topic=topic, every_ms=100)["created_ts"]
    until(lambda: len(times_of(client, topic)) >= 3)
    last = body_of(client.post(path(name, "pause")))["last_ts"]
    found = times_of(client, topic)
    assert found[-1] == last
    assert all((ts - created) % 100 == 0 for ts in found)
    assert found == sorted(set(found))
    assert metric(client, "schedule_firings_total") >= before + 3
    assert metric(client, "schedules") >= 1
    client.get(path(name))
    assert times_of(client, topic) == found


def test_a_refused_firing_tells_why(client: Client, topic: str, name: str) -> None:
    body_of(client.put(f"/v0/topics/{topic}", json={"schema": {"type": "string"}}), 201)
    put(client, name, topic=topic, every_ms=100)
    until(lambda: body_of(client.get(path(name)))["last_error"] is not None)
    assert body_of(client.get(path(name)))["last_error"]["code"] == "schema_violation"
    assert metric(client, "schedules_failing") >= 1
    error_of(client.post(path(name, "run")), 422, "schema_violation")
    put(client, name, topic=topic, every_ms=100, record={"data": "text"})
    until(lambda: len(times_of(client, topic)) >= 1)
    assert body_of(client.get(path(name)))["last_error"] is None


def test_the_list_has_pages(client: Client) -> None:
    prefix = fresh_name("list")
    names = [f"{prefix}.{i}" for i in range(5)]
    for name in names:
        put(client, name)
    found, cursor = [], None
    while True:
        page = body_of(client.get("/v0/schedules", params={"prefix": prefix, "page_size": 2, "cursor": cursor or ""}))
        found += [one["schedule"] for one in page["schedules"]]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    assert found == names
    invalid(client.get("/v0/schedules", params={"cursor": "dDphYmM"}), "cursor")
    for name in names:
        client.delete(path(name))


def test_the_prefixes_of_a_key_must_cover_name_and_topics(tmp_path: Path) -> None:
    keys = "all:admin+read+write+delete,mine:admin+read+write+delete:my."
    with running(tmp_path, api_keys=keys) as client:

        def ask(key: str, method: str, where: str, body: Any = None) -> Any:
            return client.request(method, where, json=body, headers={"authorization": f"Bearer {key}"})

        for name in ("foreign", "my.other"):
            body_of(ask("all", "PUT", path(name), EVERY | {"topic": "foreign"}), 201)
        body_of(ask("mine", "PUT", path("my.s"), EVERY | {"topic": "my.topic"}), 201)
        for name, topic in (("other", "my.topic"), ("my.s", "foreign"), ("my.other", "my.topic")):
            error_of(ask("mine", "PUT", path(name), EVERY | {"topic": topic}), 403, "forbidden")
        for name in ("foreign", "my.other"):
            for method in ("GET", "DELETE"):
                error_of(ask("mine", method, path(name)), 403, "forbidden")
            for verb in ("run", "pause", "resume"):
                error_of(ask("mine", "POST", path(name, verb)), 403, "forbidden")
        listed = body_of(ask("mine", "GET", "/v0/schedules"))["schedules"]
        assert [one["schedule"] for one in listed] == ["my.s"]


def test_both_clients_make_every_call(client: Client, topic: str) -> None:
    name, url = fresh_name("client"), client.daemon.url
    with TopicsClient(url) as sync:
        made = sync.create_schedule(name, topic, {"a": 1}, cron="0 3 * * *", time_zone="Europe/Berlin", tag="x")
        assert (made.schedule, made.record, made.paused) == (name, {"data": {"a": 1}, "tag": "x"}, False)
        assert sync.schedule(name) == made
        assert [one.schedule for one in sync.all_schedules(prefix=name)] == [name]
        assert sync.run_schedule(name).seq == 1
        assert sync.pause_schedule(name).paused
        assert not sync.resume_schedule(name).paused
        assert sync.delete_schedule(name).deleted

    async def same() -> None:
        async with AsyncClient(url) as asynchronous:
            made = await asynchronous.create_schedule(name, topic, 1, every_ms=10_000, catch_up="all", paused=True)
            assert (made.every_ms, made.catch_up, made.paused, made.next_ts) == (10_000, "all", True, None)
            assert [one.schedule async for one in asynchronous.all_schedules(prefix=name)] == [name]
            assert (await asynchronous.delete_schedule(name)).deleted

    anyio.run(same, backend="trio")


def test_the_audit_log_has_no_record(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    with running(tmp_path, audit_log=log) as client:
        put(client, "s", record={"data": "secret"}, catch_up="all")
        body_of(client.post(path("s", "pause")))
        body_of(client.delete(path("s")))
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["call"], one["schedule"]) for one in entries] == [
        ("put_schedule", "s"), ("pause_schedule", "s"), ("delete_schedule", "s"),
    ]  # fmt: skip
    assert entries[0]["body"] == {"topic": "none", "every_ms": 86_400_000, "catch_up": "all"}
    assert "secret" not in log.read_text()


@pytest.mark.slow
def test_kills_at_random_moments_lose_no_firing_and_repeat_none(tmp_path: Path) -> None:
    rng = random.Random(7)
    every = {"a": 100, "b": 130, "c": 170}
    created: dict[str, int] = {}
    for _ in range(12):
        with running(tmp_path, wal_shards=3) as client:  # killed at its end
            for name, every_ms in every.items():
                state = put(client, name, topic=f"t-{name}", every_ms=every_ms, catch_up="all")
                assert created.setdefault(name, state["created_ts"]) == state["created_ts"]
            time.sleep(rng.uniform(0.05, 0.9))  # the moment of the kill
    with running(tmp_path, wal_shards=3) as client:
        for name, every_ms in every.items():
            last = body_of(client.post(path(name, "pause")))["last_ts"]
            wanted = list(range(created[name] + every_ms, last + 1, every_ms))
            assert len(wanted) > 10
            assert times_of(client, f"t-{name}") == wanted
