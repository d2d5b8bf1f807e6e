"""What a follower with prefixes yields, without a network: the caller's copy of the topics is what is there.

`Daemon` is the contract of a session with prefixes as far as a follower can tell. The follower makes a new session
after each break, so a session of it has one stream, and forgets what has not arrived.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.client.calls import ClientCall
from topics.client.errors import ConnectionFailed, NotFound
from topics.client.results import Record, Tombstone, TopicAdded, TopicDeleted, TopicsLeftOut, Watch
from topics.client.streams.follower import Follower, Position, watch
from topics.client.streams.reconnection import Reconnection

NAMES = ("a.x", "a.y", "a.z", "b")


class Daemon:
    """Topics as pairs of epoch and head, and one session."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, int]] = {}
        self.epochs = 0
        self.feeds: dict[str, tuple[int, int]] = {}
        self.prefixes: tuple[str, ...] = ()
        self.sessions = 0

    def create(self, name: str) -> None:
        if name not in self.topics:
            self.epochs += 1
            self.topics[name] = (self.epochs, 0)

    def append(self, name: str) -> None:
        self.create(name)
        epoch, head = self.topics[name]
        self.topics[name] = (epoch, head + 1)

    def watch(self, call: ClientCall[Any]) -> Watch:
        body = json.loads(call.body or b"")
        self.prefixes = tuple(body.get("prefixes", ()))
        starts = dict(body["topics"])
        for name in starts:
            if name not in self.topics:
                raise NotFound(404, "topic_not_found", "there is no such topic", {"topic": name})
        for name in self.topics:
            if name.startswith(self.prefixes):
                starts.setdefault(name, body["prefixes"][self.prefixes[0]])
        found = {}
        self.feeds = {}
        for name, start in starts.items():
            epoch, head = self.topics[name]
            begin = head if start.get("tail") else start.get("from_seq", 0)
            self.feeds[name] = (epoch, begin)
            found[name] = {"from_seq": begin, "head_seq": head, "earliest_seq": 1, "epoch": epoch}
        self.sessions += 1
        answer = {"wid": "w", "stream_url": f"/v0/watch/w{self.sessions}", "session_ttl_ms": 1, "topics": found}
        return msgspec.json.decode(json.dumps(answer), type=Watch)

    def news(self) -> bytes:
        """The frames of what has happened since."""
        frames: list[tuple[str, dict[str, Any]]] = []
        for name, (epoch, at) in list(self.feeds.items()):
            if self.topics.get(name, (0, 0))[0] != epoch:
                frames.append(("topic-deleted", {"topic": name, "head_seq": at, "reason": "deleted"}))
                del self.feeds[name]
        for name, (epoch, head) in self.topics.items():
            if name not in self.feeds and name.startswith(self.prefixes):
                begin = {"from_seq": 0, "head_seq": head, "earliest_seq": 1, "epoch": epoch}
                frames.append(("topic-added", {"topic": name, **begin}))
                self.feeds[name] = (epoch, 0)
        for name, (epoch, at) in list(self.feeds.items()):
            head = self.topics[name][1]
            if head > at:
                records = [{"$seq": seq, "$ts": 1, "data": [epoch, seq]} for seq in range(at + 1, head + 1)]
                body = {"topic": name, "records": records, "from_seq": at, "to_seq": head, "head_seq": head}
                frames.append(("record", body))
                self.feeds[name] = (epoch, head)
        text = "".join(f"id: W1sxLDFdXQ\nevent: {event}\ndata: {json.dumps(data)}\n\n" for event, data in frames)
        return text.encode()


class Copy:
    """The caller's copy: the records of each topic that there is."""

    def __init__(self) -> None:
        self.topics: dict[str, list[tuple[int, int]]] = {}
        self.named: set[str] = set()

    def take(self, value: Any) -> None:
        if isinstance(value, TopicAdded):
            assert value.topic not in self.topics
            self.topics[value.topic] = []
            self.named.discard(value.topic)
        elif isinstance(value, TopicDeleted):
            del self.topics[value.topic]
        elif isinstance(value, Tombstone):
            assert value.reason == "recreated"
            assert value.topic in self.named
            self.topics[value.topic] = []
        else:
            assert isinstance(value, Record)
            epoch, seq = value.data
            records = self.topics[value.topic]
            assert seq == value.seq == len(records) + 1
            assert not records or records[-1][0] == epoch
            records.append((epoch, seq))


