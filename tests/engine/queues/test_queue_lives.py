"""Walks through the life of a queue: `queue_walk` says what happens in them."""

from __future__ import annotations

import pytest

from tests.engine.queues.queue_walk import About, walk
from tests.everything import EVERYTHING


@pytest.mark.parametrize("about", ["calls", "kills", "crashes", "failures", "drops"])
@pytest.mark.parametrize(("seed", "steps"), [(0, 30), pytest.param(1, 45, marks=pytest.mark.slow)])
def test_a_short_walk(seed: int, steps: int, about: About) -> None:
    truth = walk(seed, 3, steps, about)
    assert truth.claims > 10 or about == "drops"


@pytest.mark.slow
@pytest.mark.parametrize("about", ["calls", "kills", "crashes", "failures", "drops"])
@pytest.mark.parametrize("seed", range(100, 102 if EVERYTHING else 101))
def test_a_long_walk(seed: int, about: About) -> None:
    walk(seed, 4, 140, about)
