"""A browser's own WebSocket, and a page that uses it as pages do.

The page's script reconnects, subscribes from the last seq that it has seen and sends again, under the same key, what
was not acknowledged. With that alone it must miss nothing, see nothing twice and publish nothing twice.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser.chromium import Browser, Page
from tests.browser.wire import Wire, wire_to
from tests.browser.writing import stored, writing
from tests.conformance.client import Client, data_of, fresh_name, running, until

TEXTS = ["grün, 木, 🪵🔥, 👩‍👩‍👧", "\u2028\u2029\u0085\ufeff", "two\r\nlines", "\\ud83e", '"', ""]
GOING_AWAY = 1001
POLICY = 1008
TOO_BIG = 1009


@contextmanager
def connected(browser: Browser, wire: Wire, *topics: str) -> Iterator[Page]:
    """A page at the near end of the wire that has subscribed to the topics from their first record."""
    with browser.page(wire.origin, "websocket.html") as page:
        page.result_of("connect", dict.fromkeys(topics, 0))
        page.until("closes.length || " + ("has('subscribed')" if topics else "opened"))
        assert page.value_of("closes") == []
        yield page


def messages_of(page: Page, *ops: str) -> list[Any]:
    return [message for message in page.value_of("received") if message["op"] in ops]


def records_of(page: Page, topic: str) -> list[tuple[int, Any]]:
    """Seq and data of every record of a topic that arrived, in the order in which they did."""
    return [(record["$seq"], record["data"]) for record in page.result_of("records", topic)]


def wait_for_heads(page: Page, client: Client, *topics: str) -> None:
    """Wait until as much has arrived as there is; nothing is appended any more."""
    for topic in topics:
        head = client.get(f"{client.daemon.url}/v0/topics/{topic}").json()["head_seq"]
        page.until(f"records('{topic}').length >= {head}")


def test_a_page_publishes_and_receives_its_own_records_and_those_of_others(
    browser: Browser, wire: Wire, client: Client, topic: str
) -> None:
    client.append(topic, "there before")
    with connected(browser, wire, topic) as page:
        assert messages_of(page, "subscribed") == [
            {
                "op": "subscribed",
                "request_id": "subscribe",
                "topics": {topic: {"from_seq": 0, "head_seq": 1, "earliest_seq": 1}},
            }
        ]
        ack = page.result_of("publish", topic, "by the page", {"and": "more"})
        assert (ack["first_seq"], ack["last_seq"], ack["seqs"], ack["count"]) == (2, 3, [2, 3], 2)
        assert (ack["op"], ack["topic"], ack["head_seq"], ack["deduped"]) == ("ack", topic, 3, False)
        client.append(topic, "by another")
        page.until(f"records('{topic}').length >= 4")
        assert records_of(page, topic) == [
            (1, "there before"),
            (2, "by the page"),
            (3, {"and": "more"}),
            (4, "by another"),
        ]
        assert messages_of(page, "caught_up")[0] == {"op": "caught_up", "topic": topic, "head_seq": 1}
        assert messages_of(page, "error") == []


def test_text_comes_back_as_the_page_wrote_it(browser: Browser, wire: Wire, client: Client, topic: str) -> None:
    client.put_topic(topic)
    with connected(browser, wire, topic) as page:
        page.result_of("publish", topic, *TEXTS, TEXTS, dict.fromkeys(TEXTS, 1))
        expected = [*TEXTS, TEXTS, dict.fromkeys(TEXTS, 1)]
        wait_for_heads(page, client, topic)
        assert [data for _, data in records_of(page, topic)] == expected
        assert data_of(client.read(topic)) == expected


def test_cut_off_again_and_again_nothing_is_missed_repeated_or_published_twice(
    browser: Browser, wire: Wire, client: Client
) -> None:
    rng = random.Random(3)
    topics = [fresh_name("socket") for _ in range(3)]
    for topic in topics:
        client.put_topic(topic)
    with connected(browser, wire, *topics) as page:
        with writing(client, *topics, seed=3):
            page.value_of(f"void (publisher = keepPublishing('{topics[0]}'))")
            for how in ["now", "within a message"] * 3:
                closes = page.value_of("closes.length")
                page.until(f"opened > {closes} && has('subscribed', {closes + 1})")
                time.sleep(rng.uniform(0, 0.3))
                if how == "now":
                    wire.cut()
                else:
                    wire.cut_after(rng.randrange(1, 3000))
                page.until(f"closes.length > {closes}")
            page.value_of("stopPublishing()")
            published = page.value_of("publisher")
        wait_for_heads(page, client, *topics)
        for topic in topics:
            assert records_of(page, topic) == stored(client, topic)
        by_the_page = [data["page"] for _, data in stored(client, topics[0]) if "page" in data]
        assert by_the_page == list(range(published))
        assert page.value_of("acks.length") == published
        assert messages_of(page, "error") == []
        # Nobody said goodbye.
        assert {(close["code"], close["wasClean"]) for close in page.value_of("closes")} == {(1006, False)}


def test_a_page_goes_on_after_the_death_of_the_daemon(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as client, wire_to(lambda: client.daemon.port) as wire:
        topic = fresh_name()
        client.put_topic(topic, durability="disk")
        with connected(browser, wire, topic) as page:
            with writing(client, topic):
                page.value_of(f"void (publisher = keepPublishing('{topic}'))")
                page.until(f"records('{topic}').length >= 50")
                client.daemon.restart(signal.SIGKILL).close()
                page.until("has('subscribed', 2)")
                seen = page.value_of(f"records('{topic}').length")
                page.until(f"records('{topic}').length > {seen + 50}")
                page.value_of("stopPublishing()")
                published = page.value_of("publisher")
            wait_for_heads(page, client, topic)
            assert records_of(page, topic) == stored(client, topic)
            assert [data["page"] for _, data in stored(client, topic) if "page" in data] == list(range(published))


def test_a_daemon_that_stops_says_goodbye(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as client, wire_to(lambda: client.daemon.port) as wire:
        client.append("t", 1)
        with connected(browser, wire, "t") as page:
            page.until("has('caught_up')")
            page.value_of("reconnects = false")
            assert client.daemon.end(signal.SIGTERM) == 0
            page.until("closes.length === 1")
            (close,) = page.value_of("closes")
            assert (close["code"], close["wasClean"]) == (GOING_AWAY, True)
        client.daemon.start().close()


def test_a_message_that_is_too_large_closes_the_socket(browser: Browser, tmp_path: Path) -> None:
    with (
        running(tmp_path, max_body_bytes=100_000) as client,
        wire_to(lambda: client.daemon.port) as wire,
        connected(browser, wire) as page,
    ):
        page.value_of("reconnects = false")
        page.value_of("void socket.send(' '.repeat(200000))")
        page.until("closes.length === 1")
        (close,) = page.value_of("closes")
        assert close["code"] in {POLICY, TOO_BIG}
        assert close["wasClean"]


def test_a_binary_or_malformed_message_is_told_and_the_socket_stays(browser: Browser, wire: Wire) -> None:
    with connected(browser, wire) as page:
        page.value_of("void socket.send(new Uint8Array([1, 2, 3]))")
        page.until("has('error', 1)")
        page.value_of("void socket.send('{')")
        page.until("has('error', 2)")
        assert [message["code"] for message in messages_of(page, "error")] == ["invalid_request"] * 2
        page.value_of("void send({op: 'ping', request_id: 'still here'})")
        page.until("has('pong')")
        assert messages_of(page, "pong") == [{"op": "pong", "request_id": "still here"}]
        assert page.value_of("closes") == []


def test_gaps_and_deletions_are_told(browser: Browser, wire: Wire, client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 11))
    with connected(browser, wire, topic) as page:
        page.until("has('caught_up')")
        assert messages_of(page, "tombstone") == [
            {
                "op": "tombstone",
                "topic": topic,
                "reason": "from_seq_too_old",
                "gap_from": 1,
                "gap_to": 7,
                "earliest_seq": 8,
                "head_seq": 10,
            }
        ]
        assert records_of(page, topic) == [(8, 8), (9, 9), (10, 10)]
        client.delete_topic(topic)
        page.until("has('topic_deleted')")
        assert messages_of(page, "topic_deleted") == [
            {"op": "topic_deleted", "topic": topic, "head_seq": 10, "reason": "deleted"}
        ]
        assert page.value_of("socket.readyState === WebSocket.OPEN"), "the socket is for other topics too"


def test_a_page_that_is_closed_frees_its_connection(browser: Browser, wire: Wire, client: Client, topic: str) -> None:
    def connections() -> Any:
        return client.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_ws_connections"]

    client.put_topic(topic)
    with connected(browser, wire, topic):
        assert connections() == 1
    until(lambda: connections() == 0)
