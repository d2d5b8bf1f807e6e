"""Routers of an engine, and what their topics come to hold."""

from __future__ import annotations

from typing import Any

from tests.engine.life import Life
from topics.model import RouterPatch, RouterState

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


async def route(life: Life, name: str, source: str, dest: str, **patch: Any) -> RouterState:
    """A router from the earliest on, unless told otherwise."""
    patch.setdefault("start", "earliest")
    return (await life.engine.routers.put(name, RouterPatch(source=source, dest=dest, **patch)))[0]


async def update(life: Life, name: str, **patch: Any) -> RouterState:
    state, created = await life.engine.routers.put(name, RouterPatch(**patch))
    assert not created
    return state


async def datas(life: Life, name: str) -> list[Any]:
    """What a reader of a topic gets, after a look at its figures."""
    found, gaps = await life.all(name)
    state = await life.engine.topic_states.of(name, touch=False)
    seqs = [record["$seq"] for record in found]
    assert state.count == len(seqs)
    assert state.earliest_seq == (seqs[0] if seqs else state.head_seq + 1)
    missed = sum(last - first + 1 for first, last, _ in gaps)
    assert missed + len(seqs) <= state.head_seq
    return [record["data"] for record in found]


async def figures(life: Life, name: str) -> tuple[int, int, int]:
    """Cursor, lag and total."""
    state = life.engine.routers.state(name)
    return state.cursor_seq, state.lag, state.forwarded_total
