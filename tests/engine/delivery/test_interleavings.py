"""Live delivery under random interleavings of everything that can happen to it.

The invariant: every seq is delivered at least once, announced as a gap, or removed on request (deleted, or filtered by
node), and nothing else; without rewinds and cuts exactly once. See `tests.engine.delivery.oracle`.

A seed decides everything. One that has found something becomes an example.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.lowlevel

from tests.engine.delivery.client import (
    MOSTLY_COLD,
    Connection,
    Received,
    Streams,
    held_bytes,
    held_messages,
    positions_of,
)
from tests.engine.delivery.oracle import Follower, Removal, View, World, Written
from tests.engine.life import Life, living
from tests.everything import EVERYTHING
from tests.simulation.offload import InlineOffload
from topics.engine.delivery.feed import TopicPosition
from topics.engine.delivery.outbox import OUTBOX_BYTES
from topics.engine.delivery.watch_session import WatchSession
from topics.errors import ApiError
from topics.log.tag_match import parse_match
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch

pytestmark = pytest.mark.trio

CLASSES = ("ephemeral", "memory", "disk", "fsync")
NODES = (None, "a", "b")
TAGS = (None, "x", "y")
LARGEST = 200_000


class Walk:
    """One random walk: writers, keepers and clients of a few topics."""

    def __init__(self, life: Life, nursery: trio.Nursery, seed: int) -> None:
        self.life = life
        self.nursery = nursery
        self.random = random.Random(seed)
        self.world = World(life)
        self.streams = Streams(life, nursery)
        self.names = [f"t{n}" for n in range(self.random.randint(1, 4))]
        self.clients: list[Client | Socket] = []
        self._locks = {name: trio.Lock() for name in self.names}
        self._house = trio.Lock()
        self._written = 0

    # -- topics ------------------------------------------------------------------------------------------------------

    async def append(self, name: str) -> None:
        records = []
        for _ in range(self.random.choice((1, 1, 2, 5, 30))):
            self._written += 1
            size = self.random.choices((0, 100, 5000, LARGEST), (60, 30, 8, 2))[0]
            data = b'{ "n":%d , "p" : "%b"}' % (self._written, b"x" * size)
            records.append(
                RecordIn(data=msgspec.Raw(data), node=self.random.choice(NODES), tag=self.random.choice(TAGS))
            )
        result = await self.life.engine.appends.append(name, AppendRequest(records=records), Performance())
        instance, topic = self.world.instance(name), self.life.engine.registry.topics[name]
        for seq, record in enumerate(records, result.first_seq):
            instance.written[seq] = Written(bytes(record.data), record.node, record.tag, topic.last_ts)

    async def delete(self, name: str) -> None:
        topic = self.life.engine.registry.topics.get(name)
        if topic is None:
            return
        await self.life.engine.loader.expire(topic)
        instance, begun = self.world.instance(name), self.world.tick()
        earliest, head, ttl_ms = topic.log.earliest_seq, topic.log.head_seq, topic.config.ttl_ms
        before = self.random.choice((None, earliest + self.random.randint(0, 5), self.random.randint(1, head + 1)))
        match = self.random.choice((None, "x", "y")) if before is not None else self.random.choice(("x", "y"))
        parsed = None if match is None else parse_match(match)
        await self.life.engine.deletions.delete_records(name, before, parsed, Performance())
        done = self.world.tick()
        for seq in range(earliest, head + 1):
            written = instance.written[seq]
            if (before is None or seq < before) and (match is None or written.tag == match):
                if ttl_ms and self.life.engine.registry.now_ms() - written.ts > ttl_ms:
                    instance.unsure.add(seq)
                else:
                    instance.removed.setdefault(seq, Removal(begun, done))

    async def configure(self, name: str) -> None:
        patch = self.random.choice(
            (
                {"durability": self.random.choice(CLASSES)},
                {"cap_records": self.random.choice((0, 0, 3, 40))},
                {"cap_bytes": self.random.choice((0, 0, 2000))},
                {"ttl_ms": self.random.choice((0, 0, 400, 3000))},
                {"dedupe_node": self.random.random() < 0.7},
                {"priority": self.random.choice((None, -500, 0, 600))},
            )
        )
        for value in (True, False):  # a reader may see either as soon as it is decided
            if patch.get("dedupe_node") is value and name in self.life.engine.registry.topics:
                self.world.instance(name).filters.add(value)
        await self.life.engine.topic_lifecycle.put(name, TopicConfigPatch(**patch))
        self.world.instance(name)

    async def drop(self, name: str) -> None:
        if self.random.random() < 0.4:
            await self.life.engine.topic_lifecycle.delete(name, if_empty=False)

    async def keep_house(self, name: str) -> None:
        topic = self.life.engine.registry.topics.get(name)
        if self.random.random() < 0.5:
            async with self._house:  # one at a time, as the daemon does it
                await self.life.compactor.checkpoint()
                await self.life.engine.reclaimer.pass_over()
                await self.life.engine.relocator.pass_over()
        elif topic is not None and not topic.ephemeral:
            await self.life.engine.loader.expire(topic)

    def press(self) -> None:
        """What the governor does."""
        scheduler = self.life.engine.delivery.scheduler
        scheduler.pace(self.random.choice((0.0, 5.0, 20.0)))
        if self.random.random() < 0.3:
            scheduler.pause_lowest()
            self.life.engine.delivery.announce_pause()
        else:
            scheduler.resume_lowest()

    async def _locked(self, work: Callable[[str], Awaitable[None]], name: str) -> None:
        async with self._locks[name]:
            await work(name)

    # -- the walk ----------------------------------------------------------------------------------------------------

    async def run(self, steps: int) -> None:
        for name in self.names:
            await self._locked(self.configure, name)
        for _ in range(steps):
            if self.random.random() < 0.05:
                self.press()
            elif self.random.random() < 0.55:
                work = self.random.choices(
                    (self.append, self.delete, self.configure, self.drop, self.keep_house), (60, 12, 12, 4, 8)
                )[0]
                self.nursery.start_soon(self._locked, work, self.random.choice(self.names))
            else:
                await self.act()
            pause = self.random.choices((0.0, 0.001, 0.02, 0.4, 5.0, 30.0), (50, 20, 15, 10, 4, 1))[0]
            await trio.sleep(pause)
            self.check_bounds()
        await self.come_to_rest()

    async def act(self) -> None:
        if len(self.clients) < 5 and (not self.clients or self.random.random() < 0.2):
            names = [
                name for name in self.names if name in self.life.engine.registry.topics and self.random.random() < 0.8
            ]
            if names:
                kind = Client if self.random.random() < 0.7 else Socket
                self.clients.append(kind(self, names))
            return
        client = self.random.choice(self.clients)
        await client.act()
        if client.over:
            self.clients.remove(client)

    def check_bounds(self) -> None:
        for outbox in self.life.engine.delivery.outboxes:
            assert held_bytes(outbox) == outbox._bytes <= OUTBOX_BYTES + LARGEST + 4096
            assert outbox._slots is None or held_messages(outbox) <= outbox._slots + 1  # the final one

    async def come_to_rest(self) -> None:
        """Everybody reads, and reads to the end."""
        self.life.engine.delivery.scheduler.pace(0)
        self.life.engine.delivery.scheduler.resume_lowest()
        for lock in self._locks.values():
            async with lock:
                pass
        for client in self.clients:
            await client.come_to_rest()
        await trio.sleep(60)
        for client in self.clients:
            client.check_rest()
        self.world.judge()


class Reader:
    """What clients have in common."""

    def __init__(self, walk: Walk, names: list[str]) -> None:
        self.walk = walk
        self.random = walk.random
        self.hidden = frozenset(node for node in ("a", "b") if self.random.random() < 0.15)
        self.strong = self.random.random() < 0.3
        self.options: dict[str, Any] = {"start": self.random.choice((0, 0, None)), "nodes": self.hidden}
        if self.random.random() < 0.5:  # the others share frames
            self.options["limit"] = self.random.choice((1, 3, 256))
            self.options["max_batch_bytes"] = self.random.choice((100, 1 << 20))
        self.names = names
        self.connection: Connection | None = None
        self.over = False

    @property
    def is_open(self) -> bool:
        return self.connection is not None and self.connection.open

    def how(self) -> dict[str, Any]:
        """Options of a connection."""
        share = self.random.choice((None, None, self.random.random))
        return {"direct": self.random.random() < 0.6, "share": share}

    def stop_or_go_on(self) -> None:
        assert self.connection is not None
        if self.connection.stopped:
            self.connection.go_on_reading()
        elif self.random.random() < 0.5:
            self.connection.stop_reading()
        else:
            self.connection.late_confirmation = not self.connection.late_confirmation


class Client(Reader):
    """A client of a watch session."""

    def __init__(self, walk: Walk, names: list[str]) -> None:
        super().__init__(walk, names)
        self.session: WatchSession
        self.session, found = walk.streams.session(
            *names, consistency="strong" if self.strong else "eventual", **self.options
        )
        self.followers = {}
        for name, at in found.items():
            assert at.epoch is not None
            self.followers[name] = Follower(
                walk.world, name, self.hidden, self.strong, TopicPosition(at.from_seq, at.epoch)
            )
        self.ids: list[str] = []
        self._views: list[View] = []

    async def act(self) -> None:
        if not self.is_open or self.random.random() < 0.2:
            await self.connect(self.random.choices(("none", "last", "old", "damaged"), (4, 4, 3, 1))[0])
            return
        assert self.connection is not None
        if self.random.random() < 0.35:
            self.connection.cut()
            if self.random.random() < 0.5:
                await trio.lowlevel.checkpoint()
        else:
            self.stop_or_go_on()

    async def connect(self, with_id: str) -> None:
        last_event_id = None
        if with_id == "damaged":
            damaged = self.random.choice(("!", "a", "e30", "W10", "eyJ0MCI6LTF9", "eyJ0MCI6", "é", "eyJ0MCI6MX0x"))
            if damaged != "e30":  # {} is one, and says nothing
                await self._refused(damaged)
                return
            last_event_id = damaged
        elif self.ids and with_id != "none":
            last_event_id = self.ids[-1] if with_id == "last" else self.random.choice(self.ids)
        older = self.connection
        try:
            newer = await self.walk.streams.connect(
                self.session, last_event_id, stamp=self._stamp, on_frame=self._take, **self.how()
            )
        except ApiError:  # it is not there any more
            assert all(follower.ended for follower in self.followers.values())
            self.over = True
            return
        if older is not None:
            older.on_frame = None  # what it had in flight comes again, whether or not it arrives there
        again = last_event_id is not None or (older is not None and bool(older.outbox._flight))
        self.connection = newer
        for feed in self.session.feeds:
            bound = feed.topic.id if feed.topic is not None else None
            self.followers[feed.name].reconnected(feed.sent, bound, again)

    async def _refused(self, damaged: str) -> None:
        before = self.connection
        with pytest.raises(ApiError) as refusal:
            await self.walk.streams.connect(self.session, damaged)
        assert refusal.value.code == "invalid_request"
        assert self.connection is before

    def _stamp(self, cursors: bytes) -> bytes:
        self._views.append(self.walk.world.view())
        return b"%b %d\n" % (cursors, len(self._views) - 1)

    def _take(self, received: Received) -> None:
        frame = received.frame
        if not received.line:
            assert frame.kind in {"heartbeat", "final", "paced"}
            return
        event_id, number = received.line.split()
        view = self._views[int(number)]
        self.ids.append(event_id)
        self.followers[frame.topic].take(frame, view)
        positions = positions_of(event_id, self.names)
        assert positions.keys() == {name for name, follower in self.followers.items() if not follower.ended}
        for name, position in positions.items():
            follower = self.followers[name]
            if name == frame.topic:
                assert position == follower.end, received
            else:
                follower.check_position(position, view.version)

    async def come_to_rest(self) -> None:
        if self.is_open:
            assert self.connection is not None
            self.connection.late_confirmation = False
            self.connection.go_on_reading()
            await trio.sleep(3)
        if not self.is_open:
            await self.connect("none")

    def check_rest(self) -> None:
        assert self.over or self.is_open or all(follower.ended for follower in self.followers.values())
        for name, follower in self.followers.items():
            topic = self.walk.life.engine.registry.topics.get(name)
            if not self.over and not follower.ended:
                assert topic is not None
                assert (follower.epoch, follower.end) == (topic.id, topic.log.head_seq) or self._is_silent(follower)
                assert follower.caught_up, f"{name} is not told that it is caught up"

    def _is_silent(self, follower: Follower) -> bool:
        """The rest, up to the head, was removed on request."""
        feed = next(feed for feed in self.session.feeds if feed.name == follower.name)
        head = self.walk.life.engine.registry.topics[follower.name].log.head_seq
        follower.check_position(feed.position, self.walk.world.version)
        return follower.epoch == feed.epoch and feed.position == head


class Socket(Reader):
    """A client with subscriptions that come and go."""

    def __init__(self, walk: Walk, names: list[str]) -> None:
        super().__init__(walk, names)
        self.strong = False
        self.current: dict[str, Follower] = {}
        self._coming: deque[dict[str, Follower]] = deque()
        self.connection = walk.streams.socket(on_frame=self._take, **self.how())

    async def act(self) -> None:
        assert self.connection is not None
        if not self.is_open:
            self.over = True
        elif self.random.random() < 0.05:
            self.connection.cut()
            self.over = True
        elif self.random.random() < 0.5:
            self.stop_or_go_on()
        else:
            with trio.move_on_after(0.2):
                if await self.connection.outbox.room():
                    self._command()

    def _command(self) -> None:
        assert self.connection is not None
        streams, topics = self.walk.streams, self.walk.life.engine.registry.topics
        if self.current and self.random.random() < 0.4:
            streams.unsubscribe(self.connection, self.random.choice(self.names))
            return
        names = [name for name in self.names if name in topics and self.random.random() < 0.6]
        if not names:
            return
        feeds = streams.resolve(self.connection, *names, **self.options)
        self._coming.append(
            {feed.name: Follower(self.walk.world, feed.name, self.hidden, False, feed.sent) for feed in feeds}
        )
        streams.subscribe(self.connection, feeds)

    def _take(self, received: Received) -> None:
        frame = received.frame
        if frame.kind == "subscribed":
            coming = self._coming.popleft()
            assert list(coming) == frame.topics
            self.current.update(coming)
        elif frame.kind == "unsubscribed":
            for name in frame.topics:
                self.current.pop(name, None)
        elif frame.topic:
            self.current[frame.topic].take(frame, None)
            if frame.kind == "topic_deleted":
                del self.current[frame.topic]
        else:
            assert frame.kind in {"heartbeat", "final", "paced"}

    async def come_to_rest(self) -> None:
        assert self.connection is not None
        self.connection.late_confirmation = False
        self.connection.go_on_reading()

    def check_rest(self) -> None:
        assert self.connection is not None
        if not self.connection.open:
            return
        assert not self._coming, "an answer got lost"
        assert self.current.keys() == {feed.name for feed in self.connection.outbox.feeds}
        for feed in self.connection.outbox.feeds:
            follower = self.current[feed.name]
            assert feed.topic is not None
            assert feed.position == feed.topic.log.head_seq
            follower.check_position(feed.position, self.walk.world.version)
            assert follower.caught_up


async def walk(seed: int, steps: int) -> None:
    async with living(MOSTLY_COLD, offload=InlineOffload(seed)) as life, trio.open_nursery() as nursery:
        one = Walk(life, nursery, seed)
        await one.run(steps)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=[pytest.mark.slow] * (i > 6)) for i in range(16 if EVERYTHING else 11)]
)
async def test_a_short_walk(seed: int, autojump_clock: Any) -> None:
    await walk(seed, 120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1040 if EVERYTHING else 1010))
async def test_a_long_walk(seed: int, autojump_clock: Any) -> None:
    await walk(seed, 500)