class Story:
    def __init__(self, follower: Follower, daemon: Daemon) -> None:
        self.follower = follower
        self.daemon = daemon
        self.copy = Copy()
        self.now = 0.0
        self.is_open = False

    def take(self, most: int = 1000) -> None:
        for _ in range(most):
            value = self.follower.take()
            if value is None:
                return
            self.copy.take(value)

    def step(self, size: int | None = None) -> None:
        """Make the next call, or read so many bytes of the stream."""
        self.now += 1
        if self.follower.over:
            self.is_open = False
            self.follower.over = False
            self.follower.finished(self.now)
            return
        if not self.is_open:
            call = self.follower.next_call()
            if call.answer is not None:
                try:
                    self.follower.answered(self.daemon.watch(call))
                except NotFound as missing:
                    self.follower.failed(missing, self.now)
                return
            self.follower.opened(self.now)
            self.is_open = True
        news = self.daemon.news()
        self.follower.feed(news if size is None else news[:size], self.now)
        if size is not None and size < len(news):
            self.cut()

    def cut(self) -> None:
        if self.is_open:
            self.is_open = False
            self.follower.failed(ConnectionFailed("cut", outcome_unknown=False), self.now)

    def settle(self) -> None:
        for _ in range(12):
            self.take()
            if self.follower.over or self.follower.take() is None:
                self.step()
        self.take()


OPS = st.sampled_from(["append", "append", "create", "delete", "again", "step", "part", "take", "one", "cut", "forget"])


@given(st.lists(st.tuples(OPS, st.sampled_from(NAMES), st.integers(0, 600)), max_size=60), st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_copy_is_what_is_there_whatever_happens(steps: list[tuple[str, str, int]], named: bool) -> None:
    daemon = Daemon()
    daemon.append("a.x")
    reconnection = Reconnection(rng=Random(1))
    follower = Follower({"a.x": 0} if named else {}, OPTIONS, prefixes={"a.": 0}, reconnection=reconnection)
    story = Story(follower, daemon)
    story.copy.named = {"a.x"} if named else set()
    story.step()
    story.copy.topics["a.x"] = []  # there at the call
    has_taken = False
    for op, name, number in steps:
        if op == "append":
            daemon.append(name)
        elif op == "create":
            daemon.create(name)
        elif op == "delete":
            daemon.topics.pop(name, None)
        elif op == "again":
            daemon.topics.pop(name, None)
            daemon.append(name)
        elif op in ("step", "part"):
            story.take()  # a shell asks for more only when there is nothing to take
            story.step(number if op == "part" else None)
            has_taken = False
        elif op in ("take", "one"):
            story.take(1 if op == "one" else 1000)
            has_taken = True
        elif op == "cut":
            story.take()
            story.cut()
        else:
            if has_taken:  # a shell is interrupted while it hands in a piece, before it takes any value of that piece
                story.take()
            story.is_open = False
            follower.forget()
    story.settle()
    expected = {name: head for name, (_, head) in daemon.topics.items() if name.startswith("a.")}
    got = {name: len(records) for name, records in story.copy.topics.items()}
    assert {name: head for name, head in got.items() if head} == {name: head for name, head in expected.items() if head}
    for name, records in story.copy.topics.items():
        assert not records or records[0][0] == daemon.topics[name][0]
        assert follower.position(name) == Position(expected[name], daemon.topics[name][0])


OPTIONS: Any = {
    "node": (), "limit": None, "max_batch_bytes": None, "heartbeat_ms": None, "include_data": True,
    "include_meta": True, "include_tags": True, "consistency": "eventual",
}  # fmt: skip


def test_tail_is_for_the_topics_that_are_there_at_the_first_call() -> None:
    daemon = Daemon()
    daemon.append("a.x")
    follower = watch(prefixes={"a.": "tail"})
    story = Story(follower, daemon)
    story.step()
    assert follower.position("a.x") == Position(1, 1)
    daemon.append("a.y")
    story.step()
    story.take()
    assert story.copy.topics == {"a.y": [(2, 1)]}
    story.cut()
    daemon.append("a.z")
    story.settle()
    assert story.copy.topics == {"a.y": [(2, 1)], "a.z": [(3, 1)]}
    assert daemon.sessions == 2


def test_topics_that_are_left_out_are_told() -> None:
    follower = watch(prefixes=["a."])
    story = Story(follower, Daemon())
    story.step()
    story.step()
    follower.feed(b'event: error\ndata: {"code":429,"error":"x","max":1,"left_out":7,"topics":["a.x"]}\n\n', 9.0)
    assert follower.take() == TopicsLeftOut(topics=["a.x"], count=7)
    assert not follower.over
    assert not follower.ended


def test_a_prefix_is_not_a_string_and_something_must_be_watched() -> None:
    with pytest.raises(TypeError):
        watch(prefixes="a.")
    with pytest.raises(ValueError, match="none"):
        watch()
