"""Section 8: who does not read holds up nobody, and loses nothing that is not announced."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.client import Client, fresh_name, running, until
from tests.conformance.sse import Covered, Cut, Ended, Events, Frame, Http2, Session, all_open, gauge, stream

BOTH_WAYS = True

# More than what the kernel keeps of a connection that is not read, on both of its sides.
CHUNK = "x" * 262_000
CHUNKS = 80
SMALL = 4096
WITHIN_S = 60.0


def fill(client: Client, topic: str, count: int = CHUNKS) -> int:
    """Append so much that it does not fit in what lies between the daemon and a client; the head after it."""
    head = 0
    for start in range(0, count, 16):
        head = client.append(topic, *([CHUNK] * min(16, count - start)), return_seqs=False)["head_seq"]
    return head


@dataclass
class Way:
    """One of the ways to follow a topic."""

    http2: bool
    has_session: bool

    def follow(self, client: Client, topic: str) -> Follower:
        session = Session(client, topic) if self.has_session else None
        return Follower(client, topic, self.http2, session)


@dataclass
class Follower:
    client: Client
    topic: str
    http2: bool
    session: Session | None

    def open(self, last_id: str | None = None, receive_buffer: int | None = None) -> Events:
        if self.session is not None:
            return self.session.open(last_id, http2=self.http2, receive_buffer=receive_buffer)
        how = {"http2": self.http2, "receive_buffer": receive_buffer}
        return stream(self.client, self.topic, last_id, how=how)


WAYS = {
    "watch-h1": Way(False, True),
    "watch-h2": Way(True, True),
    "stream-h1": Way(False, False),
    "stream-h2": Way(True, False),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture(params=["watch-h2", "stream-h1"])
def one_of_each(request: pytest.FixtureRequest) -> Way:
    """Each protocol and each kind of stream once, where what is tested does not come from how the two go together."""
    return WAYS[request.param]


def test_who_reads_is_not_held_up(client: Client, topic: str, way: Way) -> None:
    client.put_topic(topic)
    stopped, reader = way.follow(client, topic), way.follow(client, topic)
    with stopped.open(receive_buffer=SMALL), reader.open() as events:
        found = Covered(topic).take(events.until_caught_up())
        for _ in range(5):
            # All of it comes while the other one takes nothing.
            head = fill(client, topic, 16)
            found.take(events.until_seq(topic, head))
        found.check(80)
        assert found.tombstones == []


def test_nothing_else_is_held_up(client: Client, topic: str) -> None:
    other = fresh_name()
    client.put_topic(topic)
    client.append(other, 0)
    followers = [way.follow(client, topic) for way in [*WAYS.values()] * 3]
    with all_open(follower.open(receive_buffer=SMALL) for follower in followers), stream(client, other) as events:
        found = Covered(other).take(events.until_caught_up())
        fill(client, topic)
        for number in range(1, 30):
            client.append(other, number, config={"durability": "fsync"})
            found.take(events.until_seq(other, number + 1))
            assert client.read(topic, CHUNKS - 1)["caught_up"]
    found.check(30)


def test_who_goes_on_reading_gets_everything(client: Client, topic: str, way: Way) -> None:
    client.put_topic(topic)
    with way.follow(client, topic).open(receive_buffer=SMALL) as events:
        found = Covered(topic).take(events.until_caught_up())
        head = fill(client, topic)
        client.append(topic, "last")
        found.take(events.until_seq(topic, head + 1))
    found.check(head + 1)
    assert (found.tombstones, found.data[-1]) == ([], "last")


def test_who_goes_on_reading_a_backlog_gets_everything(client: Client, topic: str, one_of_each: Way) -> None:
    fill(client, topic)
    with one_of_each.follow(client, topic).open(receive_buffer=SMALL) as events:
        # More comes while it has not begun.
        client.append(topic, *range(1000))
        found = Covered(topic).take(events.until_caught_up())
        client.append(topic, "live")
        found.take(events.until_seq(topic, CHUNKS + 1001))
    found.check(CHUNKS + 1001)
    assert found.tombstones == []
    assert found.data[CHUNKS:] == [*range(1000), "live"]


def test_what_retention_took_meanwhile_is_announced(client: Client, topic: str, one_of_each: Way) -> None:
    client.put_topic(topic, cap_records=20)
    with one_of_each.follow(client, topic).open(receive_buffer=SMALL) as events:
        found = Covered(topic).take(events.until_caught_up())
        head = fill(client, topic, 160)
        client.append(topic, "last")
        found.take(events.until_seq(topic, head + 1))
    found.check(head + 1)
    # What lies in between holds far less than what was evicted.
    assert found.tombstones
    assert set(found.reasons) <= {"cap", "from_seq_too_old"}
    assert set(range(head + 1 - 19, head + 2)) <= set(found.seqs)


def test_what_expired_meanwhile_is_announced(client: Client, topic: str, one_of_each: Way) -> None:
    client.put_topic(topic)
    with one_of_each.follow(client, topic).open(receive_buffer=SMALL) as events:
        found = Covered(topic).take(events.until_caught_up())
        head = fill(client, topic)
        client.put_topic(topic, ttl_ms=1)
        until(lambda: bool(client.state(topic)["earliest_seq"] == head + 1))
        client.put_topic(topic, ttl_ms=0)
        client.append(topic, "last")
        found.take(events.until_seq(topic, head + 1))
    found.check(head + 1)
    assert (found.reasons, found.gaps[0][1], found.data[-1]) == (["ttl"], head, "last")


def test_what_was_deleted_meanwhile_is_not_announced(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with stream(client, topic, how={"receive_buffer": SMALL}) as events:
        found = Covered(topic).take(events.until_caught_up())
        head = fill(client, topic)
        client.delete_records(topic, before_seq=head + 1)
        client.append(topic, "last")
        found.take(events.until_seq(topic, head + 1))
    found.check(head + 1, silent=range(1, head + 1))
    assert (found.tombstones, found.data[-1]) == ([], "last")
    assert len(found.seqs) < head


def test_a_topic_that_is_deleted_meanwhile_ends_the_stream(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with stream(client, topic, how={"receive_buffer": SMALL}) as events:
        found = Covered(topic).take(events.until_caught_up())
        fill(client, topic)
        client.delete_topic(topic)
        *frames, last = events.until(lambda frame: frame.event == "topic-deleted")
        found.take(frames)
        events.ended()
        assert (last.data["head_seq"], found.tombstones) == (CHUNKS, [])
        assert found.seqs == list(range(1, found.at + 1))


def test_a_stream_that_is_not_read_does_not_stop_others_of_its_connection(client: Client, topic: str) -> None:
    other = fresh_name()
    client.put_topic(other)
    fill(client, topic)
    with Http2(client) as connection:
        stopped = stream(client, topic, how={"http2": connection})
        events = Session(client, other).open(http2=connection)
        found = Covered(other).take(events.until_caught_up())
        for number in range(1, 30):
            client.append(other, CHUNK if number % 5 == 0 else number)
            found.take(events.until_seq(other, number))
        found.check(29)
        later = stream(client, topic, how={"http2": connection})
        assert Covered(topic).take(later.until_caught_up()).seqs == list(range(1, CHUNKS + 1))
        assert Covered(topic).take(stopped.until_caught_up()).seqs == list(range(1, CHUNKS + 1))


def test_a_session_is_taken_over_from_who_does_not_read(client: Client, topic: str) -> None:
    client.put_topic(topic)
    for http2 in (False, True):
        session = Session(client, topic)
        with session.open(http2=http2, receive_buffer=SMALL) as older:
            head = fill(client, topic)
            frame = older.next()
            found = Covered(topic).take([frame])
            with session.open(frame.id, http2=http2) as newer:
                found.take(newer.until_caught_up())
                found.check(head)
                client.append(topic, "live")
                found.take(newer.until_seq(topic, head + 1))
                # The older one gets what was under way, and hears why it is the last.
                frames, last = older.rest()
                assert {seq for frame in frames if frame.event == "record" for seq in frame.seqs} <= set(
                    range(head + 2)
                )
                assert last is None or last.data["code"] == 409


def test_who_hangs_up_without_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        fill(client, "a")
        for http2 in (False, True):
            for _ in range(5):
                how = {"http2": http2, "receive_buffer": SMALL}
                with all_open(stream(client, "a", how=how) for _ in range(4)):
                    pass
        until(lambda: gauge(client, "topics_sse_connections") == 0)
        with stream(client, "a") as events:
            Covered("a").take(events.until_caught_up()).check(CHUNKS)


def anonymous_memory(client: Client) -> int:
    process = client.daemon._process
    assert process is not None
    found = re.search(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def test_what_waits_is_not_copied_for_each(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        for name in ("first", "second"):
            client.put_topic(name)
        with all_open(stream(client, "first", how={"receive_buffer": SMALL}) for _ in range(100)):
            fill(client, "first")
            with stream(client, "first") as events:
                Covered("first").take(events.until_seq("first", CHUNKS)).check(CHUNKS)
            before = anonymous_memory(client)
            fill(client, "first", 5 * CHUNKS)
            with stream(client, "first", tail="true") as events:
                events.until_caught_up()
            # 100 copies of what came would be 10 GB; what a connection may hold it held before.
            assert anonymous_memory(client) - before < 400 << 20


def test_a_stop_is_in_time_whoever_does_not_read(tmp_path: Path) -> None:
    with running(tmp_path, drain_ms=2000) as client:
        client.put_topic("a")
        followers = [way.follow(client, "a") for way in WAYS.values()]
        with all_open(follower.open(receive_buffer=SMALL) for follower in followers) as streams:
            fill(client, "a")
            began = time.monotonic()
            client.daemon.send_signal(signal.SIGTERM)
            assert client.daemon.wait() == 0
            assert time.monotonic() - began < 20
            for events in streams:
                frames, last = events.rest()
                found = Covered("a").take(frames)
                assert found.seqs == list(range(1, found.at + 1))
                assert last is None or last.data["code"] == 503


# The long ones: each takes longer than one of the contract's times.


@pytest.mark.slow
def test_who_was_lagged_goes_on_from_its_cursor_and_is_caught_up_again(
    client: Client, one_of_each: Way, topic: str
) -> None:
    client.put_topic(topic)
    with one_of_each.follow(client, topic).open(receive_buffer=SMALL) as events:
        found = Covered(topic).take(events.until_caught_up())
        head = fill(client, topic)
        time.sleep(7)
        found.take(events.until_caught_up())
        assert found.caught_up[-1] == head
        client.append(topic, "live")
        found.take(events.until_seq(topic, head + 1))
    found.check(head + 1)
    assert (found.tombstones, found.data[-1]) == ([], "live")


@pytest.mark.slow
def test_who_was_lagged_is_told_what_retention_took(client: Client, one_of_each: Way, topic: str) -> None:
    client.put_topic(topic, cap_records=20)
    with one_of_each.follow(client, topic).open(receive_buffer=SMALL) as events:
        found = Covered(topic).take(events.until_caught_up())
        fill(client, topic)
        time.sleep(7)
        head = fill(client, topic)
        found.take(events.until_caught_up())
        client.append(topic, "live")
        found.take(events.until_seq(topic, head + 1))
    found.check(head + 1)
    assert found.tombstones
    assert set(found.reasons) <= {"cap", "from_seq_too_old"}


@dataclass
class Closed:
    """A connection that was not read for so long that the daemon closed it, and a slow one and idle ones that it did
    not close."""

    client: Client
    followers: dict[str, Follower]
    streams: dict[str, Events]
    idle: list[Events]
    """Opened before the others, and caught up since."""
    slow: Callable[[], tuple[list[Frame], str]]


@pytest.fixture(scope="module")
def closed(http_lane: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    """One for each way, all at once, since it takes over 30 s."""
    with running(tmp_path_factory.mktemp("closed")) as client, ThreadPoolExecutor(1) as pool:
        for topic in ("a", "slow", "idle"):
            client.put_topic(topic)
        fill(client, "slow", 6 * CHUNKS)
        followers = {name: way.follow(client, "a") for name, way in WAYS.items()}
        with (
            all_open(way.follow(client, "idle").open() for way in WAYS.values()) as idle,
            all_open(follower.open(receive_buffer=SMALL) for follower in followers.values()) as streams,
        ):
            for events in idle:
                events.until_caught_up()
            fill(client, "a")
            slow = pool.submit(read_slowly, client)
            # The idle ones are left, and the slow one, which ends by itself.
            until(lambda: gauge(client, "topics_sse_connections") <= len(idle) + 1, within_s=WITHIN_S)
            yield Closed(client, followers, dict(zip(followers, streams, strict=True)), idle, lambda: slow.result(120))


def read_slowly(client: Client) -> tuple[list[Frame], str]:
    """Read with pauses, for longer than who takes nothing is left open, and then to the end of the backlog."""
    frames: list[Frame] = []
    with stream(client, "slow", how={"receive_buffer": 1 << 16}) as events:
        deadline = time.monotonic() + 45
        try:
            while time.monotonic() < deadline:
                # About 2 MiB: the buffers of the kernel are so large that less of it might not be seen as progress.
                frames += [events.next() for _ in range(8)]
                time.sleep(1)
            frames += events.until_caught_up()
        except (Cut, Ended, AssertionError) as error:
            return frames, repr(error)[:500]
    return frames, ""


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_who_takes_nothing_for_30_s_is_closed_and_resumes_without_loss(closed: Closed, name: str) -> None:
    frames, last = closed.streams[name].rest()
    # The final error is there if it could still be read: not if what was before it did not fit.
    assert last is None or last.data["code"] == 408
    found = Covered("a").take(frames)
    assert found.at < CHUNKS
    with closed.followers[name].open(closed.streams[name].last_id) as events:
        found.take(events.until_caught_up())
        found.check(CHUNKS)
        assert found.tombstones == []
    assert found.seqs == list(range(1, CHUNKS + 1))


@pytest.mark.slow
def test_a_stream_that_makes_progress_has_no_time_limit(closed: Closed) -> None:
    frames, error = closed.slow()
    assert not error
    found = Covered("slow").take(frames)
    found.check(6 * CHUNKS)
    assert found.tombstones == []


@pytest.mark.slow
def test_an_idle_stream_has_no_time_limit(closed: Closed) -> None:
    """It has nothing to take: that is no lack of progress. Others that were opened later have been closed for that."""
    for events in closed.idle:
        while len(events.heartbeats) < 2:
            events.heartbeat(20)
    closed.client.append("idle", 1)
    for events in closed.idle:
        events.expect("record", from_seq=0, to_seq=1)
