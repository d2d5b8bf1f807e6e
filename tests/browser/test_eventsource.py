"""A browser's own EventSource: what it receives, and what becomes of it when the wire or the daemon goes.

The page only listens. To come back after `retry: 2000` ms with `Last-Event-ID` is the browser's part, to go on from
there without a gap and without a repetition is the daemon's, and nothing here sorts or drops what arrives. The moments
of the cuts come from a seed; what is on its way at such a moment does not.
"""

from __future__ import annotations

import base64
import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.chromium import Browser, Page
from tests.browser.wire import Wire, wire_to
from tests.browser.writing import stored, writing
from tests.conformance.client import Client, body_of, fresh_name, running, until

RETRY_S = 2.0
TEXTS = ["grün, 木, 🪵🔥, 👩‍👩‍👧", "\u2028\u2029\u0085\ufeff", "two\r\nlines", "\\ud83e", '"', ""]


@dataclass(frozen=True)
class Frame:
    event: str
    id: str
    data: Any

    @property
    def cursors(self) -> dict[str, int]:
        """The position of every topic that its id stands for."""
        cursors: dict[str, int] = json.loads(base64.urlsafe_b64decode(self.id + "=" * (-len(self.id) % 4)))
        return cursors


def frames_of(page: Page, *events: str) -> list[Frame]:
    frames = [Frame(frame["event"], frame["id"], json.loads(frame["data"])) for frame in page.value_of("received")]
    return [frame for frame in frames if not events or frame.event in events]


def records_of(page: Page, topic: str) -> list[tuple[int, Any]]:
    """Seq and data of every record of a topic that arrived, in the order in which they did."""
    return [
        (record["$seq"], record["data"])
        for frame in frames_of(page, "record")
        if frame.data["topic"] == topic
        for record in frame.data["records"]
    ]


@contextmanager
def listening(browser: Browser, wire: Wire, url: str) -> Iterator[Page]:
    """A page at the near end of the wire with an EventSource that is open."""
    with browser.page(wire.origin, "eventsource.html") as page:
        page.result_of("listen", url)
        page.until("source.readyState === EventSource.OPEN")
        yield page


def stream_of(topic: str, query: str = "from_seq=0") -> str:
    return f"/v0/topics/{topic}/stream?{query}"


def watch(client: Client, *topics: str) -> str:
    """The path of a new session that begins at the first record of each."""
    answer = body_of(client.post("/v0/watch", json={"topics": {topic: {} for topic in topics}}))
    return str(answer["stream_url"])


def cut_often(page: Page, wire: Wire, seed: int) -> None:
    """Cut the stream off now, in the middle of what it carries, and at the beginning of the next one."""
    rng = random.Random(seed)
    for places in [["now"], ["within a frame"], ["now", "at its beginning"], ["within a frame"]]:
        page.until("source.readyState === EventSource.OPEN")
        records = page.value_of("recordsReceived()")
        page.until(f"recordsReceived() > {records}")
        time.sleep(rng.uniform(0, 0.3))
        interruptions = page.value_of("interruptions.length")
        for place in places:
            if place == "now":
                wire.cut()
            else:
                wire.cut_after(rng.randrange(1, 3000 if place == "within a frame" else 400))
        page.until(f"interruptions.length >= {interruptions + len(places)}")
        assert wire.is_cut
    page.until("source.readyState === EventSource.OPEN")


def wait_for_heads(page: Page, client: Client, *topics: str) -> None:
    """Wait until as much has arrived as there is; nothing is appended any more."""
    heads = [client.get(f"{client.daemon.url}/v0/topics/{topic}").json()["head_seq"] for topic in topics]
    page.until(f"recordsReceived() >= {sum(heads)}")


def each_frame_begins_where_the_last_one_ended(page: Page, *topics: str) -> bool:
    cursors = dict.fromkeys(topics, 0)
    for frame in frames_of(page, "record"):
        topic = frame.data["topic"]
        assert frame.data["from_seq"] == cursors[topic], frame
        assert all(frame.data["from_seq"] < record["$seq"] <= frame.data["to_seq"] for record in frame.data["records"])
        cursors[topic] = frame.data["to_seq"]
        assert frame.cursors == cursors, "an id says where every topic is after its frame"
    return True


# What arrives


