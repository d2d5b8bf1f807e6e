"""Topics with `keep_per_tag` against a list: appends of every kind, nulls, deletions, caps, ttl, changes of the config,
segments, restarts and kills, one after another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.engine.life import living, settings
from tests.engine.tables.table_model import TableModel, carry_out, compare, compare_latest, prepare
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.engine.tables import kept_records, table_trim
from topics.storage.cache import index_cache

pytestmark = pytest.mark.trio

TAGS = ["a", "ab", "b", "c"]
CONFIG = settings(segment_max_events=4, wal_file_bytes=4096, cache_bytes=0, rewrite_live_ratio=0.7)


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[Any, ...]]]:
    """A config, and steps."""
    tag = st.sampled_from(TAGS)
    row = st.tuples(st.none() | tag | tag | tag, st.sampled_from([False, False, False, True]))
    batch = st.lists(row, min_size=1, max_size=5)
    batches = st.lists(batch, min_size=1, max_size=4)
    keep = st.sampled_from([0, 1, 1, 2, 3])
    limits = {
        "cap_records": st.sampled_from([0, 0, 0, 3, 6]),
        "cap_bytes": st.sampled_from([0, 0, 0, 20]),
        "ttl_ms": st.sampled_from([0, 0, 5 * 60_000]),
        "null_ttl_ms": st.sampled_from([0, 3 * 60_000]),
    }
    appends = [st.tuples(st.just("append"), batch)] * 4
    step = st.one_of(
        *appends,
        st.tuples(st.just("burst"), batches),
        st.tuples(st.just("transaction"), batch),
        st.tuples(st.just("stage"), batches),
        st.tuples(st.just("forward"), batch),
        st.tuples(st.just("delete"), st.integers(0, 40), st.none() | tag),
        st.tuples(st.just("delete"), st.none(), tag),
        st.tuples(st.just("delete_range"), st.integers(0, 20), st.integers(0, 40)),
        st.tuples(st.just("put"), st.fixed_dictionaries({}, optional=limits | {"keep_per_tag": keep})),
        st.tuples(st.just("pass"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["checkpoint", "reclaim", "restart", "kill"])),
        st.tuples(st.sampled_from(["checkpoint", "reclaim", "restart", "kill"])),
    )
    config = draw(st.fixed_dictionaries({"keep_per_tag": keep}, optional=limits))
    return config, draw(st.lists(step, min_size=1, max_size=30))


@pytest.fixture(autouse=True)
def _little_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the columns of a segment or two, and small slices."""
    monkeypatch.setattr(index_cache, "LEAST_BYTES", 100)
    monkeypatch.setattr(kept_records, "TAKEN_SLICE", 2)
    monkeypatch.setattr(kept_records, "WHOLE_TAGS", 3)
    monkeypatch.setattr(kept_records, "TAGS_SLICE", 2)
    monkeypatch.setattr(table_trim, "TAKEN_SLICE", 3)


async def run(config: dict[str, int], steps: list[tuple[Any, ...]], durability: str) -> None:
    fs, clock, model = SimFs(), SimClock(), TableModel(**config)
    rest = list(enumerate(steps))
    while True:
        over = "end"
        async with living(CONFIG, fs=fs, clock=clock, housekeeping=False) as life:
            await prepare(life, model, durability)
            await compare(life, model)
            while rest and over == "end":
                number, step = rest.pop(0)
                if step[0] in ("restart", "kill"):
                    over = step[0]
                else:
                    await carry_out(life, model, number, step)
                    await compare(life, model)
                    await compare_latest(life, model, 1 + number % 3)
            killed = fs.after_process_kill()
        if over == "end":
            return
        if over == "kill":
            fs = killed


@pytest.mark.slow
@examples(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans(), durability=st.sampled_from(["disk", "fsync"]))
async def test_a_table_is_what_a_list_says(plan: tuple[dict[str, int], list[tuple[Any, ...]]], durability: str) -> None:
    await run(*plan, durability)
