"""Watching by prefix under random creations, deletions, appends, slow readers, cuts and reconnections.

Each client keeps a copy of the topics that it watches, made of frames alone: the naive reader of a read model. An id
takes the copy back to what it was when the frame with the id came. Every frame must fit the copy, and when everything
has come to rest, the copy must be what is there.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trio

from tests.engine.delivery.client import MOSTLY_COLD, Connection, Received, Streams, request
from tests.engine.life import Life, living
from tests.everything import EVERYTHING
from tests.simulation.offload import InlineOffload
from topics.engine.delivery.outbox import OUTBOX_BYTES
from topics.errors import ApiError
from topics.model import WatchStart

pytestmark = pytest.mark.trio

NAMES = ("a.x", "a.y", "a.b.x", "a.b.y", "a.b.c.x", "b.x", "b.y", "c")
PREFIXES = ("a.", "a.b.", "b.", "a.b.c.", "")


class Place(msgspec.Struct):
    """What a client knows of a topic: the instance (None: not yet), and the last seq that it has got."""

    epoch: int | None
    seq: int
    again: bool = False
    """Records may come once more: the daemon did not know that they had arrived when the connection broke."""


class Walk:
    def __init__(self, life: Life, nursery: trio.Nursery, seed: int) -> None:
        self.life = life
        self.nursery = nursery
        self.random = random.Random(seed)
        self.streams = Streams(life, nursery)
        self.most = life.engine.settings.max_watch_topics
        self.clients: list[SessionClient | SocketClient] = []
        self._locks = {name: trio.Lock() for name in NAMES}

    @property
    def live(self) -> dict[str, int]:
        return {name: topic.id for name, topic in self.life.engine.registry.topics.items()}

    async def write(self, name: str) -> None:
        """Append a few records, each of which says what it is. A missing topic is made."""
        async with self._locks[name]:
            topics = self.life.engine.registry.topics
            if name not in topics:
                await self.life.put(name, durability=self.random.choice(("ephemeral", "memory", "disk")))
            epoch, head = topics[name].id, topics[name].log.head_seq
            size = self.random.choices((0, 100, 200_000), (80, 15, 5))[0]
            count = self.random.choice((0, 1, 1, 3, 10))
            datas = [[epoch, head + n + 1, "x" * size] for n in range(count)]
            if datas:
                await self.life.append(name, *datas)

    async def drop(self, name: str) -> None:
        async with self._locks[name]:
            if name in self.life.engine.registry.topics:
                await self.life.engine.topic_lifecycle.delete(name, if_empty=False)

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            if len(self.clients) < 4 and self.random.random() < 0.15:
                kind = SessionClient if self.random.random() < 0.7 else SocketClient
                self.clients.append(kind(self))
            elif self.clients and self.random.random() < 0.4:
                client = self.random.choice(self.clients)
                await client.act()
                if client.over:
                    self.clients.remove(client)
            else:
                work = self.write if self.random.random() < 0.7 else self.drop
                self.nursery.start_soon(work, self.random.choice(NAMES))
            await trio.sleep(self.random.choices((0.0, 0.001, 0.05, 1.0, 6.0, 31.0), (50, 20, 15, 10, 4, 1))[0])
            self.check_bounds()
        await trio.sleep(5)
        for client in self.clients:
            await client.come_to_rest()
        await trio.sleep(60)
        for client in self.clients:
            client.check_rest()

    def check_bounds(self) -> None:
        for outbox in self.life.engine.delivery.outboxes:
            assert outbox._bytes <= OUTBOX_BYTES + 210_000 + 4096
            assert sum(not feed.is_over for feed in outbox.feeds) <= self.most
            assert len({feed.name for feed in outbox.feeds}) == len(outbox.feeds)


class Copy:
    """What a client knows, made of frames."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.places: dict[str, Place] = {}
        self.named: set[str] = set()
        """Topics of which `recreated` may come."""
        self.left_out: dict[str, None] = {}
        self.gone: set[str] = set()
        """Topics that it was told are deleted. A client that went back to an older id, and forth, is told again."""
        self.blind = False
        """No frame with an id had come, so the daemon cannot know what has arrived."""

    def take(self, frame: Any) -> None:
        if frame.kind in {"heartbeat", "final"}:
            return
        if frame.kind == "left_out":
            assert frame.count == len(frame.topics)
            self.left_out.update(dict.fromkeys(frame.topics))
            for name in frame.topics:  # it may know one from before it went back to an older id
                self.places.pop(name, None)
            return
        name = frame.topic
        if frame.kind == "topic_added":
            known = self.places.get(name)
            assert known is None or (self.blind and known.epoch == frame.epoch), f"{name} is there already"
            assert frame.from_seq == 0
            self.places[name] = Place(frame.epoch, 0)
            self.named.discard(name)
            return
        if frame.kind == "topic_deleted":
            if name in self.places:
                assert self.places.pop(name).epoch not in self._alive
                self.gone.add(name)
            assert name in self.gone
            return
        place = self.places[name]
        if frame.kind == "tombstone" and frame.reason == "recreated":
            assert name in self.named
            place.epoch, place.seq = None, 0
            return
        assert frame.kind in {"record", "caught_up", "tombstone"}, frame
        assert frame.kind != "tombstone", f"nothing is lost here: {frame}"
        if frame.kind == "caught_up":
            assert frame.head_seq == place.seq, (frame, place)
            return
        assert frame.from_seq == place.seq or (place.again and frame.from_seq < place.seq), (frame.from_seq, place)
        assert frame.seqs == list(range(frame.from_seq + 1, frame.to_seq + 1))
        for record in frame.records:
            epoch, seq, _ = msgspec.json.decode(record.data)
            place.epoch = place.epoch or epoch
            assert (epoch, seq) == (place.epoch, record.seq)
        place.again = frame.to_seq < place.seq
        place.seq = max(place.seq, frame.to_seq)

    @property
    def _alive(self) -> set[int]:
        return set(self.walk.life.engine.registry.by_id)

    def check(self, matches: Callable[[str], bool]) -> int:
        """All that is there is in the copy, but for what there was no room for. Return how many that are."""
        live = {name: epoch for name, epoch in self.walk.live.items() if matches(name) or name in self.places}
        topics = self.walk.life.engine.registry.topics
        assert self.places.keys() <= live.keys()
        for name, place in self.places.items():
            assert place.seq == topics[name].log.head_seq, name
            assert place.epoch == live[name] or (place.epoch is None and place.seq == 0)
        missing = live.keys() - self.places.keys()
        assert missing <= self.left_out.keys(), (missing, self.left_out)
        return len(missing)


