"""What is known of named consumers: every order of events that explains what clients were told
(`docs/spec/consumers.md` section 3).

Calls overlap, and the answer to some never comes. So of each consumer all *worlds* are kept that are possible: a world
is the states that the consumer has had, in order, and which of the calls without an answer have happened in it. An
answer leaves those worlds in which the call has happened, once, between its being asked and its answer, with that
outcome. If none is left, no order explains what clients were told.

States that no end can bring back any more are forgotten: an answer is as durable as the class of the topic says, and a
change that is synced in every class makes all earlier ones durable too. A restart shows one of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.model import View
from tests.simulator.known import Fate, Instance, Promise, broken, promise_of

if TYPE_CHECKING:
    from topics.consumers.consumers import Consumer

ANY: Final = 1 << 62
"""A bound that is none."""

MOST_OPEN: Final = 5
"""Calls without an answer, of one consumer; with more of them nothing is said about it until the next restart."""

MOST_WORLDS: Final = 3000


class State(NamedTuple):
    """A consumer. Where a number is not known, it has bounds, both inclusive."""

    low: int
    high: int
    """Of its position."""
    owner: str | None
    first: int
    last: int
    """Of its generation."""
    lease: int
    """The call whose lease it is."""
    filter: str | None
    ttl_ms: int

    def at(self, low: int, high: int) -> State:
        """The same elsewhere."""
        return self._replace(low=low, high=high)

    def narrowed(self, seq: int, generation: int) -> list[State]:
        """The same if it can have this position and this generation."""
        if self.low <= seq <= self.high and self.first <= generation <= self.last:
            return [self._replace(low=seq, high=seq, first=generation, last=generation)]
        return []


class Seen(NamedTuple):
    """A consumer as the daemon shows it."""

    seq: int
    owner: str | None
    generation: int
    deadline: int
    """By the daemon's clock of windows; 0 without an owner."""
    filter: str | None
    ttl_ms: int

    def fits(self, state: State | None) -> list[State | None]:
        """The state with the numbers that are shown, if they can be those of it."""
        if state is None or (state.owner, state.filter, state.ttl_ms) != (self.owner, self.filter, self.ttl_ms):
            return []
        return list(state.narrowed(self.seq, self.generation))


def seen(consumer: Consumer) -> Seen:
    """A consumer of the daemon."""
    deadline = consumer.deadline if consumer.owner is not None else 0
    return Seen(consumer.seq, consumer.owner, consumer.generation, deadline, consumer.filter, consumer.ttl_ms)


Outcome = tuple[str, State | None]
"""What a call may come to, and the consumer after it."""


@dataclass(eq=False, slots=True)
class Call:
    """A call that somebody has made."""

    id: int
    what: str
    outcomes: Callable[[State | None], Iterable[Outcome]] = field(repr=False)
    """What it may come to for a consumer in some state."""
    asked: int
    classes: frozenset[str]
    most: int = -1
    """The highest position to which it may take the consumer."""
    ends: bool = False
    """It may end the consumer."""
    synced: bool = False
    """Its change is synced in every class."""
    after: Call | None = None
    """It happens after that one."""
    puts: bool = False
    """It may change the filter."""
    alone: bool = True
    """No other call was on its way at the same time."""
    beside_put: bool = False
    """The filter may have changed meanwhile."""


class _Event(NamedTuple):
    """A call without an answer has happened in a world."""

    call: int
    at: int
    """Which state it has led to."""
    kind: str
    before: State | None
    after: State | None


class _World(NamedTuple):
    states: tuple[State | None, ...]
    """Those that some end may still bring back; the last one is that of now."""
    kill: int
    """Which of them is the first that a kill may bring back."""
    events: frozenset[_Event]

    def event_of(self, call: Call) -> _Event | None:
        return next((event for event in self.events if event.call == call.id), None)

    def went_on(self, state: State | None, event: tuple[int, str] | None) -> _World:
        """The consumer is in this state now, by this call, if it was one."""
        before = self.states[-1]
        states = self.states if state == before else (*self.states, state)
        events = self.events
        if event is not None:
            events |= {_Event(event[0], len(states) - 1, event[1], before, state)}
        return _World(states, self.kill, events)

    def answered(self, event: _Event, state: State | None, promise: Promise) -> _World:
        """Somebody was told of an event: what is before it survives as little as `promise` says."""
        states = list(self.states)
        if event.at >= 0 and states[event.at] == event.after:
            states[event.at] = state
        first = max(event.at, 0) if promise == Promise.ALL else 0
        kill = max(self.kill, event.at) if promise >= Promise.KILL else self.kill
        events = frozenset(one._replace(at=one.at - first) for one in self.events if one is not event)
        return _World(tuple(states[first:]), max(kill - first, 0), events)


