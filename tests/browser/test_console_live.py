"""The console without reloads: live records, a hidden tab, a daemon that goes away, very many topics and records."""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.chromium import Browser, Page
from tests.browser.console_page import Console, console
from tests.browser.wire import wire_to
from tests.conformance.client import Client, running, until

MANY = 100_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("daemon")) as client:
        yield client


@pytest.fixture(scope="module")
def shown(browser: Browser, client: Client) -> Iterator[Console]:
    with console(browser, client.daemon.url) as shown:
        shown.page.set_width(1280)
        yield shown


def streams(client: Client) -> int:
    return int(client.get("/v0/figures").json()["connections"]["streams"])


def test_records_come_while_nobody_does_anything(shown: Console, client: Client, topic: str) -> None:
    client.append(topic, "first")
    shown.go("topics", topic)
    shown.until("rows('Records').length === 1")
    until(lambda: streams(client) == 1)
    client.append(topic, "second")
    shown.until("rows('Records')[0][0] === '2'")
    shown.press("Pause")
    shown.until_said("paused")
    until(lambda: streams(client) == 0)
    client.append(topic, "third")
    shown.until_said("1 newer seq")
    assert len(shown.rows("Records")) == 2
    shown.press("Go on")
    shown.until("rows('Records').length === 3")
    assert [row[4] for row in shown.rows("Records")] == ['"third"', '"second"', '"first"']


def test_looking_raises_no_priority(shown: Console, client: Client, topic: str) -> None:
    client.append(topic, 1)
    shown.go("topics", topic)
    shown.until("rows('Records').length === 1")
    client.append(topic, 2)
    shown.until("rows('Records').length === 2")
    assert client.state(topic, touch=False)["last_read_ts"] is None


def test_a_hidden_tab_asks_for_nothing_and_catches_up(shown: Console, client: Client, topic: str) -> None:
    client.append(topic, 1)
    shown.go("topics", topic)
    shown.until("rows('Records').length === 1")
    until(lambda: streams(client) == 1)
    shown.page.hide(hidden=True)
    until(lambda: streams(client) == 0)
    time.sleep(0.3)  # what was on its way has come
    asked = len(shown.page.requests)
    client.append(topic, *range(400))
    time.sleep(2.5)  # longer than the interval of every poll of the view
    assert shown.page.value_of("null") is None
    assert len(shown.page.requests) == asked
    shown.page.hide(hidden=False)
    shown.until("rows('Records')[0]?.[0] === '401'")
    assert [int(row[0]) for row in shown.rows("Records")[:5]] == [401, 400, 399, 398, 397], "no gap is hidden"


def test_older_records_come_when_somebody_scrolls(shown: Console, client: Client, topic: str) -> None:
    client.append(topic, *range(2000))
    shown.go("topics", topic)
    shown.until("rows('Records').length > 10")
    list_of = "document.querySelector('[aria-label=\"Table: Records\"]')"
    shown.until(f"({list_of}.scrollTop = {list_of}.scrollHeight, rows('Records').at(-1)[0] === '1')", within_s=40)
    assert len(shown.rows("Records")) < 100, "only those in view are in the document"
    shown.until_said("held while you read")
    client.append(topic, "newer")
    shown.until_said("1 newer seq")
    shown.page.value_of(f"{list_of}.scrollTop = 0")
    shown.until("rows('Records')[0][0] === '2,001'")


def test_too_many_records_are_shown_as_samples(shown: Console, client: Client, topic: str) -> None:
    client.append(topic, 0)
    shown.go("topics", topic)
    shown.until("rows('Records').length === 1")
    until(lambda: streams(client) == 1)
    deadline = time.monotonic() + 20
    while not shown.page.value_of("has('too many to show')"):
        assert time.monotonic() < deadline
        client.append(topic, *range(300))
    assert streams(client) == 0, "the stream is closed meanwhile"
    shown.until("has('live') && !has('samples')")
    head = client.state(topic)["head_seq"]
    shown.until(f"rows('Records')[0][0].replaceAll(',', '') === '{head}'")


def test_a_daemon_that_is_away_shows_and_comes_back_without_a_reload(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as client, wire_to(lambda: client.daemon.port) as wire:
        client.append("orders", 1)
        with console(browser, wire.origin, "topics", "orders") as shown:
            shown.until("rows('Records').length === 1")
            shown.page.value_of("globalThis.marker = 'not reloaded'")
            wire.refuse()
            assert client.daemon.end(signal.SIGTERM) == 0
            shown.until_said("The daemon does not answer.")
            assert shown.page.value_of("document.querySelector('[role=status] .bad') !== null")
            assert len(shown.rows("Records")) == 1, "what was known stays"
            client.daemon.start().close()
            wire.restore()
            shown.until("!has('The daemon does not answer.')")
            client.post(f"{client.daemon.url}/v0/topics/orders", json={"records": [{"data": 2}]}).raise_for_status()
            shown.until("rows('Records')[0][0] === '2'")
            assert shown.page.value_of("marker") == "not reloaded"


# -- very many topics --------------------------------------------------------------------------------------------------


@contextmanager
def many_topics(page: Page) -> Iterator[None]:
    """The list of topics of a daemon that has 100,000, answered page by page as the daemon does."""

    def answer(url: str) -> Any:
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        first, size = int(query.get("cursor", 0)), int(query["page_size"])
        topics = [
            {"topic": f"t-{i:06}", "type": "log", "epoch": i, "head_seq": 10_000_000 + i, "earliest_seq": 1}
            | {"count": 10_000_000, "bytes": 1_234_567_890, "durability": "disk", "durable": False}
            | {"effective_priority": 0}
            for i in range(first, min(first + size, MANY))
        ]
        more = {"next_cursor": str(first + size)} if first + size < MANY else {}
        return {"topics": topics, **more, "performance": {"server_total_ms": 1.0}}

    with page.answering("*/v0/topics?*", lambda url: base64.b64encode(json.dumps(answer(url)).encode()).decode()):
        yield


def test_a_hundred_thousand_topics_are_smooth(browser: Browser, client: Client) -> None:
    with console(browser, client.daemon.url) as shown, many_topics(shown.page):
        shown.page.set_width(1280)
        shown.go("topics")
        shown.until("rows('Topics').length > 10")
        asked = [url for url in shown.page.requests if "/v0/topics?" in url]
        assert len(asked) <= 2, "no more is asked for than is shown"
        list_of = "document.querySelector('[aria-label=\"Table: Topics\"]')"
        # The end moves whenever a page has come.
        shown.until(f"({list_of}.scrollTop = {list_of}.scrollHeight, rows('Topics').at(-1)[0] > 't-001000')")
        assert shown.page.value_of("document.querySelectorAll('tbody tr').length") < 120
        assert shown.rows("Topics")[-1][3] == "10,000,000"
        assert shown.rows("Topics")[-1][4] == "1.2 GB"
        assert shown.overflow() <= 0
        shown.until_said("first ")
