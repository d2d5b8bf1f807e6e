"""What all lives have in common that are crashed everywhere and judged: those with segments, with routers, with queues.

A `Sweep` runs lives on one machine, collects their wrecks, and has each of them judged in given ways. What a life is,
and what a recovery has to show, its subclasses know.

Clients write down in a `History` what they asked for (`Asked`), what they read, and what a restart showed; an `Oracle`
takes the first part of that and folds it into what is known of each topic (`Instance`), as of the crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from tests.simulation.disk import SimFs
from tests.simulation.model import Fate, Record, View
from tests.simulation.world import End, Life, World, Wreck, some_ends, wrecks_of
from topics.config import Settings
from topics.log.tag_match import TagMatch
from topics.model import RecordIn, TopicConfig

CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")
TAGS: Final = (None, "a", "b", "ab")

Ends = Callable[[int], list[tuple[End, int]]]
"""The ways to end at a point."""


def end_steps(life: Life) -> None:
    """The process is about to be killed: a step that is taken while its tasks are unwound would start another one."""
    life.engine.status.phase = "draining"


# ----------------------------------------------------------------- the sweep


@dataclass(frozen=True, slots=True)
class Point:
    """A wreck, and the settings that the next start has."""

    wreck: Wreck
    config: Settings
    before: Fate
    """How the life before it ended, if it is of a recovery that has not been seen to be complete; "stop" otherwise."""

    def fate(self, end: End) -> Fate:
        """What has happened since somebody looked."""
        return "machine" if self.before == "machine" or end != "kill" else "kill"


class Sized(Protocol):
    """A history, as far as a sweep cares."""

    def __len__(self) -> int: ...


HistoryT = TypeVar("HistoryT", bound=Sized)
ClientT = TypeVar("ClientT")
OracleT = TypeVar("OracleT")


class Sweep(ABC, Generic[HistoryT, ClientT, OracleT]):
    """One machine through one or several lives, and the judgement of every wreck of them."""

    def __init__(self, config: Settings, seed: int, history: HistoryT) -> None:
        self.config = config
        self.seed = seed
        self.history = history
        self.world = World(seed, config=config)
        self.points: list[Point] = []
        self.judged = 0
        self._fate: Fate = "stop"
        self._oracles: dict[int, OracleT] = {}

    # -- what subclasses know ----------------------------------------------------------------------------------------

    @abstractmethod
    def client(self, life: Life) -> ClientT:
        """Whom a script of a life is given."""

    @abstractmethod
    def make_oracle(self, known: int) -> OracleT:
        """What was known when the history was so long."""

    @abstractmethod
    async def begin(self, life: Life, fate: Fate) -> None:
        """Write down what a life shows that follows one with this end."""

    @abstractmethod
    def check_said(self, world: World) -> None:
        """Fail if the daemon has complained of what no crash explains."""

    @abstractmethod
    def recover(self, world: World) -> object:
        """Recover, look, and be killed."""

    @abstractmethod
    def judge_world(self, world: World, oracle: OracleT, fate: Fate, second: End, *args: Any, **kwargs: Any) -> None:
        """Recover a machine as its next start finds it, and check everything about it; another start, of which there
        may be several, follows the end `second`. Counts it as judged."""

    # -- lives -------------------------------------------------------------------------------------------------------

    def live(
        self,
        script: Callable[[Life, ClientT], Awaitable[None]],
        *,
        stride: int = 1,
        end: Any = "kill",
        collect: bool = True,
        config: Settings | None = None,
        following: Settings | None = None,
    ) -> None:
        """Run a life and collect its wrecks; the next one goes on from how it ended.

        `config` are its settings, `following` those of the starts that wrecks are given.
        """
        if config is not None:
            self.config = self.world.settings = config
        wrecks = wrecks_of(self.world, lambda: len(self.history), stride=stride) if collect else []
        begun = len(self.history)

        async def scenario(life: Life) -> None:
            if begun:
                await self.begin(life, self._fate)
            await script(life, self.client(life))
            if end != "stop":
                end_steps(life)

        assert self.world.live(scenario, end="stop" if end == "stop" else "kill")
        self.check_said(self.world)
        assert self.world.fs.open_files == 0
        self.points += [
            Point(wreck, following or self.config, self._fate if wreck.known == begun else "stop") for wreck in wrecks
        ]
        self._fate = "stop" if end == "stop" else "kill" if end == "kill" else "machine"
        self.world = self.world.after("kill" if end == "stop" else end)

    def live_at_random(
        self, script: Callable[[int], Callable[[Life, ClientT], Awaitable[None]]], *, stride: int, **how: Any
    ) -> None:
        """One to three lives of random scripts, ended in one way or another: the seed says which."""
        for life in range(1 + self.seed % 3):
            end = ("kill", "stop", "drop", "garble", "reorder")[(self.seed // 3) % 5]
            self.live(script(10 * self.seed + life), stride=stride, end=end, **how)

    def machine(self, seed: int, config: Settings | None = None) -> World:
        """The machine as the last life has left it, to go on in other ways with as often as one likes."""
        clock = self.world.clock
        return World(
            seed, config=config or self.config, fs=self.world.fs, now_ms=clock.now_ms(), up_ms=clock.boottime_ms()
        )

    # -- judging -----------------------------------------------------------------------------------------------------

    def oracle(self, known: int) -> OracleT:
        """What was known then."""
        if known not in self._oracles:
            self._oracles[known] = self.make_oracle(known)
        return self._oracles[known]

    def oracle_now(self) -> OracleT:
        """What is known."""
        return self.oracle(len(self.history))

    def judge(
        self, point: Point, end: End, seed: int, *, hurt: Callable[[SimFs], None] | None = None, **how: Any
    ) -> None:
        """Recover a wreck and check everything about it. `hurt` does something to the disk first."""
        world = point.wreck.world(end, seed, point.config)
        if hurt is not None:
            hurt(world.fs)
        second: End = "kill" if seed % 2 else "drop"
        self.judge_world(world, self.oracle(point.wreck.known), point.fate(end), second, **how)

    def judge_all(self, ends: Ends, how: Callable[[int], dict[str, Any]] = lambda number: {}, **always: Any) -> int:
        """Judge every wreck in every given way; how many that were. What one is judged with besides is said by `how` of
        a number that another wreck and another seed change."""
        problems: list[str] = []
        for i, point in enumerate(self.points):
            for end, seed in ends(point.wreck.point):
                more = how(i + seed)
                try:
                    self.judge(point, end, seed, **more, **always)
                except Exception as error:
                    problems.append(f"{point.wreck}, {end}/{seed}, {more}: {type(error).__name__}: {error}")
        said = "\n\n".join(problems[:5])
        assert not problems, f"{len(problems)} of {self.judged + len(problems)} wrecks: {said}"
        return self.judged

    def judge_in_recovery(self, point: Point, ends: Ends, *, stride: int) -> None:
        """Recover a wreck, crash in the middle of that, and check everything then."""
        for first_end, first_seed in ends(point.wreck.point):
            world = point.wreck.world(first_end, first_seed, point.config)
            inner = wrecks_of(world, lambda: 0, stride=stride, first=point.wreck.point)
            self.recover(world)
            for wreck in inner:
                for end, seed in ends(point.wreck.point + wreck.point):
                    fate: Fate = "machine" if end != "kill" else point.fate(first_end)
                    second = wreck.world(end, seed, point.config)
                    try:
                        self.judge_world(second, self.oracle(point.wreck.known), fate, "drop")
                    except Exception as error:
                        label = f"{point.wreck}, {first_end}/{first_seed}; then {wreck}, {end}/{seed}"
                        raise AssertionError(f"{label}: {type(error).__name__}: {error}") from error

    def judge_recoveries(self, *, stride: int) -> None:
        """The same for every wreck, each time with one end of each kind that is picked."""
        for point in self.points:
            self.judge_in_recovery(point, lambda number: some_ends(number, 1), stride=stride)

    def __str__(self) -> str:
        return f"{len(self.points)} points, {self.judged} crashes judged"


# ----------------------------------------------------------------- what clients write down


@dataclass(slots=True)
class Asked:
    """A request and its answer. Times are counts of what has been written down."""

    kind: str
    name: str
    at: int
    patch: dict[str, Any] = field(default_factory=dict)
    records: tuple[RecordIn, ...] = ()
    numbers: tuple[int, ...] = ()
    before: int | None = None
    match: TagMatch | None = None
    answered: int | None = None
    """When it was answered."""
    first: int = 0
    epoch: int = 0
    config: TopicConfig | None = None

    def selects(self, seq: int, tag: str | None) -> bool:
        """Whether a deletion is about a record."""
        return (self.before is None or seq < self.before) and (self.match is None or self.match.matches(tag))


class Dated(Protocol):
    """What somebody has written down."""

    at: int


class Viewed(Dated, Protocol):
    """A full read."""

    view: View


AskedT = TypeVar("AskedT", bound=Asked)
SawT = TypeVar("SawT", bound=Viewed)
BeganT = TypeVar("BeganT", bound=Dated)


class History(Generic[AskedT, SawT, BeganT]):
    """What all clients have written down."""

    def __init__(self) -> None:
        self.asked: list[AskedT] = []
        self.saw: list[SawT] = []
        self.began: list[BeganT] = []
        self._now = 0
        self._number = 0

    def __len__(self) -> int:
        return self._now

    def tick(self) -> int:
        """The time of the next thing."""
        self._now += 1
        return self._now - 1

    def number(self) -> int:
        """A number that no other record has."""
        self._number += 1
        return self._number


# ----------------------------------------------------------------- what is known


class Instance(Generic[AskedT]):
    """One topic from its creation to its deletion, as far as clients know."""

    def __init__(self, name: str, created: AskedT) -> None:
        self.name = name
        self.created = created
        self.epoch = 0
        self.deletion: AskedT | None = None
        self.deleted = False
        self.configs: list[TopicConfig] = []
        """All that it may ever have had."""
        self.options: list[TopicConfig] = []
        """What it may have now."""
        self.seen: dict[int, Record] = {}
        self.hard: set[int] = set()
        """Seqs that no crash may take."""
        self.gone: set[int] = set()
        """Seqs that may never be live again."""
        self.head = 0
        self.deletes: list[AskedT] = []
        self.volatile = False
        """It was or may become ephemeral since somebody last made sure of it."""

    @property
    def classes(self) -> set[str]:
        """Every class it may ever have had."""
        return {config.durability for config in self.configs}

    @property
    def now_classes(self) -> set[str]:
        """Every class it may have now."""
        return {config.durability for config in self.options}

    @property
    def retained(self) -> bool:
        """Whether caps or ttl may have taken something."""
        return any(config.cap_records or config.cap_bytes or config.ttl_ms for config in self.configs)

    def survives(self, fate: Fate) -> bool:
        """Return True if everything in it survives such an end, in every class that it may have now."""
        return self.classes == {"fsync"} or (fate == "kill" and self.classes <= {"disk", "fsync"})

    def release(self) -> None:
        """It may have become ephemeral: a restart may take everything."""
        self.hard.clear()
        self.volatile = True

    def reconfigure(self, patch: dict[str, Any]) -> None:
        """A change of its config was asked for."""
        before = self.options[-1] if self.options else TopicConfig()
        changes = dict(patch)
        if "durability" in changes:
            changes["durable"] = changes["durability"] == "fsync"
        wanted = msgspec.structs.replace(before, **changes)
        self.configs.append(wanted)
        self.options.append(wanted)
        if wanted.durability == "ephemeral":
            self.release()

    def configured(self, asked: AskedT) -> bool:
        """It was done. Whether that was a barrier: everything from before it is on disk then; what was asked for
        meanwhile may be on either side."""
        assert asked.config is not None
        self.epoch = asked.epoch
        changes_class = len(self.now_classes) > 1
        self.options = [asked.config]
        if not changes_class or asked.config.durability == "ephemeral":
            return False
        self.volatile = False
        return True

    def appended(self, asked: AskedT) -> None:
        """An append was answered."""
        last = asked.first + len(asked.numbers) - 1
        self.head = max(self.head, last)
        if self.classes == {"fsync"}:
            self.hard.update(range(asked.first, last + 1))

    def note(self, view: View) -> None:
        """This was seen: no record has ever been another one."""
        for seq, record in view.records.items():
            known = self.seen.setdefault(seq, record)
            assert known == record, f"{view.name}: seq {seq} was {known} and is {record}"
        self.head = max(self.head, view.head)

    def restarted(self, view: View) -> bool:
        """A life has begun with this; False if it is of another instance."""
        if self.epoch and view.epoch != self.epoch:
            return False
        self.epoch = view.epoch
        self.options = [view.config]
        self.volatile = view.config.durability == "ephemeral"
        self.deletion = None
        self.note(view)
        self.gone.update(seq for seq in range(1, view.head + 1) if seq not in view.records)
        self.hard = set() if self.volatile else set(view.records)
        return True


InstanceT = TypeVar("InstanceT", bound=Instance[Any])


class Oracle(ABC, Generic[AskedT, SawT, BeganT, InstanceT]):
    """The first `known` things of a history, and what they allow."""

    def __init__(self, history: History[AskedT, SawT, BeganT], known: int) -> None:
        self.instances: dict[str, list[InstanceT]] = {}
        self.of_number: dict[int, tuple[AskedT, int]] = {}
        """The append of each record, and its place in that."""
        self.known = known
        steps: list[tuple[int, Callable[[Any], None], Any]] = []
        for asked in history.asked:
            steps.append((asked.at, self._sent, asked))
            if asked.answered is not None:
                steps.append((asked.answered, self._answered, asked))
        steps += [(saw.at, self._saw, saw) for saw in history.saw]
        steps += [(began.at, self._began, began) for began in history.began]
        for at, fold, what in sorted(steps, key=lambda step: step[0]):
            if at < known:
                fold(what)

    @abstractmethod
    def _sent(self, asked: AskedT) -> None: ...

    @abstractmethod
    def _answered(self, asked: AskedT) -> None: ...

    @abstractmethod
    def _saw(self, saw: SawT) -> None: ...

    @abstractmethod
    def _began(self, began: BeganT) -> None: ...

    def instance(self, name: str) -> InstanceT:
        """The newest instance of a topic."""
        return self.instances[name][-1]

    def is_answered(self, asked: AskedT) -> bool:
        """Whether it was answered by then."""
        return asked.answered is not None and asked.answered < self.known

    def judge_existence(self, instance: InstanceT, view: View | None) -> bool:
        """A topic is there, and is the one that was made; or was not made, or was deleted. Whether it is there."""
        name = instance.name
        if view is None:
            made = self.is_answered(instance.created)
            assert not made or instance.deletion is not None, f"{name} was created and is not there"
            return False
        assert not instance.deleted, f"{name} was deleted and is there"
        assert not instance.epoch or view.epoch == instance.epoch, f"{name} is another instance"
        return True


class Case(ABC, Generic[AskedT, InstanceT]):
    """One topic after one recovery."""

    def __init__(self, of_number: dict[int, tuple[AskedT, int]], instance: InstanceT, view: View, fate: Fate) -> None:
        self.of_number = of_number
        self.instance = instance
        self.view = view
        self.fate = fate

    def describe(self, problem: str, more: Sequence[str]) -> str:
        """A problem with what is needed to understand it."""
        view = self.view
        there = {seq: record.data for seq, record in view.records.items()}
        lines = [
            f"{view.name} after {self.fate} ({'/'.join(sorted(self.instance.classes))}): {problem}",
            f"head {view.head} earliest {view.earliest} count {view.count} gaps {view.gaps}",
            f"records {there}",
        ]
        return "\n  ".join([*lines, *more])

    @abstractmethod
    def says(self, problem: str, seq: int = 0) -> str:
        """The same with what this kind of lives adds to it, of one seq above all."""

    def check_figures(self) -> None:
        """`count`, `bytes` and `earliest_seq` are what a full read shows."""
        view = self.view
        sizes = 0
        for record in view.records.values():
            assert record.data in self.of_number, self.says(f"nobody has appended {record.body}")
            asked, i = self.of_number[record.data]
            meta = msgspec.json.decode(record.body).get("meta")
            sizes += len(asked.records[i].data) + (len(msgspec.json.encode(meta)) if meta else 0)
        assert view.count == len(view.records), self.says("count is not what a read shows")
        assert view.bytes == sizes, self.says(f"bytes is {view.bytes}, a read shows {sizes}")
        assert view.earliest == min(view.records, default=view.head + 1), self.says("earliest_seq is not the first")
        assert view.head >= self.instance.head, self.says(f"seqs up to {self.instance.head} were seen")

    def required(self, seq: int, *, known: bool) -> bool:
        """Whether a record that is `known` to somebody, or not, must be there."""
        instance = self.instance
        if seq in instance.hard:
            return True
        if "ephemeral" in instance.now_classes or instance.volatile:
            return False
        return known and instance.survives(self.fate)
