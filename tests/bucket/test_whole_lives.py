"""Lives with everything in them, killed before calls of the store and local operations, and with wrong answers: the
next start goes on, the bucket verifies, and a restore shows what the directory shows.

A run takes a sample; TOPICS_TEST_EVERYTHING=1 takes every call, every operation and every answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from tests.bucket.simulated_objects import SIM_FAULTS, SimFault, random_faults
from tests.bucket.whole_lives import Machine, Script, check_whole, first_life, judge, later_life, live
from tests.everything import EVERYTHING
from tests.simulation.disk import Op
from topics.bucket.ownership.owner_object import BucketRefused

pytestmark = pytest.mark.slow

CALLS = 1 if EVERYTHING else 2
OPERATIONS = 1 if EVERYTHING else 9
ANSWERS = 1 if EVERYTHING else 7
ENDLESS = (SimFault.DENIED, SimFault.HANG, SimFault.HANG_AFTER)
"""After many of these nothing goes on until an operator, or the store, does something."""

SHARE = 0.03
"""Of calls that fail. After some faults the bucket is left alone for 30 s."""

SEEDS = 300 if EVERYTHING else 12


@cache
def first() -> Machine:
    """What a first life leaves behind that was killed. Never changed."""
    machine = Machine()
    live(machine, first_life, clean=False)
    return machine


def before(life: str) -> tuple[Machine, Script]:
    """A machine, and the life that it is to live."""
    return (Machine(), first_life) if life == "first" else (first().after("kill"), later_life)


def every(stride: int, left: list[Machine], machine: Machine) -> Callable[[], None]:
    """Keeps what is left at each so manieth moment that it is told of."""
    seen = Counter[str]()

    def moment() -> None:
        if seen["moments"] % stride == 0:
            left.append(machine.left())
        seen["moments"] += 1

    return moment


@pytest.mark.parametrize("life", ["first", "later"])
def test_a_kill_before_any_call_of_the_store(life: str) -> None:
    machine, script = before(life)
    left: list[Machine] = []
    moment = every(CALLS, left, machine)

    def called(op: str, name: str) -> SimFault | None:
        moment()
        return None

    machine.objects.faults = called
    live(machine, script, clean=True)
    machine.objects.faults = lambda op, name: None
    assert len(left) > 3
    check_whole(machine)
    for one in left:
        judge(one)


@pytest.mark.parametrize("life", ["first", "later"])
def test_a_kill_before_any_local_operation(life: str) -> None:
    machine, script = before(life)
    left: list[Machine] = []
    moment = every(OPERATIONS, left, machine)

    def told(op: Op) -> None:
        if op.mutation is not None:
            moment()

    machine.fs.subscribe(told)
    live(machine, script, clean=False)
    assert len(left) > 3
    for one in left:
        judge(one)


def lived_or_refused(machine: Machine, script: Script) -> Machine:
    """A life that ends in order. If its start is refused, as it may be when the store denies something, the next start
    goes on. Returns the machine as it is then."""
    try:
        live(machine, script, clean=True)
    except* BucketRefused:
        machine.objects.faults = lambda op, name: None
        machine = machine.after("kill")
        live(machine, script, clean=True)
    return machine


@cache
def calls_of_a_first_life() -> int:
    machine = Machine()
    live(machine, first_life, clean=True)
    return len(machine.objects.calls)


@pytest.mark.parametrize("fault", SIM_FAULTS)
def test_any_answer_of_the_store_may_be_wrong(fault: SimFault) -> None:
    for number in range(SIM_FAULTS.index(fault), calls_of_a_first_life(), ANSWERS):
        machine = Machine()
        calls = machine.objects.calls
        machine.objects.faults = lambda op, name, at=number + 1, calls=calls: fault if len(calls) == at else None  # type: ignore[misc]
        machine = lived_or_refused(machine, first_life)
        machine.objects.arrive()
        judge(machine.after("kill"))  # the last round of a stop may be missing


@pytest.mark.parametrize("seed", range(SEEDS))
def test_many_answers_of_the_store_may_be_wrong(seed: int) -> None:
    machine = Machine()
    kinds = [fault for fault in SIM_FAULTS if fault not in ENDLESS]
    machine.objects.faults = random_faults(seed, SHARE, kinds)
    machine = lived_or_refused(machine, first_life).after("kill", seed)
    machine.objects.faults = random_faults(seed + 1000, SHARE, kinds)
    machine = lived_or_refused(machine, later_life)
    machine.objects.arrive()
    judge(machine.after("kill", seed))
