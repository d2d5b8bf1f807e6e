"""Steps of readers: watchers, and reads and exports with a filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import trio

from tests.engine.delivery.client import Connection, Frame, Streams
from tests.simulator.caller import Caller, exported
from tests.simulator.filter_matches import Filters
from tests.simulator.followers import Follower
from tests.simulator.known import Instance, broken
from tests.simulator.passages import Passage, Silence, records_of
from topics.filters.record_filter import Filter, parse_filter
from topics.model import Performance, ReadRequest, ReadResult, WatchRequest, WatchStart


class FilterSteps(Caller):
    """Watchers and readers."""

    def _readable(self, name: str) -> Instance | None:
        """The topic of a name, if it is there."""
        instance = self.truth.latest(name)
        if instance is None or not instance.created or name not in self.engine.registry.topics:
            return None
        return instance

    def _position(self, actor: str, instance: Instance) -> int:
        """How far an actor has got in a topic."""
        known, position = self.memory.positions.setdefault(actor, {}).get(instance.name, (instance, 0))
        return position if known is instance else 0

    # -- watching ----------------------------------------------------------------------------------------------------

    async def do_watch(self, actor: str, what: Mapping[str, Any]) -> None:
        """Watch topics for some time, from where this actor has got to; some watchers have a filter."""
        starts, followers = {}, {}
        filters: Filters = (what["filter"],) if "filter" in what else ()
        for name in what["topics"]:
            instance = self._readable(name)
            if instance is None:
                continue
            position = self._position(actor, instance)
            starts[name] = WatchStart(from_seq=position)
            followers[name] = Follower(self.truth, instance, position, filters)
        if not starts:
            return
        wanted = parse_filter(filters[0]) if filters else None
        asked = WatchRequest(
            topics=starts,
            include_tags=True,
            consistency="strong" if what.get("strong", False) else "eventual",
            filter=wanted,
        )
        await self._follow(asked, followers, what)
        positions = self.memory.positions[actor]
        for name, follower in followers.items():
            positions[name] = follower.instance, follower.position

    async def _follow(self, asked: WatchRequest, followers: Mapping[str, Follower], what: Mapping[str, Any]) -> None:
        """Watch for some time."""
        self.followers += followers.values()
        async with trio.open_nursery() as nursery:
            with self._refusable():
                session, _ = self.engine.watch_sessions.open(asked)
                streams = Streams(self.life, nursery)  # type: ignore[arg-type]
                streams.form = self.form
                connection = await streams.connect(
                    session, stopped=what["slow"], on_frame=lambda got: self._arrived(followers, got.frame)
                )
                await self._watch(connection, what)
            nursery.cancel_scope.cancel()

    async def _watch(self, connection: Connection, what: Mapping[str, Any]) -> None:
        if what["slow"]:
            await trio.sleep(what["ms"] / 1000)
            connection.go_on_reading()
        await trio.sleep(what["ms"] / 1000)
        connection.cut()

    def _arrived(self, followers: Mapping[str, Follower], frame: Frame) -> None:
        self._alive()
        if frame.topic in followers:
            followers[frame.topic].take(frame)

    # -- reads with a filter -----------------------------------------------------------------------------------------

    async def do_filtered(self, actor: str, what: Mapping[str, Any]) -> None:
        """Read on, some pages, with a filter; or from the beginning."""
        instance = self._readable(what["topic"])
        if instance is None:
            return
        position = 0 if what["anew"] else self._position(actor, instance)
        for _ in range(what["pages"]):
            request = ReadRequest(
                from_seq=position,
                limit=what["limit"],
                include_tags=True,
                filter=parse_filter(what["filter"]),
                wait_ms=what["wait_ms"],
            )
            perf, since, classes = Performance(), self.truth.tick(), set(instance.classes)
            with self._refusable():
                result = await self.engine.reads.read(instance.name, request, perf)
                self._alive()
                if result.epoch != instance.epoch or not self._is(instance):
                    return
                self._check_page(instance, result, request, perf)
                passage = self._passage(instance, result, (what["filter"],), since, classes)
                if passage is not None:
                    self._judge(passage, position)
                position = result.next_from_seq
                self.memory.positions.setdefault(actor, {})[instance.name] = instance, position

    def _check_page(self, instance: Instance, result: ReadResult, request: ReadRequest, perf: Performance) -> None:
        """What an answer says of itself. Raises Broken."""
        most = self.engine.settings.max_scan
        where = f"{instance.name}: a read from {request.from_seq} to {result.next_from_seq}"
        if result.caught_up != (result.next_from_seq == result.head_seq):
            broken(f"{where} says that it is caught up, the head is {result.head_seq}: {result}")
        if result.next_from_seq <= request.from_seq and not result.caught_up:
            broken(f"{where} does not get on: {result}")
        if result.count > request.limit or result.count != len(records_of(result.records)):
            broken(f"{where} gives {result.count} records: {result}")
        if (perf.records_scanned or 0) > most:
            broken(f"{where} has looked at {perf.records_scanned} records, more than {most}")

    def _passage(
        self, instance: Instance, result: ReadResult, filters: Filters, since: int, classes: set[str]
    ) -> Passage | None:
        """What a read has given, which is told the truth; None if it has begun anew."""
        gaps: Sequence[tuple[int, int]] = ()
        if result.tombstone is not None:
            if result.tombstone.reason == "recreated":
                return None
            gaps = ((result.tombstone.gap_from, result.tombstone.gap_to),)
        records = records_of(result.records)
        for record in records.values():
            self.truth.seen(instance, record, since, classes)
        return Passage(instance, result.next_from_seq, records, gaps, filters)

    def _judge(self, passage: Passage, start: int, more: Filters = ()) -> None:
        """A reader was at `start`. Raises Broken."""
        problem = passage.problem(self.truth, start, more)
        if problem is not None:
            broken(f"{passage.instance.name}: {problem}")
        silent = frozenset(passage.silent(start))
        self.followers.append(Silence(passage.instance, silent, passage.filters + more, self.truth))
        self.truth.checked["passages"] += 1

    async def do_filtered_export(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Export what matches of a topic."""
        instance = self._readable(what["topic"])
        if instance is None:
            return
        since, classes = self.truth.tick(), set(instance.classes)
        wanted: Filter = parse_filter(what["filter"])
        with self._refusable():
            records, gaps, end = await exported(self.life, instance.name, wanted)
            self._alive()
            if end.epoch == instance.epoch and self._is(instance):
                for record in records.values():
                    self.truth.seen(instance, record, since, classes)
                announced = [(first, last) for first, last, _ in gaps]
                self._judge(Passage(instance, end.next_from_seq, records, announced, (what["filter"],)), 0)
