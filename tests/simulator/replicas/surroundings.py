"""What the daemons of a simulation find around them: ways to the bucket and to their leases, chance that a seed
determines, short waits."""

from __future__ import annotations

import random
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.simulation.world import quiet
from topics.bucket.log_reader import divided
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.settled_puts import SettledPuts

LONGEST_S: Final = 2.0
"""The longest wait after a failure of the store (s)."""

AHEAD_MS: Final = 1000
"""A raise of a bucket ceiling reserves what is appended in this time (ms): less than a history lasts."""


@contextmanager
def simulated(seed: int, round_bytes: int | None = None, reserved: int = 1000) -> Iterator[None]:
    """Inside, standbys reach the bucket and hold leases as their machines do, rounds have `round_bytes` at most, a
    bucket ceiling reserves `reserved` seqs at least, and the seed determines every chance. Nobody waits long after a
    failure: readers of the bucket, which block, not at all."""
    chance = random.Random(f"chance {seed}")

    def token_hex(length: int = 32) -> str:
        return chance.randbytes(length).hex()

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    with quiet(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("topics.standby.make_objects", lambda settings, environ, offload: offload.objects)
        patch.setattr("topics.standby.lease_terms", lambda settings, environ, offload, clock: offload.terms())
        patch.setattr(BucketReader.__init__, "__defaults__", (lambda seconds: None,))
        for name in ("topics.bucket.archive.LONGEST_S", "topics.bucket.settled_puts.LONGEST_S"):
            patch.setattr(name, LONGEST_S)
        patch.setattr("topics.bucket.bases.base_writer.BACKOFF_S", (0.5, LONGEST_S))
        for name in ("topics.log.bucket_ceiling", "topics.engine.ceilings"):
            patch.setattr(f"{name}.LEAST", reserved)
        patch.setattr("topics.log.bucket_ceiling.AHEAD_MS", AHEAD_MS)
        if round_bytes is not None:
            patch.setattr(divided, "__defaults__", (round_bytes,))
        patch.setattr(secrets, "token_hex", token_hex)
        patch.setattr("uuid.uuid4", uuid4)
        patch.setattr("topics.bucket.pins.uuid4", uuid4)
        *others, _ = SettledPuts.__init__.__defaults__ or (None,)
        patch.setattr(SettledPuts.__init__, "__defaults__", (*others, chance))
        patch.setattr(secrets, "randbits", chance.getrandbits)
        yield
