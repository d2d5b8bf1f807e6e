"""What a seed means: how many daemons, how fast their clocks run, and what happens to them."""

from __future__ import annotations

import random
from typing import Final, Literal, get_args

import msgspec

from tests.bucket.archived import bucket_settings
from tests.simulator.replicas.clients import EVERYTHING, LITTLE_REMOTE
from tests.simulator.replicas.machine import DEATHS, Death
from topics.config import Settings
from topics.model import Durability

LEASE_MS: Final = 3000

SLOWEST, FASTEST_RATE = 0.914, 1.094
"""Rates of clocks: the fastest one runs by less than a sixth faster than the slowest."""

Whom = Literal["owner", "standby", "any"]
What = Literal["pause", "cut", "starve", "deaf", "bad", "kill", "kill_at_step", "stop", "wait"]
"""It stands still; it does not reach the store; it cannot renew its lease, or hears of no renewal, and nothing else is
wrong; calls of it go wrong; it is killed, now or at one of its next steps; it stops in order; nothing happens."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens to one daemon, `after` so many seconds. What lasts is over after `lasts` seconds: until
    then a daemon that was killed or stopped does not begin again."""

    after: float
    what: What
    whom: Whom
    lasts: float = 0.0
    death: Death = "kill"
    step: int = 0
    share: float = 0.0
    """Of the calls that go wrong."""


SMALLEST_ROUND: Final = 80
MOST_LATENCY_S: Final = 0.1
"""The smallest rounds (bytes) need a store that is faster than this (s)."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One history."""

    seed: int
    rates: list[float]
    """Of the clocks of the daemons: one for each."""
    standbys: list[bool]
    """Which of them may be standbys."""
    other: Durability = "disk"
    """The class of the topic that is not `remote`."""
    round_bytes: int | None = None
    """A cut has several rounds if it is longer."""
    reserved: int = 1000
    """The least number of seqs that a bucket ceiling reserves."""
    checkpoint_ms: int = 60_000
    base_ms: int = 10_000
    collects: bool = False
    """The owner removes from the bucket what is older than a few seconds."""
    latency_s: float = 0.0
    """How long requests to the store, and answers, may be on their way (s)."""
    poll_ms: int = 400
    mix: str = EVERYTHING
    """What clients do."""
    bad_calls: float = 0.0
    """The share of all calls of the store that go wrong."""
    events: list[Event]

    def settings(self) -> Settings:
        """The settings of all daemons."""
        return bucket_settings(
            wal_file_bytes=8 << 10,
            segment_max_events=16,
            checkpoint_ms=self.checkpoint_ms,
            reclaim_ms=2000,
            bucket_round_ms=700,
            bucket_poll_ms=self.poll_ms,
            bucket_takeover=True,
            bucket_lease_ms=LEASE_MS,
            bucket_base_ms=self.base_ms,
            bucket_retain_ms=6000,
            admission_ms=500,
        )


def make(seed: int) -> Plan:
    """Return the plan of a seed. At least one of its events takes the owner away for longer than the lease."""
    rng = random.Random(f"plan {seed}")
    nodes = rng.choices((2, 3, 4), (6, 4, 1))[0]
    rates = [rng.choice((SLOWEST, FASTEST_RATE, rng.uniform(SLOWEST, FASTEST_RATE))) for _ in range(nodes)]
    events = [_event(rng) for _ in range(rng.randint(2, 5))]
    events.insert(rng.randrange(len(events) + 1), _loss_of_owner(rng))
    collects = rng.random() < 0.25
    plan = Plan(
        seed=seed,
        rates=rates,
        standbys=[rng.random() < 0.85 for _ in range(nodes)],
        other=rng.choice(("fsync", "disk", "memory")),
        round_bytes=rng.choice((None, SMALLEST_ROUND, 200, 600)),
        reserved=rng.choice((6, 20, 1000)),
        checkpoint_ms=rng.choice((2500, 60_000)),
        latency_s=rng.choice((0.0, 0.02, 0.15)),
        poll_ms=rng.choice((200, 400, 1500)),
        mix=rng.choice((EVERYTHING, EVERYTHING, LITTLE_REMOTE)),
        base_ms=3000 if collects else rng.choice((4000, 12_000)),
        collects=collects,
        bad_calls=rng.choice((0.0, 0.0, 0.02, 0.05)),
        events=events,
    )
    if plan.round_bytes == SMALLEST_ROUND and plan.latency_s > MOST_LATENCY_S:
        # An owner would log more than it can archive, and a new one would not become ready in time.
        plan = msgspec.structs.replace(plan, round_bytes=200)
    return plan


def _loss_of_owner(rng: random.Random) -> Event:
    """Something that takes the owner away, so that another daemon takes over."""
    what: What = rng.choice(("pause", "cut", "starve", "kill", "kill", "kill_at_step", "stop"))
    return Event(
        after=rng.uniform(2, 5),
        what=what,
        whom="owner",
        lasts=rng.uniform(1.5, 2.5) * LEASE_MS / 1000,
        death=rng.choice(DEATHS),
        step=int(2 ** rng.uniform(0, 8)),
    )


def _event(rng: random.Random) -> Event:
    return Event(
        after=rng.uniform(0.1, 3),
        what=rng.choice(get_args(What)),
        whom=rng.choice(("owner", "owner", "standby", "standby", "any")),
        lasts=rng.choice((0.0, rng.uniform(0.1, 3), rng.uniform(2.4, 3.2), rng.uniform(3, 6))),
        death=rng.choice(DEATHS),
        step=int(2 ** rng.uniform(0, 9)),
        share=rng.choice((0.1, 0.4)),
    )
