"""Rows about jobs whose results are delivered."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import trio

from tests.crash.job_operations import ROOMY
from tests.crash.rows import Earlier, Operation, nothing
from tests.simulation.completion_lives import PLACES, CompletionClient, CompletionSweep
from tests.simulation.segment_lives import checkpoint
from tests.simulation.world import Life

SHARDS: Final = replace(ROOMY, wal_shards=2)


async def leased(life: Life, client: CompletionClient) -> None:
    """A queue of each class, one whose results find no room, and a group; most jobs are leased."""
    await client.begin()


async def finishing(life: Life, client: CompletionClient) -> None:
    """Acks with results, some together, while those before are delivered; results whose jobs are deleted; room for
    those that had none."""
    for place in PLACES:
        await client.ack(place, 1, 2)
    for place in PLACES:
        await client.ack(place, 4)
    await trio.sleep(0.1)
    await client.delete("stuck", 3)
    for place in PLACES:
        await client.ack(place, 3, 5)
    await client.put("stuck-done", cap_records=0)
    await trio.sleep(1)


async def storing(life: Life, client: CompletionClient) -> None:
    """Checkpoints while results wait, and behind their delivery."""
    for place in PLACES:
        await client.ack(place, 1, 3)
    await checkpoint(life)
    await client.delete("stuck", 2)
    await checkpoint(life)
    await client.ack("stuck", 2)
    await client.put("stuck-done", cap_records=0)
    await trio.sleep(1)
    await checkpoint(life)


async def waiting(life: Life, client: CompletionClient) -> None:
    """Results of every kind wait, or are on their way."""
    await client.begin()
    for place in PLACES:
        await client.ack(place, 1, 2)
    await checkpoint(life)
    for place in PLACES:
        await client.ack(place, 3, 5)


HELD: Final = (1, 2, 4, 9)
COMPLETION_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("deliver-results", (6, 28), HELD, CompletionSweep, SHARDS, finishing, leased),
    Operation("checkpoint-of-results", (8, 28), HELD, CompletionSweep, SHARDS, storing, leased),
    Operation(
        "recovery-of-results-after-kill", (2, 28), HELD, CompletionSweep, SHARDS, nothing, from_start=True,
        earlier=(Earlier(waiting, "kill"),),
    ),
)  # fmt: skip
