"""Stories for two daemons that chance would seldom tell: what is wrong at the edges of a lease shows in them."""

from __future__ import annotations

import trio

from tests.simulator.replicas.history import History
from tests.simulator.replicas.plan import FASTEST_RATE, SLOWEST, Plan


def edge(seed: int) -> Plan:
    """An owner with the slowest clock, and a standby with the fastest one, which looks for rounds now and then. So the
    standby takes the prefix a moment after the owner has stopped."""
    return Plan(
        seed=seed,
        rates=[SLOWEST, FASTEST_RATE],
        standbys=[True, True],
        poll_ms=1500,
        reserved=6,
        base_ms=4000,
        events=[],
    )


async def owner_is_the_slow_one(history: History) -> None:
    """Have the daemon with the slow clock own the bucket, and the other one follow it."""
    slow, fast = history.nodes
    fast.machine.take_down()
    fast.machine.kill("kill")
    while not slow.is_owner:  # noqa: ASYNC110 (nothing tells of it)
        await trio.sleep(0.2)
    fast.machine.bring_up()
    while fast.follows is None:  # noqa: ASYNC110
        await trio.sleep(0.2)
    await trio.sleep(history.random.uniform(1, 3))


async def renewals_end(history: History) -> None:
    """The owner writes rounds up to its last moment, and no renewal arrives."""
    await owner_is_the_slow_one(history)
    history.nodes[0].machine.is_starved = True
    await trio.sleep(6)


async def renewal_is_confirmed_late(history: History) -> None:
    """A renewal arrives, the owner hears of it 0.7 s later, and then the store is away from it."""
    await owner_is_the_slow_one(history)
    machine = history.nodes[0].machine
    machine.is_deaf = True
    puts = ("put_if", "owner")
    before = history.objects.calls.count(puts)
    while history.objects.calls.count(puts) == before:  # noqa: ASYNC110
        await trio.sleep(0.02)
    await trio.sleep(0.7)
    machine.is_deaf = False
    await trio.sleep(0.25)
    machine.is_cut_off = True
    await trio.sleep(6)