class SessionClient:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.random = walk.random
        self.over = False
        prefixes = self.random.sample(PREFIXES, self.random.choice((1, 1, 2, 3)))
        named = [name for name in walk.live if self.random.random() < 0.15][: walk.most]
        asked = request(*named, limit=self.random.choice((2, 256)))
        tail = self.random.random() < 0.3
        asked = msgspec.structs.replace(asked, prefixes=dict.fromkeys(prefixes, WatchStart(tail=tail)))
        self.matches = lambda name: name.startswith(tuple(prefixes))
        self.session, found = walk.life.engine.watch_sessions.open(asked)
        self.copy = Copy(walk)
        self.copy.named = set(named)
        for name, at in found.items():
            self.copy.places[name] = Place(at.epoch, at.from_seq)
        self.states: dict[str, dict[str, Place]] = {}
        """What the client knew with each id."""
        self.last: str | None = None
        self.used: list[str | None] = []
        """The ids that it has come with, for the search of an error."""
        self.connection: Connection | None = None

    async def act(self) -> None:
        connection = self.connection
        if connection is None or not connection.open or self.random.random() < 0.25:
            await self.connect(self.random.choice(list(self.states)) if self.states else None)
        elif self.random.random() < 0.3:
            connection.cut()
        elif connection.stopped:
            connection.go_on_reading()
        elif self.random.random() < 0.6:
            connection.stop_reading()
        else:
            connection.late_confirmation = not connection.late_confirmation

    async def connect(self, older_id: str | None = None) -> None:
        """Connect with the last id, or an older one, or with none if no frame has come yet."""
        with_id = older_id if older_id is not None and self.random.random() < 0.3 else self.last
        older = self.connection
        if older is not None and with_id is not None:
            older.on_frame = None  # without an id it goes on with what that one brings until it is taken over
        if with_id is not None:
            self.copy.places = _copied(self.states[with_id], again=True)
        self.copy.left_out.clear()
        self.copy.blind = with_id is None
        self.used.append(with_id)
        share = self.random.choice((None, None, self.random.random))
        try:
            self.connection = await self.walk.streams.connect(
                self.session, with_id, on_frame=self._take, direct=self.random.random() < 0.6, share=share
            )
        except ApiError as error:
            pytest.fail(f"the session is lost: {error}")
        if older is not None:
            older.on_frame = None
        self.copy.places = _copied(self.copy.places, again=True)

    def _take(self, received: Received) -> None:
        self.copy.take(received.frame)
        if received.line:
            self.last = received.line.strip()
            self.states[self.last] = _copied(self.copy.places)

    async def come_to_rest(self) -> None:
        await self.connect()
        await trio.sleep(20)
        await self.connect()  # what there was no room for while deletions had still to be told

    def check_rest(self) -> None:
        assert self.connection is not None
        assert self.connection.open
        missing = self.copy.check(self.matches)
        assert not missing or len(self.copy.places) == self.walk.most