def test_records_arrive_those_that_are_there_and_those_that_come(
    browser: Browser, wire: Wire, client: Client, topic: str
) -> None:
    client.append(topic, 1, 2)
    with listening(browser, wire, stream_of(topic)) as page:
        page.until("has('caught-up')")
        assert records_of(page, topic) == [(1, 1), (2, 2)]
        client.append(topic, {"three": 3})
        client.append(topic, 4, 5)
        page.until("recordsReceived() >= 5")
        assert records_of(page, topic) == [(1, 1), (2, 2), (3, {"three": 3}), (4, 4), (5, 5)]
        assert each_frame_begins_where_the_last_one_ended(page, topic)
        assert frames_of(page, "caught-up")[0].data == {"topic": topic, "head_seq": 2}
        assert {frame.event for frame in frames_of(page)} == {"record", "caught-up"}
        assert page.value_of("[opened, interruptions.length]") == [1, 0]


def test_text_arrives_as_it_was_written(browser: Browser, wire: Wire, client: Client, topic: str) -> None:
    client.put_topic(topic)
    with listening(browser, wire, stream_of(topic)) as page:
        client.append(topic, *TEXTS)
        # As Python escapes it, and as it is.
        client.append_raw(topic, json.dumps(TEXTS, ensure_ascii=False).encode())
        page.until(f"recordsReceived() >= {len(TEXTS) + 1}")
        assert [data for _, data in records_of(page, topic)] == [*TEXTS, TEXTS]


def test_what_is_gone_is_told_by_a_tombstone(browser: Browser, wire: Wire, client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 11))
    with listening(browser, wire, stream_of(topic)) as page:
        page.until("has('caught-up')")
        first, *others = frames_of(page)
        expected = {"reason": "from_seq_too_old", "gap_from": 1, "gap_to": 7, "earliest_seq": 8, "head_seq": 10}
        assert (first.event, first.data) == ("tombstone", {"topic": topic} | expected)
        assert first.cursors == {topic: 7}
        assert {frame.event for frame in others} == {"record", "caught-up"}
        assert records_of(page, topic) == [(8, 8), (9, 9), (10, 10)]


def test_a_stream_of_a_deleted_topic_ends_for_good(browser: Browser, wire: Wire, client: Client, topic: str) -> None:
    client.append(topic, 1)
    with listening(browser, wire, stream_of(topic)) as page:
        page.until("has('caught-up')")
        client.delete_topic(topic)
        page.until("has('topic-deleted')")
        assert frames_of(page)[-1].data == {"topic": topic, "head_seq": 1, "reason": "deleted"}
        # It comes back once, is told 404, and gives up.
        page.until("source.readyState === EventSource.CLOSED", within_s=RETRY_S + 10)
        assert page.value_of("interruptions") == [0, 2], "connecting again, then closed"
        connections = wire.connections_made
        client.append(topic, "of another topic with this name")
        time.sleep(RETRY_S + 1)
        assert wire.connections_made == connections
        assert frames_of(page)[-1].event == "topic-deleted"


def test_a_topic_that_is_not_there_closes_it_at_once(browser: Browser, wire: Wire, topic: str) -> None:
    with browser.page(wire.origin, "eventsource.html") as page:
        page.result_of("listen", stream_of(topic))
        page.until("source.readyState === EventSource.CLOSED")
        assert page.value_of("[opened, received.length]") == [0, 0]


# What is missed: nothing


def test_cut_off_again_and_again_every_record_arrives_once(
    browser: Browser, wire: Wire, client: Client, topic: str
) -> None:
    client.put_topic(topic)
    with listening(browser, wire, stream_of(topic)) as page:
        with writing(client, topic):
            cut_often(page, wire, seed=1)
        wait_for_heads(page, client, topic)
        assert records_of(page, topic) == stored(client, topic)
        assert each_frame_begins_where_the_last_one_ended(page, topic)
        # Five cuts, one of them at a beginning that may or may not have come as far as to be open.
        assert page.value_of("interruptions") == [0] * 5
        assert page.value_of("opened") in {5, 6}


def test_a_session_of_three_topics_cut_off_again_and_again(browser: Browser, wire: Wire, client: Client) -> None:
    topics = [fresh_name("watched") for _ in range(3)]
    for topic in topics:
        client.put_topic(topic)
    with listening(browser, wire, watch(client, *topics)) as page:
        with writing(client, *topics, seed=2):
            cut_often(page, wire, seed=2)
        wait_for_heads(page, client, *topics)
        for topic in topics:
            assert records_of(page, topic) == stored(client, topic)
        assert each_frame_begins_where_the_last_one_ended(page, *topics)
        assert page.value_of("interruptions") == [0] * 5


