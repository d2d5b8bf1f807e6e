"""One machine of a simulation of several: its clock runs at a rate of its own, its disk is a `SimFs`, and its requests
may be lost on their way to the store, come late, or be answered in vain.

A *step* is an operation that changes the disk, or a call of the store; a call that changes something is two steps, one
before and one behind its effect. A process can be killed at a step of a given number: alone, or with the machine, of
which what was not synced is gone then. From that moment on no operation of the process has any effect (`SimCrash`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import trio

from tests.bucket.simulated_objects import SimFault, SimObjects
from tests.simulation.clock import SimClock
from tests.simulation.disk import Op, SimCrash, SimFs
from tests.simulation.disk_state import CRASH_KINDS
from tests.simulation.offload import InlineOffload
from tests.simulation.world import End, disk_after
from topics.bucket.object_names import OWNER
from topics.bucket.object_store import ObjectData, ObjectFacts, StoreError, StoreErrorKind
from topics.bucket.ownership.owner_object import LeaseTerms
from topics.runtime.offload import BUCKET

Death = Literal["kill", "drop", "keep", "tear", "reorder", "garble", "loss"]
"""How a process ends: alone, with its machine (what was not synced is gone, in one of several ways), or with its disk,
too."""
DEATHS: Final[tuple[Death, ...]] = ("kill", *CRASH_KINDS, "loss")

FAULTS: Final = (
    SimFault.BEFORE,
    SimFault.AFTER,
    SimFault.AFTER,
    SimFault.LATE,
    SimFault.LATE,
    SimFault.CONFLICT,
    SimFault.WRONG,
    SimFault.THROTTLED,
)
"""What goes wrong with a call of a bad connection. A late request may come when its sender has been dead for long."""

EXTRA_TURNS: Final = 0.2
"""How often a call takes another turn of the scheduler before it begins, and after it has ended."""

CHANGES: Final = ("put_new", "put_if", "delete")


class KillPoint(NamedTuple):
    """A process is killed at the `left`th step from now on."""

    left: int
    death: Death


class NodeClock(SimClock):
    """A clock that runs at a rate of its own, and shows another time than those of others."""

    def __init__(self, rate: float, offset_ms: int) -> None:
        super().__init__(up_ms=offset_ms)
        self.step(offset_ms)
        self.rate = rate

    def perf_ns(self) -> int:
        return int(super().perf_ns() * self.rate)

    def reboot(self) -> None:
        """The machine is started again: the clock of its boot begins at 0."""
        self._up_ms = -self.monotonic_ms()


class Machine:
    """One machine, over all its processes. `told` is called with each round that it sends."""

    def __init__(
        self, name: str, objects: SimObjects, seed: int, rate: float, told: Callable[[Machine, bytes], None]
    ) -> None:
        self.name = name
        self.seed = seed
        self.random = random.Random(f"{name} {seed}")
        self.clock = NodeClock(rate, self.random.randrange(10**9))
        self.objects = objects
        self.is_cut_off = False
        self.is_starved = self.is_deaf = False
        """True if no renewal of its lease arrives, or no answer to one; all other calls are good."""
        self.latency_s = 0.0
        """How long a request, and an answer, may be on its way (s)."""
        self.bad_calls = 0.0
        """The share of calls with which something goes wrong."""
        self.kill_point: KillPoint | None = None
        self.steps: list[str] = []
        """Every step, for those who count them."""
        self.keeps_steps = False
        self.process = 0
        """Which process of this machine is the present one."""
        self.kills = 0
        self.heads: dict[int, int] | None = None
        """Up to which seq each topic went when this machine took its last cut; None if that is not known."""
        self.is_cut_whole: Callable[[], bool] = lambda: True
        """Returns True if the last cut has all that was queued: no shard has failed."""
        self.told = told
        self._fs: SimFs | None = None
        self._scope = trio.CancelScope()
        self._resumed = trio.Event()
        self._resumed.set()
        self._up = trio.Event()
        self._up.set()

    # -- processes ---------------------------------------------------------------------------------------------------

    async def started(self, scope: trio.CancelScope) -> None:
        """Begin a process, when the machine is up."""
        await self._up.wait()
        self._scope = scope
        self.process += 1

    def disk(self) -> SimFs:
        """Return the disk as the present process finds it; a new one if there is none."""
        if self._fs is None:
            self._fs = SimFs(self.random.getrandbits(32))
        fs = self._fs
        if not fs._subscribers:
            process = self.process

            def change(op: Op) -> None:
                if op.mutation is not None and process == self.process:
                    self.step(f"{op.name} {op.path} {op.detail}")

            fs.subscribe(change)
        return fs

    def forget_disk(self) -> None:
        """The operator moves the directory aside."""
        self._fs = None

    def end_process(self) -> None:
        """The process has ended by itself. Its successor finds the disk as it is."""
        if self._fs is not None:
            self._fs = self._fs.after_process_kill()
        self.process += 1

    def step(self, what: str) -> None:
        """Note a step, and kill the process if it is due. Raises SimCrash."""
        if self.keeps_steps:
            self.steps.append(what)
        if self.kill_point is not None:
            left, death = self.kill_point
            self.kill_point = KillPoint(left - 1, death)
            if left <= 0:
                self.kill(death)
                raise SimCrash(f"{self.name} was killed before {what}")

    def kill(self, death: Death) -> None:
        """End the process now, or the machine."""
        self.kill_point = None
        self.kills += 1
        self.process += 1
        before, self._fs = self._fs, None
        if before is not None and not before.dead:
            if death != "loss":
                end: End = death
                self._fs = disk_after(before, end, self.random.getrandbits(32))
            before.dead = True
        if death != "kill":
            self.clock.reboot()
        self.heads = None
        self.resume()
        self._scope.cancel()

    def take_down(self) -> None:
        """Have no process begin until `bring_up`."""
        if self._up.is_set():
            self._up = trio.Event()

    def bring_up(self) -> None:
        """A process may begin."""
        self._up.set()

    @property
    def is_down(self) -> bool:
        """Return True if no process may begin."""
        return not self._up.is_set()

    # -- pauses ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self._resumed.is_set():
            self._resumed = trio.Event()

    def resume(self) -> None:
        self._resumed.set()

    @property
    def is_paused(self) -> bool:
        return not self._resumed.is_set()

    async def unpaused(self) -> None:
        await self._resumed.wait()

    def heal(self) -> None:
        """From here on nothing happens to it."""
        self.is_cut_off = self.is_starved = self.is_deaf = False
        self.bad_calls, self.kill_point = 0.0, None
        self.resume()
        self.bring_up()


class MachineObjects:
    """The store as one process of a machine reaches it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._process = machine.process

    def _call(self, op: str, name: str, *args: Any) -> Any:
        machine = self._machine
        if self._process != machine.process:
            raise SimCrash(f"this process of {machine.name} has ended")
        machine.step(f"{op} {name}")
        renews = name == OWNER and op == "put_if"
        if machine.is_cut_off or (machine.is_starved and renews) or (machine.is_deaf and (op, name) == ("get", OWNER)):
            raise StoreError(StoreErrorKind.UNAVAILABLE, "cut off")
        if op == "put_new" and name.startswith("rounds/"):
            machine.told(machine, args[0])
        store, fault = machine.objects, None
        if machine.bad_calls and machine.random.random() < machine.bad_calls:
            fault = machine.random.choice(FAULTS)
        if machine.is_deaf and renews:
            fault = SimFault.AFTER
        store.faults = lambda _op, _name: fault
        found = getattr(store, op)(name if op != "delete" else name.split(","), *args)
        if op in CHANGES:
            machine.step(f"answer to {op} {name}")
        return found

    def put_new(self, name: str, data: bytes) -> str:
        return str(self._call("put_new", name, data))

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        return str(self._call("put_if", name, data, etag))

    def get(self, name: str, max_bytes: int) -> ObjectData:
        found: ObjectData = self._call("get", name, max_bytes)
        return found

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self._call("get_range", name, offset, length))

    def head(self, name: str) -> ObjectFacts:
        found: ObjectFacts = self._call("head", name)
        return found

    def delete(self, names: Sequence[str]) -> None:
        self._call("delete", ",".join(names))

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ObjectFacts]:
        return list(self._call("list", prefix, after, limit))


class MachineOffload(InlineOffload):
    """Worker threads that stand still while the machine is paused. `terms` is how its process holds a lease."""

    def __init__(self, machine: Machine, terms: Callable[[], LeaseTerms]) -> None:
        super().__init__(machine.seed)
        self.machine = machine
        self.terms = terms
        self.objects = MachineObjects(machine)

    async def perform(self, kind: Any, call: Callable[[], Any]) -> Any:
        machine = self.machine
        if machine.is_paused:
            await machine.unpaused()
        on_way = kind in BUCKET and machine.latency_s and machine.random.random() < 0.5
        if on_way:
            await trio.sleep(machine.random.uniform(0, machine.latency_s))
        try:
            return await super().perform(kind, call)
        finally:
            with trio.CancelScope(shield=True):
                if on_way:
                    await trio.sleep(machine.random.uniform(0, machine.latency_s))
                if machine.is_paused:
                    await machine.unpaused()

    async def _turns(self) -> None:
        """Most calls take one turn of the scheduler: there are enough tasks that come between."""
        if self.machine.random.random() < EXTRA_TURNS:
            await trio.lowlevel.cancel_shielded_checkpoint()