Fits = Callable[[str, State | None, State | None], Iterable[State | None]]
"""Given an outcome, the consumer before and after it: what the consumer is after it in view of the answer; nothing if
the answer is another one."""


class KnownConsumer:
    """One name of one topic."""

    def __init__(self, of: TopicConsumers, name: str, now: int) -> None:
        self.of = of
        self.name = name
        self.worlds: set[_World] = {_World((None,), 0, frozenset())}
        self.open: dict[int, Call] = {}
        """Calls without an answer."""
        self.is_blurred = False
        """Too much is open: nothing is said about it until the next restart."""
        self.used = now
        """When it was used for certain, last."""
        self.generations: set[int] = set()
        """That its owners were told of."""
        self.is_expiring = False
        """It was found when its ttl was over: its end may be on its way."""

    @property
    def states(self) -> list[State | None]:
        """What it may be, as long as nothing that is open has happened that nobody knows of."""
        return [world.states[-1] for world in self.worlds]

    # -- calls -------------------------------------------------------------------------------------------------------

    def ask(self, call: Call) -> None:
        """Somebody makes a call."""
        for other in self.open.values():
            other.alone = call.alone = False
            other.beside_put |= call.puts
            call.beside_put |= other.puts
        self.open[call.id] = call
        self.is_blurred |= len(self.open) > MOST_OPEN

    def drop(self, call: Call) -> None:
        """It was refused before anything was done."""
        self.open.pop(call.id, None)
        if not self.is_blurred:
            self._keep({world for world in self.worlds if world.event_of(call) is None}, f"{call} was refused")

    def answer(self, call: Call, now: int, fits: Fits, told: object, *, uses: bool = True) -> set[State | None]:
        """It was answered, with what `fits`. Return what the consumer may have been before it. Raises Broken. A call
        that `uses` it has its ttl begin again."""
        self.open.pop(call.id, None)
        if self.is_blurred:
            return set()
        found: set[_World] = set()
        before: set[State | None] = set()
        for world in self._orders(now, call):
            event = world.event_of(call)
            if event is None:
                continue
            for state in fits(event.kind, event.before, event.after):
                found.add(world.answered(event, state, self._promise(call, event)))
                before.add(event.before)
        self._keep(found, told)
        self.is_expiring |= any(self._is_over(state, now) for state in before)
        if uses and before != {None}:
            self.used = max(self.used, call.asked)
        return before

    def _is_over(self, state: State | None, now: int) -> bool:
        """Whether it may be gone because nobody has used it."""
        return state is not None and state.ttl_ms > 0 and (self.is_expiring or now - self.used > state.ttl_ms)

    def _promise(self, call: Call, event: _Event) -> Promise:
        if call.synced and event.before != event.after:
            return Promise.ALL
        return promise_of_consumers(call.classes | self.of.instance.classes)

    def _keep(self, worlds: set[_World], told: object) -> None:
        if not worlds:
            broken(
                f"{self.of.instance.name}/{self.name} ({'/'.join(sorted(self.of.instance.ever))}): no order explains"
                f" {told}\n  it was {self.states}\n  open are {list(self.open)}"
            )
        self.worlds = worlds
        self.is_blurred |= len(worlds) > MOST_WORLDS

    def _orders(self, now: int, call: Call | None = None) -> Iterator[_World]:
        """Every world that calls without an answer may make of those that are known. Where `call` has happened nothing
        else has to."""
        calls = [*self.open.values(), *([call] if call is not None else [])]
        done: set[_World] = set()
        left = list(self.worlds)
        while left:
            world = left.pop()
            if world in done:
                continue
            done.add(world)
            yield world
            if call is None or world.event_of(call) is None:
                left += self._next(world, calls, now)

    def _next(self, world: _World, calls: list[Call], now: int) -> Iterator[_World]:
        state = world.states[-1]
        if self._is_over(state, now):
            yield world.went_on(None, None)
        happened = {event.call for event in world.events}
        for call in calls:
            waits = call.after is not None and call.after.id in self.open and call.after.id not in happened
            if call.id not in happened and not waits:
                for kind, after in call.outcomes(state):
                    yield world.went_on(after, (call.id, kind))

    # -- restarts ----------------------------------------------------------------------------------------------------

    def judge(self, shown: Seen | None, fate: Fate, now: int) -> None:
        """What a recovery shows of it. Raises Broken."""
        if not self.is_blurred and not self._shown(shown, fate, now):
            broken(
                f"{self.of.instance.name}/{self.name} after {fate} ({'/'.join(sorted(self.of.instance.ever))}): is"
                f" {shown}, and was {[world.states[0 if fate == 'machine' else world.kill :] for world in self.worlds]}"
                f"\n  open are {list(self.open)}"
            )

    def _shown(self, shown: Seen | None, fate: Fate, now: int) -> list[State | None]:
        """The states that it may be in which fit what is shown."""
        found: list[State | None] = []
        known = self.worlds
        for world in known:
            first = {"stop": len(world.states) - 1, "kill": world.kill, "machine": 0}[fate]
            self.worlds = {world}
            for later in self._orders(now):
                for state in later.states[first:]:
                    found += [state] if shown is None and state is None else shown.fits(state) if shown else []
        self.worlds = known
        return found

    def restarted(self, shown: Seen | None, fate: Fate, now: int, *, clock_moved: bool) -> None:
        """A new life begins with this."""
        state: State | None = None
        if shown is not None:
            fitting = [] if self.is_blurred else self._shown(shown, fate, now)
            leases = [self.of.leases[one.lease] for one in fitting if one is not None and one.lease in self.of.leases]
            lease = self.of.new_id()
            earliest = min((earliest for earliest, _ in leases), default=0)
            latest = max((latest for _, latest in leases), default=ANY)
            self.of.leases[lease] = (0, ANY) if clock_moved else (earliest, latest)
            state = State(
                shown.seq, shown.seq, shown.owner, shown.generation, shown.generation, lease, shown.filter, shown.ttl_ms
            )
            self.of.highest = max(self.of.highest, shown.generation)
        self.worlds = {_World((state,), 0, frozenset())}
        self.open.clear()
        self.is_blurred = self.is_expiring = False
        self.used = now


