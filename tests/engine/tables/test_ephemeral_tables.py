"""Tables of class `ephemeral`: their index does not grow with what is overwritten, and they can become tables on
disk."""

from __future__ import annotations

import pytest

from tests.engine.life import Life, living, settings
from tests.simulation.disk import SimFs
from topics.log import record_index, span
from topics.log.tables import bare_spans

pytestmark = pytest.mark.trio
CONFIG = settings(segment_max_events=40, wal_file_bytes=64 << 10)


@pytest.fixture(autouse=True)
def _small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (span, record_index):
        monkeypatch.setattr(module, "SPAN_RECORDS", 32)
    monkeypatch.setattr(bare_spans, "LEAST_RUN", 8)


async def overwrite(life: Life, rounds: int) -> None:
    """Three keys, again and again, behind a record that stays."""
    for n in range(rounds):
        await life.append("t", *({"data": [n, key], "tag": key} for key in "abc"))


def slots(life: Life) -> int:
    """How many slots have columns."""
    log = life.engine.registry.topics["t"].log
    log.check()
    return sum(len(one.dead) for one in log.index.spans)


async def test_the_index_keeps_columns_for_what_is_there() -> None:
    async with living(CONFIG) as life:
        await life.put("t", durability="ephemeral", keep_per_tag=1)
        await life.append("t", {"data": "first", "tag": "stays"})
        await overwrite(life, 30)
        few = slots(life)
        await overwrite(life, 300)
        await life.compactor.checkpoint()
        assert slots(life) <= few + 32
        assert (await life.all("t"))[1] == []
        assert await life.seqs("t") == [1, 989, 990, 991]
        assert await life.seqs("t", 500) == [989, 990, 991]
        assert (await life.read("t", 10_000)).tombstone is not None
        deleted = await life.delete("t", before_seq=2)
        assert deleted.deleted == 1
        assert slots(life) <= 32
        assert life.engine.registry.topics["t"].log.earliest_seq == 989


@pytest.mark.parametrize("clean", [True, False])
async def test_such_a_table_may_leave_the_class(clean: bool) -> None:
    fs = SimFs()
    async with living(CONFIG, fs=fs, clean=clean) as life:
        await life.put("t", durability="ephemeral", keep_per_tag=1)
        await life.append("t", {"data": "first", "tag": "stays"})
        await overwrite(life, 40)
        assert slots(life) < 64
        await life.put("t", durability="fsync")
        await overwrite(life, 40)
        if clean:
            await life.compactor.checkpoint()
        rows = await life.all("t")
        assert [row["$seq"] for row in rows[0]] == [1, 239, 240, 241]
    async with living(CONFIG, fs=fs if clean else fs.after_process_kill()) as life:
        assert await life.all("t") == rows
        await life.compactor.checkpoint()
        assert await life.all("t") == rows
        life.engine.registry.topics["t"].log.check()
