"""Steps of those who use named consumers: what they ask for, and what the truth is told of the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import trio
from msgspec import UNSET

from tests.simulator import consumers
from tests.simulator.consumers import ANY, Call, Fits, KnownConsumer, Outcome, Seen, State, TopicConsumers
from tests.simulator.filter_matches import Filters
from tests.simulator.filter_steps import FilterSteps
from tests.simulator.followers import Follower
from tests.simulator.known import Instance, broken
from tests.simulator.passages import Passage
from topics.errors import ApiError
from topics.filters.record_filter import parse_filter
from topics.model import (
    ConsumerMove,
    ConsumerPatch,
    ConsumerRead,
    ConsumerStart,
    ConsumerState,
    MovedConsumer,
    Performance,
    ReadRequest,
    ReadResult,
    WatchRequest,
    WatchStart,
)

REFUSALS: Final = {
    "consumer_not_found": "absent",
    "fenced": "fenced",
    "consumer_owned": "owned",
    "invalid_request": "beyond",
}
"""What a refusal says of the consumer."""

FAR: Final = 1_000_000
"""Beyond every head."""

Answer = TypeVar("Answer")


class _Asked(NamedTuple):
    """Which consumer a step is about."""

    instance: Instance
    of: TopicConsumers
    known: KnownConsumer
    generation: int | None
    """That the actor says."""
    epoch: int | None

    @property
    def name(self) -> str:
        return self.known.name

    @property
    def is_other(self) -> bool:
        """Whether it means another topic of that name."""
        return self.epoch not in (None, self.instance.epoch)

    @property
    def move(self) -> ConsumerMove:
        return ConsumerMove(generation=self.generation, epoch=self.epoch)


class ConsumerSteps(FilterSteps):
    """Everything that can be done with a consumer."""

    def _asked(self, actor: str, what: Mapping[str, Any]) -> _Asked | None:
        instance = self._readable(what["topic"])
        if instance is None or not self._is(instance):
            return None
        of = self.truth.consumers_of(instance)
        of.now = self.now()
        known = of.named(what["consumer"], of.now)
        generation = self.memory.generations.get((actor, instance.epoch, known.name)) if what.get("owned") else None
        epoch = instance.epoch if what.get("epoch") else None
        if what.get("epoch") == "old":
            epoch = max((old.epoch for old in self.truth.instances[instance.name][:-1]), default=instance.epoch)
        return _Asked(instance, of, known, generation, epoch)

    def _call(
        self, asked: _Asked, what: str, outcomes: Callable[[State | None], list[Outcome]], **options: Any
    ) -> Call:
        """A call that is about to be made."""
        call = Call(
            options.pop("id", None) or asked.of.new_id(),
            what,
            consumers.other_epoch if asked.is_other else outcomes,
            asked.of.now,
            frozenset(asked.instance.classes),
            **options,
        )
        asked.known.ask(call)
        asked.of.note(self._head(asked.instance))
        return call

    async def _ask(
        self,
        asked: _Asked,
        call: Call,
        request: Awaitable[Answer],
        fits: Callable[[Answer], Fits],
        *,
        uses: bool = True,
    ) -> tuple[Answer, set[State | None]] | None:
        """Make a call; return the answer and what the consumer may have been before it, None without an answer."""
        try:
            answer = await request
        except ApiError as error:
            self._alive()
            self._refused(asked, call, error)
            return None
        self._alive()
        if not self._is(asked.instance):
            return None
        return answer, self._answered(asked, call, fits(answer), answer, uses=uses)

    def _refused(self, asked: _Asked, call: Call, error: ApiError) -> None:
        """It was not done, and why; or nobody knows."""
        if error.status >= 500 or not self._is(asked.instance):
            return
        kind = REFUSALS.get(error.code)
        if kind is None:
            asked.known.drop(call)
            return

        def fits(found: str, before: State | None, after: State | None) -> list[State | None]:
            if found != kind or (kind == "owned" and before is not None and before.owner != error.detail["owner"]):
                return []
            return [after]

        self._answered(asked, call, fits, error, uses=False)

    def _answered(
        self, asked: _Asked, call: Call, fits: Fits, answer: object, *, uses: bool = True
    ) -> set[State | None]:
        asked.of.now = self.now()
        asked.of.note(self._head(asked.instance))
        before = asked.known.answer(call, asked.of.now, fits, (call, answer), uses=uses)
        asked.of.note(self._head(asked.instance))
        self.truth.checked["consumers"] += 1
        return before

    async def do_together(self, actor: str, what: Mapping[str, Any]) -> None:
        """Several things at the same time."""
        async with trio.open_nursery() as nursery:
            for step in what["steps"]:
                nursery.start_soon(getattr(self, f"do_{step['do']}"), actor, step["what"])

    async def do_die(self, _actor: str, _what: Mapping[str, Any]) -> None:
        """The machine dies, before anything else happens."""
        self.life.fs.crash()
        self._alive()

    # -- coming and going --------------------------------------------------------------------------------------------

    async def do_put_consumer(self, actor: str, what: Mapping[str, Any]) -> None:
        """Make a consumer, or change it."""
        asked = self._asked(actor, what)
        if asked is None:
            return
        head, place = asked.instance.head, what["from"]
        start = {"earliest": (0, ANY), "tail": (head, ANY)}.get(place, (int(what["share"] * head),) * 2)
        at = ConsumerStart(place=place, value=start[0] if place == "seq" else 0)
        asked.of.goes_back |= place == "seq"
        kept = parse_filter(what["filter"]) if what.get("filter") else what.get("filter", UNSET)
        patch = ConsumerPatch(start=at, ttl_ms=what.get("ttl_ms"), filter=kept)
        text = None if kept is UNSET or kept is None else kept.text
        outcomes = consumers.put((start[0], start[1]), what.get("ttl_ms"), text, keeps=kept is UNSET)
        call = self._call(asked, f"put {what}", outcomes, most=start[1], synced=True, puts=True)

        def fits(answer: tuple[ConsumerState, bool]) -> Fits:
            shown, kind = _seen(answer[0]), "created" if answer[1] else "there"
            # One that others move meanwhile may have been moved again when the answer is made.
            return lambda found, before, after: [] if found != kind else shown.fits(after) if call.alone else [after]

        await self._ask(
            asked, call, self.engine.consumers.put(asked.instance.name, asked.name, patch, Performance()), fits
        )

    async def do_delete_consumer(self, actor: str, what: Mapping[str, Any]) -> None:
        """Take a consumer away."""
        asked = self._asked(actor, what)
        if asked is None:
            return
        call = self._call(asked, "delete", consumers.delete, synced=True, ends=True)
        request = self.engine.consumers.delete(asked.instance.name, asked.name, Performance())
        await self._ask(asked, call, request, lambda was: _only("deleted" if was else "nothing"))

    async def do_show_consumers(self, actor: str, what: Mapping[str, Any]) -> None:
        """Look at one, or at all."""
        asked = self._asked(actor, what)
        if asked is None:
            return
        if not what["all"]:
            call = self._call(asked, "look", consumers.look)
            try:
                state = self.engine.consumers.state(asked.instance.name, asked.name)
            except ApiError as error:
                self._refused(asked, call, error)
            else:
                self._answered(asked, call, _as_shown(_seen(state)), state)
            return
        with self._refusable():
            page, more = self.engine.consumers.page(asked.instance.name, "", None, 1000)
            there = {state.consumer: _seen(state) for state in page}
            if more or there.keys() - asked.of.known.keys():
                broken(f"{asked.instance.name}: consumers that nobody has made: {page}")
            for name, known in asked.of.known.items():
                one = asked._replace(known=known)
                call = self._call(one, "list", consumers.look)
                self._answered(one, call, _as_shown(there.get(name)), there.get(name), uses=False)

    # -- positions ---------------------------------------------------------------------------------------------------

    async def do_commit_consumer(self, actor: str, what: Mapping[str, Any]) -> None:
        """Say how far it has finished: what it has read, or any place."""
        asked = self._asked(actor, what)
        if asked is None:
            return
        seq = self._place(actor, asked, what)
        outcomes = consumers.move(seq, seq, asked.generation, seeks=False)
        if what.get("beyond"):
            seq, outcomes = FAR, consumers.beyond(asked.generation)
        call = self._call(asked, f"commit {seq} {asked.move}", outcomes, most=min(seq, asked.instance.head))
        request = self.engine.consumers.commit(asked.instance.name, asked.name, seq, asked.move, Performance())
        await self._ask(asked, call, request, lambda moved: self._moved(asked, call, moved))

    async def do_seek(self, actor: str, what: Mapping[str, Any]) -> None:
        """Move it anywhere."""
        asked = self._asked(actor, what)
        if asked is None:
            return
        asked.of.goes_back = True
        head, place = asked.instance.head, what["to"]
        low, high = {"earliest": (0, ANY), "tail": (head, ANY)}.get(place, (int(what["share"] * head),) * 2)
        to = ConsumerStart(place=place, value=low if place == "seq" else 0)
        call = self._call(
            asked,
            f"seek {place} {low} {asked.move}",
            consumers.move(low, high, asked.generation, seeks=True),
            most=high,
        )
        request = self.engine.consumers.seek(asked.instance.name, asked.name, to, asked.move, Performance())
        await self._ask(asked, call, request, lambda moved: self._moved(asked, call, moved))

    def _place(self, actor: str, asked: _Asked, what: Mapping[str, Any]) -> int:
        """What this actor has read last at the consumer's position, or a share of what anybody knows of."""
        finished = self.memory.finished.get((actor, asked.instance.epoch, asked.name))
        if finished is not None and what.get("read"):
            return min(finished, self._head(asked.instance))
        return int(what["share"] * asked.instance.head)

    def _moved(self, asked: _Asked, call: Call, moved: MovedConsumer) -> Fits:
        kind, at = "moved" if moved.moved else "stayed", moved.committed_seq
        if moved.epoch != asked.instance.epoch or at > self._head(asked.instance):
            broken(f"{asked.instance.name}/{asked.name}: {moved}")

        def fits(found: str, before: State | None, after: State | None) -> list[State | None]:
            if found != kind or after is None:
                return []
            if not call.alone:
                return [after]
            return [after.at(at, at)] if after.low <= at <= after.high else []

        return fits

    # -- owners ------------------------------------------------------------------------------------------------------

    async def do_acquire(self, actor: str, what: Mapping[str, Any]) -> None:
        """Become its owner, or go on being it."""
        asked = self._asked(actor, what)
        if asked is None:
            return
        id_, of = asked.of.new_id(), asked.of
        call = self._call(asked, f"acquire by {actor}", of.acquire(id_, actor, what["lease_ms"]), id=id_, synced=True)

        def fits(answer: tuple[int, int, int]) -> Fits:
            generation = answer[1]

            def fit(kind: str, before: State | None, after: State | None) -> list[State | None]:
                taken = kind == "granted" and generation in asked.known.generations
                if kind not in ("granted", "renewed") or taken or after is None:
                    return []
                return list(
                    after.narrowed(after.low, generation) and [after._replace(first=generation, last=generation)]
                )

            return fit

        request = self.engine.consumers.acquire(asked.instance.name, asked.name, actor, what["lease_ms"], Performance())
        found = await self._ask(asked, call, request, fits)
        if found is not None:
            _, generation, _ = found[0]
            asked.known.generations.add(generation)
            of.granted(id_, generation, of.now + what["lease_ms"])
            self.memory.generations[actor, asked.instance.epoch, asked.name] = generation

    async def do_release(self, actor: str, what: Mapping[str, Any]) -> None:
        """Be its owner no more."""
        asked = self._asked(actor, what)
        generation = asked and self.memory.generations.get((actor, asked.instance.epoch, asked.name))
        if asked is None or generation is None:
            return
        call = self._call(asked._replace(epoch=None), f"release {generation}", consumers.release(generation))
        request = self.engine.consumers.release(asked.instance.name, asked.name, generation, Performance())
        await self._ask(asked, call, request, lambda was: _only("released" if was else "kept"), uses=False)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def do_consume(self, actor: str, what: Mapping[str, Any]) -> None:
        """Read at its position: after a commit, or with one of what is returned, or with none."""
        asked = self._asked(actor, what)
        if asked is None:
            return
        before = what.get("before", False)
        commit = what.get("commit", False) and not before
        seq = self._place(actor, asked, what) if commit else None
        request = ReadRequest(
            limit=what["limit"],
            include_tags=True,
            filter=parse_filter(what["filter"]) if "filter" in what else None,
            epoch=asked.epoch,
            consumer=ConsumerRead(consumer=asked.name, commit_seq=seq, generation=asked.generation, before=before),
        )
        first: Call | None = None
        if seq is not None:
            outcomes = consumers.move(seq, seq, asked.generation, seeks=False)
            first = self._call(asked, f"commit {seq} {asked.move} and read", outcomes, most=seq)
        outcomes = consumers.read_before(asked.generation) if before else consumers.look
        call = self._call(asked, f"read {asked.move}", outcomes, after=first, most=ANY if before else -1)
        since, classes = self.truth.tick(), set(asked.instance.classes)
        try:
            result = await self.engine.consumer_reads.read(asked.instance.name, request, Performance())
        except ApiError as error:
            self._alive()
            self._read_refused(asked, first, call, error)
            return
        self._alive()
        if not self._is(asked.instance):
            return
        if first is not None:
            self._answered(asked, first, lambda kind, _, after: [after] * (kind in ("moved", "stayed")), result)
        self._has_read(actor, asked, call, request, self._passage_of(asked, result, request, since, classes))

    def _passage_of(
        self, asked: _Asked, result: ReadResult, request: ReadRequest, since: int, classes: set[str]
    ) -> Passage:
        filters: Filters = (request.filter.text,) if request.filter is not None else ()
        passage = self._passage(asked.instance, result, filters, since, classes)
        if passage is None or result.epoch != asked.instance.epoch:
            broken(f"{asked.instance.name}/{asked.name}: a read is of another topic: {result}")
        return passage

    def _read_refused(self, asked: _Asked, first: Call | None, call: Call, error: ApiError) -> None:
        """With a commit in front nobody knows which of the two was refused, unless only that can be."""
        if first is None and (call.most == ANY or error.status < 500):
            self._refused(asked, call, error)
            return
        asked.known.drop(call)  # a read that changes nothing
        if first is not None and error.code in ("fenced", "invalid_request"):
            self._refused(asked, first, error)

    def _has_read(self, actor: str, asked: _Asked, call: Call, request: ReadRequest, passage: Passage) -> None:
        assert request.consumer is not None
        problems: set[str | None] = set()
        kind = "read" if request.consumer.before else "state"

        def fits(found: str, before: State | None, after: State | None) -> list[State | None]:
            if found != kind or before is None or after is None:
                return []
            if before.low == before.high:
                problems.add(problem := self._problem_of(call, passage, before))
                if problem is not None:
                    return []
            return [after.at(passage.to, passage.to) if kind == "read" else after]

        self.truth.checked["consumed"] += 1
        try:
            found = self._answered(asked, call, fits, sorted(passage.records))
        except AssertionError as error:
            broken(f"{error}\n  read to {passage.to}, gaps {passage.gaps}, {passage.filters}: {problems}")
        self.memory.finished[actor, asked.instance.epoch, asked.name] = passage.to
        exact = {(state.low, state.filter) for state in found if state is not None and state.low == state.high}
        if len(exact) == 1 and not (call.beside_put and kind == "read"):
            ((start, kept),) = exact
            self._judge(passage, start, (kept,) if kept is not None else ())

    def _problem_of(self, call: Call, passage: Passage, before: State) -> str | None:
        """What is wrong with it if the consumer was so before it. The filter of a read that commits may be an older
        one."""
        if call.most == ANY and call.beside_put:
            return None if min(passage.records, default=ANY) > before.low else "it goes back"
        return passage.problem(self.truth, before.low, (before.filter,) if before.filter is not None else ())

    async def do_watch_consumer(self, actor: str, what: Mapping[str, Any]) -> None:
        """Watch from its position on for some time; then commit what has come."""
        asked = self._asked(actor, {**what, "epoch": False})
        if asked is None:
            return
        start = {asked.instance.name: WatchStart(consumer=asked.name)}
        wanted = parse_filter(what["filter"]) if "filter" in what else None
        call = self._call(asked, "look", consumers.look)
        try:
            request = self.engine.consumers.placed(WatchRequest(topics=start, include_tags=True, filter=wanted))
        except ApiError as error:
            self._refused(asked, call, error)
            return
        position = request.topics[asked.instance.name].from_seq
        assert isinstance(position, int)
        kept = tuple(one.text for one in request.filters.get(asked.instance.name, ()))

        def fits(kind: str, before: State | None, after: State | None) -> list[State | None]:
            there = kind == "state" and after is not None and after.low <= position <= after.high
            return [after.at(position, position)] if there and kept == _texts(after.filter) else []  # type: ignore[union-attr]

        self._answered(asked, call, fits, (position, kept))
        follower = Follower(self.truth, asked.instance, position, kept + ((wanted.text,) if wanted is not None else ()))
        await self._follow(request, {asked.instance.name: follower}, what)
        if self._is(asked.instance):
            self.memory.finished[actor, asked.instance.epoch, asked.name] = follower.position
            await self.do_commit_consumer(actor, {**what, "read": True, "share": 0.0})


def _seen(state: ConsumerState) -> Seen:
    kept = None if state.filter is None else bytes(state.filter).decode()
    return Seen(state.committed_seq, state.owner, state.generation, 0, kept, state.ttl_ms)


def _texts(text: str | None) -> Filters:
    return () if text is None else (text,)


def _only(kind: str) -> Fits:
    """The answer says no more than this."""
    return lambda found, before, after: [after] if found == kind else []


def _as_shown(shown: Seen | None) -> Fits:
    if shown is None:
        return _only("absent")
    return lambda kind, before, after: shown.fits(after) if kind == "state" else []
