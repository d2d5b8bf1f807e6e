"""Every target of the fuzzers with inputs that hypothesis draws: bytes of any kind, and mutations of valid inputs.

Nothing comes out of a target but what is documented, none hangs, and each takes memory that its input explains. The
inputs are the same in every run; fresh ones, and many more of them, are what `scripts/fuzz` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import findings
from tests.fuzz.mutations import KINDS, mutated
from tests.fuzz.target import Hang, Target, TooMuchMemory, try_input, try_within_limits
from tests.fuzz.targets import TARGETS

NUMBERS = st.integers(0, (1 << 16) - 1)
STEPS = st.lists(st.tuples(st.integers(0, KINDS - 1), NUMBERS, NUMBERS), min_size=1, max_size=4)
QUICK = (Phase.explicit, Phase.generate, Phase.shrink)
SLOW = (Phase.explicit, Phase.generate)
"""What takes tens of ms is not shrunk: that would take minutes."""


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """These targets, one after the other."""
    marked = [pytest.param(name, marks=pytest.mark.slow if TARGETS[name].slow else ()) for name in names]
    return pytest.mark.parametrize("name", marked)


every_target = each(TARGETS)


@cache
def loaded(name: str) -> Target:
    """A target that has loaded what it loads once, which does not count as memory that an input takes."""
    target = TARGETS[name]
    for seed in target.seeds:
        try_input(target, seed)
    return target


def examples(target: Target, share: float = 1.0) -> settings:
    """As many inputs as the target says, the same in every run."""
    return settings(
        max_examples=max(1, round(target.examples * share)),
        derandomize=True,
        database=None,
        deadline=None,
        phases=SLOW if target.slow else QUICK,
        suppress_health_check=list(HealthCheck),
    )


@every_target
def test_a_valid_input_is_taken(name: str) -> None:
    target = loaded(name)
    for seed in target.seeds:
        try_within_limits(target, seed)


@every_target
def test_nothing_comes_out_of_any_bytes(name: str) -> None:
    target = loaded(name)

    @examples(target, 0.5)
    @given(st.binary(max_size=min(target.most_bytes, 400)))
    def any_bytes(data: bytes) -> None:
        try_within_limits(target, data)

    any_bytes()


@every_target
def test_nothing_comes_out_of_what_is_nearly_valid(name: str) -> None:
    target = loaded(name)
    seeds = st.sampled_from(target.seeds)

    @examples(target)
    @given(seeds, seeds, STEPS)
    def nearly_valid(seed: bytes, other: bytes, steps: list[tuple[int, int, int]]) -> None:
        try_within_limits(target, mutated(seed, other, steps)[: target.most_bytes])

    nearly_valid()


@each(name for name, target in TARGETS.items() if target.vary is not None)
def test_nothing_comes_out_of_a_value_that_should_not_be_there(name: str) -> None:
    target = loaded(name)
    vary = target.vary
    assert vary is not None

    @examples(target)
    @given(st.sampled_from(target.seeds), st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=2))
    def varied(seed: bytes, changes: list[tuple[int, int]]) -> None:
        for where, what in changes:
            seed = vary(seed, where, what)
        try_within_limits(target, seed[: target.most_bytes])

    varied()


@pytest.mark.parametrize(("name", "make"), findings.FOUND, ids=findings.IDS)
def test_what_was_found_once_is_not_found_again(name: str, make: Callable[[], bytes]) -> None:
    try_within_limits(loaded(name), make())


# ----------------------------------------------------------------- the limits themselves


def _target(take: object) -> Target:
    return Target("broken", "", take, lambda: [b""], base_bytes=1 << 16, factor=40)  # type: ignore[arg-type]


def test_an_input_that_takes_too_much_memory_is_a_finding() -> None:
    with pytest.raises(TooMuchMemory, match="10 bytes took"):
        try_within_limits(_target(lambda _data: bytes(1 << 20)), b"0123456789")


def test_an_input_that_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.target.HANG_S", 1)

    def for_ever(_data: bytes) -> None:
        while True:
            pass

    with pytest.raises(Hang):
        try_within_limits(_target(for_ever), b"")


def test_what_a_target_does_not_document_is_a_finding_mended_or_not() -> None:
    def take(data: bytes) -> None:
        if data == b"mended":
            raise KeyError(data)

    target = Target("broken", "", take, lambda: [b""], mend=lambda _data: b"mended")
    with pytest.raises(KeyError):
        try_input(target, b"anything")