class SocketClient:
    """A socket with prefixes that come and go."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.random = walk.random
        self.over = False
        self.copy = Copy(walk)
        self.prefixes: set[str] = set()
        self.coming: deque[dict[str, Place]] = deque()
        self.connection = walk.streams.socket(on_frame=self._take, direct=self.random.random() < 0.6)

    async def act(self) -> None:
        connection = self.connection
        if not connection.open or self.random.random() < 0.05:
            connection.cut()
            self.over = True
        elif self.random.random() < 0.4:
            if connection.stopped:
                connection.go_on_reading()
            else:
                connection.stop_reading()
        else:
            with trio.move_on_after(0.2):
                if await connection.outbox.room():
                    self._command()

    def _command(self) -> None:
        sessions, outbox = self.walk.life.engine.watch_sessions, self.connection.outbox
        prefix = self.random.choice(PREFIXES)
        if prefix in self.prefixes and self.random.random() < 0.6:
            self.walk.streams.unsubscribe_prefix(self.connection, prefix)
            self.prefixes.discard(prefix)
            return
        start = WatchStart(tail=self.random.random() < 0.3)
        asked = msgspec.structs.replace(request(), prefixes={prefix: start})
        wish, found = sessions.resolve_prefix(outbox, asked)
        self.coming.append({feed.name: Place(at.epoch, at.from_seq) for feed, at in found})
        outbox.put(self.walk.streams.form.answer("subscribed", [feed.name for feed, _ in found]))
        sessions.subscribe_prefix(outbox, wish, [feed for feed, _ in found])
        self.prefixes.add(prefix)

    def _take(self, received: Received) -> None:
        frame = received.frame
        if frame.kind == "subscribed":
            self.copy.places.update(self.coming.popleft())
        elif frame.kind == "unsubscribed":
            for name in frame.topics:
                self.copy.places.pop(name, None)
        else:
            self.copy.take(frame)

    async def come_to_rest(self) -> None:
        self.connection.go_on_reading()

    def check_rest(self) -> None:
        if self.connection.open:
            assert not self.coming
            prefixes = tuple(self.prefixes)
            assert self.copy.places.keys() == {feed.name for feed in self.connection.outbox.feeds}
            self.copy.check(lambda name: name.startswith(prefixes))


def _copied(places: dict[str, Place], *, again: bool = False) -> dict[str, Place]:
    return {name: Place(place.epoch, place.seq, again) for name, place in places.items()}


async def walk(seed: int, steps: int) -> None:
    most = random.Random(seed).choice((2, 4, 256))
    config = replace(MOSTLY_COLD, max_watch_topics=most)
    async with living(config, offload=InlineOffload(seed)) as life, trio.open_nursery() as nursery:
        await Walk(life, nursery, seed).run(steps)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=[pytest.mark.slow] * (i > 8)) for i in range(40 if EVERYTHING else 14)]
)
async def test_a_walk(seed: int, autojump_clock: Any) -> None:
    await walk(seed, 200)