@dataclass(eq=False)
class TopicConsumers:
    """The consumers of one topic."""

    instance: Instance
    known: dict[str, KnownConsumer] = field(default_factory=dict)
    leases: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the call that began it: the earliest and the latest end, by a clock that no step moves, ms."""
    highest: int = 0
    """The highest generation that anybody was told of. Consumers that get owners at the same time may get the same."""
    now: int = 0
    """By the clock of the leases, when something was asked or answered last."""
    goes_back: bool = False
    """Somebody has asked for a position below which something may be gone."""
    _ids: int = 0

    def new_id(self) -> int:
        """Of a call."""
        self._ids += 1
        return self._ids

    def named(self, name: str, now: int) -> KnownConsumer:
        """The consumer of a name."""
        if name not in self.known:
            self.known[name] = KnownConsumer(self, name, now)
        return self.known[name]

    def acquire(self, id_: int, owner: str, lease_ms: int) -> Callable[[State | None], list[Outcome]]:
        """The outcomes of a call: `owner` is to have a consumer from now on, and for so long."""
        first, asked = self.highest + 1, self.now
        self.leases[id_] = (asked + lease_ms, ANY)

        def outcomes(state: State | None) -> list[Outcome]:
            if state is None:
                return [("absent", None)]
            if state.owner == owner:
                return [("renewed", state._replace(lease=id_))]
            earliest, latest = self.leases.get(state.lease, (0, ANY))
            found: list[Outcome] = []
            if state.owner is None or self.now > earliest:
                found.append(("granted", state._replace(owner=owner, first=first, last=ANY, lease=id_)))
            if state.owner is not None and asked <= latest:
                found.append(("owned", state))
            return found

        return outcomes

    def granted(self, call: int, generation: int, until: int) -> None:
        """Somebody was given a generation, or was told again that it is theirs. The lease is over at `until`, at the
        latest."""
        self.highest = max(self.highest, generation)
        self.leases[call] = (self.leases[call][0], until)

    def note(self, head: int) -> None:
        """Something is asked, or was answered: what every consumer may have passed may be deleted now. `head` is that
        of the topic."""
        if not any(config.retention == "consumed" for config in self.instance.options):
            return
        sure: list[int] = []
        possible: list[int] = []
        for known in self.known.values():
            states = known.states
            highs = [state.high for state in states if state is not None]
            highs += [call.most for call in known.open.values()]
            high = ANY if known.is_blurred else max(highs, default=-1)
            ends = known.is_blurred or any(call.ends for call in known.open.values())
            if high >= 0:
                ends = ends or any(state is None or state.ttl_ms for state in states)
                (possible if ends else sure).append(high)
        floor = min(sure, default=max(possible, default=0))
        self.instance.consumed_to = max(self.instance.consumed_to, min(floor, head))

    def judge(self, shown: Mapping[str, Seen], view: View, fate: Fate, now: int) -> None:
        """What a recovery shows of them. Raises Broken."""
        head = view.head
        self.note(head)
        self.judge_salvaged(shown, head)
        for name, known in self.known.items():
            known.judge(shown.get(name), fate, now)
        lowest = min((one.seq for one in shown.values()), default=head)
        if self.goes_back or not self.instance.consumed_to:
            return
        for seq in range(lowest + 1, head + 1):
            there = seq in view.records or view.gap_of(seq) is not None
            if not there and seq in self.instance.at and not self.instance.may_be_deleted(seq, consumed=False):
                broken(f"{self.instance.name}: seq {seq} is gone, and {shown} have yet to finish it")

    def judge_salvaged(self, shown: Mapping[str, Seen], head: int) -> None:
        """What a start shows of them behind damage of the log, from which more may be lost. Raises Broken."""
        for name, one in shown.items():
            if name not in self.known:
                broken(f"{self.instance.name}/{name} is there, and nobody has made it: {one}")
            if one.seq > head:
                broken(f"{self.instance.name}/{name} is at {one.seq}, beyond the head {head}")

    def restarted(self, shown: Mapping[str, Seen], fate: Fate, now: int, *, clock_moved: bool) -> None:
        """A new life begins with these."""
        for name, known in self.known.items():
            known.restarted(shown.get(name), fate, now, clock_moved=clock_moved)


def promise_of_consumers(classes: Iterable[str]) -> Promise:
    """What is promised of a position that was told while the topic had one of these classes: on `ephemeral` topics it
    is synced, as their config is."""
    return promise_of({"fsync" if one == "ephemeral" else one for one in classes})


# ----------------------------------------------------------------- what calls come to


def passes(state: State, generation: int | None) -> list[State]:
    """The state if a caller with this generation may move the consumer, and what is known of it then."""
    if generation is None:
        return [state] if state.owner is None else []
    return state.narrowed(state.low, generation) and [state._replace(first=generation, last=generation)]


def put(start: tuple[int, int], ttl_ms: int | None, kept: str | None, *, keeps: bool) -> Callable[..., list[Outcome]]:
    """A consumer exists; a new one is somewhere from `start[0]` to `start[1]`."""

    def outcomes(state: State | None) -> list[Outcome]:
        if state is None:
            new = State(*start, None, 0, 0, 0, None if keeps else kept, ttl_ms or 0)
            return [("created", new)]
        changed = state._replace(
            filter=state.filter if keeps else kept, ttl_ms=state.ttl_ms if ttl_ms is None else ttl_ms
        )
        return [("there", changed)]

    return outcomes


def move(low: int, high: int, generation: int | None, *, seeks: bool) -> Callable[..., list[Outcome]]:
    """It is moved to somewhere from `low` to `high`: forward only, or anywhere."""

    def outcomes(state: State | None) -> list[Outcome]:
        if state is None:
            return [("absent", None)]
        found: list[Outcome] = []
        for one in passes(state, generation):
            if seeks:
                found += [("moved", one.at(low, high))] if not one.low == one.high == low == high else []
                found += [("stayed", one.at(max(one.low, low), min(one.high, high)))] * overlap(one, low, high)
            else:
                found += [("moved", one.at(low, low))] * (one.low < low)
                found += [("stayed", one.at(max(one.low, low), one.high))] * (one.high >= low)
        exact = generation is not None and state.first == state.last
        if not found or (generation is not None and not exact):
            found.append(("fenced", state))
        return found

    return outcomes


def overlap(state: State, low: int, high: int) -> bool:
    """Whether it may be there already."""
    return max(state.low, low) <= min(state.high, high)


def beyond(generation: int | None) -> Callable[..., list[Outcome]]:
    """It is to be moved beyond the head."""

    def outcomes(state: State | None) -> list[Outcome]:
        if state is None:
            return [("absent", None)]
        return [("beyond", one) for one in passes(state, generation)] or [("fenced", state)]

    return outcomes


def other_epoch(_state: State | None) -> list[Outcome]:
    """It is meant for another topic of that name."""
    return [("fenced", _state)]


def release(generation: int) -> Callable[..., list[Outcome]]:
    """A generation is over."""

    def outcomes(state: State | None) -> list[Outcome]:
        if state is None:
            return [("absent", None)]
        owned = passes(state, generation) if state.owner is not None else []
        found: list[Outcome] = [("released", one._replace(owner=None)) for one in owned]
        return found if found and state.first == state.last else [*found, ("kept", state)]

    return outcomes


def delete(state: State | None) -> list[Outcome]:
    """It is gone."""
    return [("nothing", None) if state is None else ("deleted", None)]


def look(state: State | None) -> list[Outcome]:
    """Nothing is changed."""
    return [("absent", None) if state is None else ("state", state)]


def read_before(generation: int | None) -> Callable[..., list[Outcome]]:
    """It is moved behind what a read has found."""

    def outcomes(state: State | None) -> list[Outcome]:
        if state is None:
            return [("absent", None)]
        found: list[Outcome] = [("read", one.at(one.low, ANY)) for one in passes(state, generation)]
        exact = generation is not None and state.first == state.last
        return found if found and (generation is None or exact) else [*found, ("fenced", state)]

    return outcomes
