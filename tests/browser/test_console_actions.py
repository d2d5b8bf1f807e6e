"""What the console does: every action, seen from the daemon's side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.chromium import Browser
from tests.browser.console_page import Console, console
from tests.conformance.client import Client, fresh_name, running, until


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("daemon")) as client:
        yield client


@pytest.fixture(scope="module")
def shown(browser: Browser, client: Client) -> Iterator[Console]:
    with console(browser, client.daemon.url) as shown:
        shown.page.set_width(1280)
        yield shown


def queue_of(client: Client, topic: str) -> Any:
    return client.state(topic)["queue"]


def test_a_topic_is_created_configured_and_deleted(shown: Console, client: Client, topic: str) -> None:
    shown.go("topics")
    shown.press("Create a topic")
    assert shown.violations() == []
    shown.fill("Name", "-bad")
    shown.press("Create")
    shown.until("document.querySelector('dialog [role=alert]')")
    shown.fill("Name", topic)
    shown.fill("Durability", "fsync")
    shown.fill("Most records", "1000")
    shown.press("Create")
    shown.until(f"location.hash === '#/topics/{topic}'")
    config = client.state(topic)["config"]
    assert (config["durability"], config["cap_records"], config["type"]) == ("fsync", 1000, "log")
    shown.go("topics", topic, "config")
    shown.fill("Lifetime (ms)", "long")
    shown.press("Save")
    shown.until("document.querySelector('[role=alert]') || document.querySelector('.help.wrong')")
    shown.fill("Lifetime (ms)", "5000")
    shown.fill("Schema", '{"type": "object"}')
    shown.press("Save")
    shown.until_said("Saved.")
    config = client.state(topic)["config"]
    assert (config["ttl_ms"], config["schema"], config["cap_records"]) == (5000, {"type": "object"}, 1000)
    shown.press("Delete")
    assert not shown.page.value_of("button('Delete the topic')"), "the name must be typed first"
    shown.fill("Type", topic)
    shown.press("Delete the topic")
    shown.until_closed()
    assert client.get(f"/v0/topics/{topic}").status_code == 404
    assert shown.page.value_of("location.hash") == "#/topics"


def test_a_record_is_appended_byte_for_byte(shown: Console, client: Client, topic: str) -> None:
    client.put_topic(topic)
    shown.go("topics", topic, "append")
    shown.fill("Data", '{"n": 12345678901234567890.10, "a":  [1,2]}')
    shown.fill("Tag", "eu")
    shown.fill("Meta", '{"trace": "x"}')
    shown.press("Append")
    shown.until_said("Appended as seq 1.")
    assert '"data":{"n": 12345678901234567890.10, "a":  [1,2]}' in client.get(f"/v0/topics/{topic}/records/1").text
    assert client.get(f"/v0/topics/{topic}/records/1").json()["$tag"] == "eu"
    assert "curl" in shown.page.value_of("document.querySelector('.command code').textContent")
    shown.fill("Data", "{")
    shown.until("document.querySelector('.help.wrong')")
    assert not shown.page.value_of("button('Append')")


def test_records_are_counted_and_then_deleted(shown: Console, client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": i, "tag": "a" if i % 3 else "b"} for i in range(30)])
    shown.go("topics", topic, "delete")
    shown.fill("Tag", "b")
    shown.fill("Seq below", "20")
    shown.press("Count them")
    shown.until_said("7 records would be deleted.")
    assert client.state(topic)["count"] == 30
    shown.press("Delete 7")
    shown.press("Delete 7 records")
    shown.until_said("7 records deleted.")
    assert client.state(topic)["count"] == 23


@pytest.fixture
def jobs(client: Client) -> str:
    """A queue with ten jobs, three of them leased, and dead letters."""
    name = fresh_name("jobs")
    client.put_topic(name, type="queue", dead_letter=f"{name}.dead", max_deliveries=9)
    client.append(name, records=[{"data": {"n": i}, "tag": "odd" if i % 2 else "even"} for i in range(12)])
    claimed = client.post(f"/v0/topics/{name}/claim", json={"node": "w", "max": 5, "lease_ms": 600_000}).json()
    seqs = [job["$seq"] for job in claimed["claimed"]]
    client.post(f"/v0/topics/{name}/nack", json={"node": "w", "seqs": seqs[:2], "dead": True, "error": "no"})
    # A redrive leaves letters whose move to the dead letters has not ended: until then their jobs count as delayed.
    until(lambda: (queue_of(client, name)["in_flight"], queue_of(client, name)["delayed"]) == (3, 0))
    return name


def test_a_queue_is_paused_limited_and_resumed(shown: Console, client: Client, jobs: str) -> None:
    shown.go("queues", jobs)
    shown.press("Pause")
    shown.until("document.querySelector('dialog')")
    shown.page.value_of("document.querySelector('dialog footer button.primary').click()")
    shown.until_said("Paused: no job is given out.")
    assert queue_of(client, jobs)["paused"]
    shown.press("Limits")
    shown.fill("Most in flight", "7")
    shown.fill("Rate", '{"jobs": 5, "per_ms": 1000}')
    shown.press("Save")
    shown.until_closed()
    config = client.state(jobs)["config"]
    assert (config["max_in_flight"], config["rate"]) == (7, {"jobs": 5, "per_ms": 1000})
    shown.press("Resume")
    shown.until("document.querySelector('dialog')")
    shown.page.value_of("document.querySelector('dialog footer button.primary').click()")
    shown.until_closed()
    assert not queue_of(client, jobs)["paused"]


def choose(shown: Console, seq: int) -> None:
    shown.until(f"document.querySelector('[aria-label=\"Choose job {seq}\"]')")
    shown.page.value_of(f"document.querySelector('[aria-label=\"Choose job {seq}\"]').click()")


def test_jobs_are_given_back_and_cancelled(shown: Console, client: Client, jobs: str) -> None:
    shown.go("queues", jobs)
    shown.fill("State", "in_flight")
    shown.until("rows('Jobs').length === 3 && rows('Jobs')[0][1] === 'in flight'")
    choose(shown, 4)
    shown.press("Give back")
    shown.page.value_of("document.querySelector('dialog footer button:last-child').click()")
    shown.until_said("1 job done, 0 skipped.")
    assert queue_of(client, jobs)["in_flight"] == 2
    shown.fill("State", "ready")
    shown.until("rows('Jobs').length === 8 && rows('Jobs')[0][1] === 'ready'")
    shown.fill("Filter", 'tag = "odd"')
    shown.press("Show")
    shown.until("rows('Jobs').length === 5")
    shown.press("Cancel")
    shown.press("Cancel the jobs")
    shown.until_said("5 jobs done, 0 skipped.")
    assert queue_of(client, jobs)["ready"] == 3


def test_delayed_jobs_are_retried(shown: Console, client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.append(topic, records=[{"data": 1, "delay_ms": 3_600_000}])
    shown.go("queues", topic)
    shown.fill("State", "delayed")
    choose(shown, 1)
    shown.press("Retry")
    shown.page.value_of("document.querySelector('dialog footer button:last-child').click()")
    shown.until_said("1 job done, 0 skipped.")
    assert queue_of(client, topic)["ready"] == 1


def test_dead_letters_are_redriven_with_progress(shown: Console, client: Client, jobs: str) -> None:
    shown.go("queues", jobs)
    shown.press("Redrive…")
    assert shown.page.value_of("field('Filter').value") == f'meta."$dead_letter_from" = "{jobs}"'
    shown.press("Move them back")
    shown.until("figure('Redrive') === 'done' && figure('Moved') === '2'")
    assert client.state(f"{jobs}.dead")["count"] == 0
    assert queue_of(client, jobs)["ready"] == 9


def test_a_group_is_created_and_deleted(shown: Console, client: Client, topic: str) -> None:
    client.append(topic, 1)
    shown.go("queues", topic)
    shown.press("Create a group")
    shown.fill("Name", "billing")
    shown.fill("Begins", "earliest")
    shown.press("Create")
    shown.until("rows('Groups').length === 1")
    assert client.get(f"/v0/topics/{topic}/groups/billing").json()["lag"] == 1
    shown.go("queues", topic, "billing")
    shown.press("Delete")
    shown.fill("Type", "billing")
    shown.press("Delete the group")
    shown.until_closed()
    assert client.get(f"/v0/topics/{topic}/groups/billing").status_code == 404


def test_a_consumer_is_moved_and_deleted(shown: Console, client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    client.put(f"/v0/topics/{topic}/consumers/c", json={"from": "earliest"})
    shown.go("consumers", topic, "c")
    shown.until("figure('Lag') === '10'")
    shown.press("Seek…")
    shown.fill("Seq", "7")
    shown.press("Move the consumer")
    shown.until("figure('Lag') === '3'")
    assert client.get(f"/v0/topics/{topic}/consumers/c").json()["committed_seq"] == 7
    shown.press("Delete")
    shown.fill("Type", "c")
    shown.press("Delete the consumer")
    shown.until_closed()
    assert client.get(f"/v0/topics/{topic}/consumers/c").status_code == 404


def test_a_router_is_created_and_deleted(shown: Console, client: Client, topic: str) -> None:
    client.put_topic(topic)
    shown.go("routers")
    shown.press("Create a router")
    shown.fill("From", topic)
    shown.fill("To", f"{topic}.copy")
    shown.fill("Filter", 'tag ~ "eu:*"')
    shown.press("Create")
    shown.until_closed()
    name = f"{topic}>{topic}.copy"
    assert client.get(f"/v0/routers/{name}").json()["filter"] == ["tag", "Glob", "eu:*"]
    shown.go("routers", name)
    shown.press("Delete")
    shown.fill("Type", name)
    shown.press("Delete the router")
    shown.until_closed()
    assert client.get(f"/v0/routers/{name}").status_code == 404
