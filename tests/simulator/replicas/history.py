"""One history of several daemons over one bucket: what happens to them, and the end, when all of it is over and
everything that was acked has to be there, at the owner and at each standby."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import trio
import trio.testing

from tests.bucket.simulated_objects import SimObjects
from tests.simulation.world import _seed_trio
from tests.simulator.replicas.clients import OTHER, QUEUE, REMOTE, SECOND, Clients
from tests.simulator.replicas.judge import Judge, Place
from tests.simulator.replicas.machine import KillPoint, Machine
from tests.simulator.replicas.nodes import Node, StandbyNode
from tests.simulator.replicas.plan import Event, Plan, Whom
from tests.simulator.replicas.surroundings import simulated
from topics.bucket.archive import ArchiveStopped
from topics.errors import ApiError

CLIENTS: Final = 2

END_S: Final = 90.0
"""When nothing happens any more, there has to be an owner, and standbys have to be current, within this time (s)."""

OWNER_S: Final = 60.0
"""An event waits so long for an owner (s)."""

Script = Callable[["History"], Awaitable[None]]


class History:
    """The daemons and the clients of one plan. Made in a run of Trio."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.judge = Judge()
        self.lasted_s = 0.0
        """How long the history has lasted, in its own time (s)."""
        self.random = random.Random(f"history {plan.seed}")
        self.objects = SimObjects(plan.seed)
        settings = plan.settings()
        self.nodes: list[Node] = []
        for i, (rate, is_standby) in enumerate(zip(plan.rates, plan.standbys, strict=True)):
            machine = Machine(f"n{i}", self.objects, plan.seed, rate, self._sent)
            machine.bad_calls, machine.latency_s = plan.bad_calls, plan.latency_s
            kind = StandbyNode if is_standby else Node
            self.nodes.append(kind(machine, self.judge, settings, collects=plan.collects))
        for node in self.nodes:
            node.peers = self.nodes
        self.clients = Clients(self.nodes, self.judge, plan.seed, plan.other, plan.mix)

    @property
    def taken(self) -> int:
        """How often a standby has taken over."""
        return sum(node.taken for node in self.nodes)

    def _sent(self, machine: Machine, blob: bytes) -> None:
        self.judge.sent(blob, machine.heads if machine.is_cut_whole() else None)

    async def run(self, script: Script | None = None) -> None:
        """Live through the events of the plan, or a script, heal everything, and judge."""
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(node.run)
            for _ in range(CLIENTS):
                nursery.start_soon(self.clients.run)
            if script is not None:
                await script(self)
            for event in self.plan.events if script is None else []:
                await trio.sleep(event.after)
                await self._happen(event, nursery)
            for node in self.nodes:
                node.machine.heal()
            self.objects.faults = lambda op, name: None
            self.objects.arrive()
            await trio.sleep(1)
            self.clients.are_gone = True
            if not self.judge.problems:
                await self._end()
            self.lasted_s = trio.current_time()
            nursery.cancel_scope.cancel()

    # -- what happens --------------------------------------------------------------------------------------------------

    async def owner(self) -> Node:
        """Return the node that serves, once there is one."""
        while True:
            for node in self.nodes:
                if node.is_owner and not (node.machine.is_cut_off or node.machine.is_paused):
                    return node
            await trio.sleep(0.2)

    async def _whom(self, whom: Whom) -> Node:
        if whom == "owner":
            with trio.move_on_after(OWNER_S):
                return await self.owner()
        following = [node for node in self.nodes if node.follows is not None]
        return self.random.choice(following if whom == "standby" and following else self.nodes)

    async def _happen(self, event: Event, nursery: trio.Nursery) -> None:
        node = await self._whom(event.whom)
        machine = node.machine
        match event.what:
            case "pause":
                machine.pause()
            case "cut":
                machine.is_cut_off = True
            case "starve":
                machine.is_starved = True
            case "deaf":
                machine.is_deaf = True
            case "bad":
                machine.bad_calls = max(event.share, self.plan.bad_calls)
            case "kill":
                machine.kill(event.death)
                machine.take_down()
            case "kill_at_step":
                machine.kill_point = KillPoint(event.step, event.death)
            case "stop":
                node.stop()
                machine.take_down()
        nursery.start_soon(self._is_over, event, machine)

    async def _is_over(self, event: Event, machine: Machine) -> None:
        await trio.sleep(event.lasts)
        match event.what:
            case "pause":
                machine.resume()
            case "cut":
                machine.is_cut_off = False
            case "starve":
                machine.is_starved = False
            case "deaf":
                machine.is_deaf = False
            case "bad":
                machine.bad_calls = self.plan.bad_calls
            case "kill" | "stop":
                machine.bring_up()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Have an owner show everything, and each standby the same. If the first owner was lost with its disk before
        there was a base, only an operator can go on (`docs/design/replication.md` section 5); nothing was acked
        then."""
        with trio.move_on_after(END_S):
            while True:
                await trio.sleep(0.5)
                with suppress(ApiError, ArchiveStopped):
                    if await self._shown_by_all():
                        return
        if not any(name.startswith("bases/") for name in self.objects.objects) and not self.judge.answers:
            return
        states = [(node.name, node.refusals[-1:], node.is_owner, node.follows is not None) for node in self.nodes]
        self.judge.problems.append(f"not every daemon is the owner or follows it, in the end: {states}")

    async def _shown_by_all(self) -> bool:
        """Return True if there is an owner, and all that may follow it do."""
        owner = next((node for node in self.nodes if node.is_owner), None)
        if owner is None or owner.life is None or owner.epoch < self.judge.newest_owner:
            return False
        await owner.life.archived()
        number = owner.life.archive.last_round
        for node in self.nodes:
            if node is owner or not isinstance(node, StandbyNode):
                continue
            if node.standby is None or node.standby.look().round < number:
                return False
        self.judge.look_at_owner(owner.life.engine, f"the last owner, {owner.name},")
        self.judge.end(await self._all_of(owner))
        for node in self.nodes:
            if node.follows is not None:
                assert isinstance(node, StandbyNode)
                node.look()
                self.judge.end(await self._all_of(node))
        return True

    async def _all_of(self, node: Node) -> dict[Place, Any]:
        life = node.life or node.follows
        found: dict[Place, Any] = {}
        for name in (REMOTE, SECOND, OTHER, QUEUE):
            if life is not None:
                found |= await self.clients.all_of(life, name)
        return found


def lived(plan: Plan, script: Script | None = None) -> History:
    """Run a history from its begin to its end, and return it."""
    kept: list[History] = []

    async def live() -> None:
        _seed_trio(plan.seed)
        history = History(plan)
        kept.append(history)
        await history.run(script)

    with simulated(plan.seed, plan.round_bytes, plan.reserved):
        trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)
    return kept[0]