def test_a_stream_from_the_tail_resumes_where_it_was_and_not_at_the_tail(
    browser: Browser, wire: Wire, client: Client, topic: str
) -> None:
    client.append(topic, "before")
    with listening(browser, wire, stream_of(topic, "tail=true")) as page:
        page.until("has('caught-up')")
        wire.cut()
        page.until("interruptions.length >= 1")
        client.append(topic, "while it was away")
        page.until("recordsReceived() >= 1")
        assert records_of(page, topic) == [(2, "while it was away")]


# What becomes of it when the daemon goes


def test_a_stream_survives_the_death_of_the_daemon(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as client, wire_to(lambda: client.daemon.port) as wire:
        topic = fresh_name()
        client.put_topic(topic, durability="disk")
        with listening(browser, wire, stream_of(topic)) as page:
            with writing(client, topic):
                page.until("recordsReceived() >= 50")
                # A daemon that is not ready yet would answer 503, at which an EventSource gives up: the wire stands for
                # what keeps clients away until it is.
                wire.refuse()
                client.daemon.restart(signal.SIGKILL).close()
                wire.restore()
                records = page.value_of("recordsReceived()")
                page.until(f"opened === 2 && recordsReceived() > {records + 50}")
            wait_for_heads(page, client, topic)
            assert records_of(page, topic) == stored(client, topic)
            assert each_frame_begins_where_the_last_one_ended(page, topic)


def test_a_daemon_that_stops_says_so_and_the_stream_goes_on_in_its_next_life(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as client, wire_to(lambda: client.daemon.port) as wire:
        topic = fresh_name()
        client.append(topic, 1)
        with listening(browser, wire, stream_of(topic)) as page:
            page.until("has('caught-up')")
            assert client.daemon.end(signal.SIGTERM) == 0
            page.until("has('error')")
            assert frames_of(page)[-1].data["code"] == 503
            wire.refuse()
            client.daemon.start().close()
            wire.restore()
            client.post(f"{client.daemon.url}/v0/topics/{topic}", json={"records": [{"data": 2}]}).raise_for_status()
            page.until("recordsReceived() >= 2")
            assert records_of(page, topic) == [(1, 1), (2, 2)]


def test_a_session_does_not_survive_the_daemon_and_the_page_is_told(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as client, wire_to(lambda: client.daemon.port) as wire:
        topic = fresh_name()
        client.append(topic, 1)
        with listening(browser, wire, watch(client, topic)) as page:
            page.until("has('caught-up')")
            wire.refuse()
            client.daemon.restart(signal.SIGKILL).close()
            wire.restore()
            page.until("source.readyState === EventSource.CLOSED")
            assert page.value_of("interruptions.at(-1)") == 2


# Whose it is


def test_a_second_page_takes_a_session_over(browser: Browser, wire: Wire, client: Client, topic: str) -> None:
    client.append(topic, 1)
    session = watch(client, topic)
    with listening(browser, wire, session) as first:
        first.until("has('caught-up')")
        first.value_of("stopAtErrors()")
        with listening(browser, wire, session) as second:
            first.until("has('error')")
            assert frames_of(first)[-1].data["code"] == 409
            assert first.value_of("source.readyState === EventSource.CLOSED")
            client.append(topic, 2)
            second.until("recordsReceived() >= 1")
            assert records_of(second, topic) == [(2, 2)]
            assert records_of(first, topic) == [(1, 1)]


@pytest.mark.parametrize("kind", ["stream", "session"])
def test_a_page_that_is_closed_frees_its_connection(
    browser: Browser, wire: Wire, client: Client, topic: str, kind: str
) -> None:
    def connections() -> Any:
        return client.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_sse_connections"]

    client.put_topic(topic)
    with listening(browser, wire, stream_of(topic) if kind == "stream" else watch(client, topic)):
        assert connections() == 1
    until(lambda: connections() == 0)


def test_a_stream_takes_its_options_from_its_address(browser: Browser, wire: Wire, client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": "not asked for", "tag": "🏷️"}])
    query = "from_seq=0&include_data=false&include_tags=true&node=" + quote("nobody 🧑")
    with listening(browser, wire, stream_of(topic, query)) as page:
        page.until("recordsReceived() >= 1")
        (record,) = frames_of(page, "record")[0].data["records"]
        assert (record["$seq"], record["$tag"], "data" in record) == (1, "🏷️", False)
