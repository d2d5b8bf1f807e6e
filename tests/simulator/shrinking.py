"""Cuts a plan that fails down to a small one that fails in the same way.

Takes out lives, actors, runs of steps, faults and rot, ever smaller pieces, and keeps what still fails. Every try is a
run of its own, so it is bounded by their number; a plan is small enough after a few hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from tests.simulator.actors import Actor
from tests.simulator.plan import LifePlan, Plan

MOST_TRIES: Final = 400


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, tries: int = MOST_TRIES) -> Plan:
    """The smallest plan found that `fails`, in at most so many tries. `fails` is given no plan without lives."""
    left = tries
    while True:
        for smaller in _smaller(plan):
            if left <= 0:
                return plan
            left -= 1
            if smaller.lives and fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with something taken out, the largest pieces first."""
    for i in range(len(plan.lives)):
        yield replace(plan, lives=plan.lives[:i] + plan.lives[i + 1 :])
    for i, life in enumerate(plan.lives):
        for smaller in _smaller_lives(life):
            yield replace(plan, lives=[*plan.lives[:i], smaller, *plan.lives[i + 1 :]])
    for name in plan.routers:
        yield replace(plan, routers={other: options for other, options in plan.routers.items() if other != name})
    if plan.cold:
        yield replace(plan, cold=False)


def _smaller_lives(life: LifePlan) -> Iterator[LifePlan]:
    for i in range(len(life.actors)):
        yield replace(life, actors=life.actors[:i] + life.actors[i + 1 :])
    for i, actor in enumerate(life.actors):
        for smaller in _smaller_actors(actor):
            yield replace(life, actors=[*life.actors[:i], smaller, *life.actors[i + 1 :]])
    for i in range(len(life.troubles)):
        yield replace(life, troubles=life.troubles[:i] + life.troubles[i + 1 :])
    for i in range(len(life.rot)):
        yield replace(life, rot=life.rot[:i] + life.rot[i + 1 :])
    if life.hang is not None:
        yield replace(life, hang=None)
    if life.slow:
        yield replace(life, slow=[])
    if life.crash_in_recovery is not None:
        yield replace(life, crash_in_recovery=None)
    if life.crash_at is not None:
        yield replace(life, crash_at=None)
    if life.clock_step or life.down_ms:
        yield replace(life, clock_step=0, down_ms=0)


def _smaller_actors(actor: Actor) -> Iterator[Actor]:
    count = len(actor.steps)
    size = count // 2
    while size:
        for start in range(0, count, size):
            yield replace(actor, steps=actor.steps[:start] + actor.steps[start + size :])
        size //= 2
