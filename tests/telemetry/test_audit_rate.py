"""How many refused calls get lines of their own (`topics.telemetry.audit_rate`, `topics.telemetry.audit_log`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from topics.telemetry.audit_log import AuditLog, make_entry
from topics.telemetry.audit_rate import BURST, MOST_SOURCES, OTHERS, RefusalRate


def test_a_source_has_a_burst_and_then_ten_lines_a_second() -> None:
    rate = RefusalRate()
    assert sum(rate.admit("a", 0.0) for _ in range(1000)) == BURST
    assert sum(rate.admit("a", 0.5) for _ in range(1000)) == 5
    assert rate.take_counts(0.5) == {"a": 1900 - 5}
    assert rate.take_counts(0.5) == {}
    assert rate.admit("b", 0.5), "another source has lines of its own"


def test_every_call_has_a_line_or_is_counted() -> None:
    rate = RefusalRate()
    lines = counted = 0
    for i in range(50_000):
        now = i / 1000
        lines += rate.admit(f"s{i % 3}", now)
        if i % 700 == 0:
            counted += sum(rate.take_counts(now).values())
    counted += sum(rate.take_counts(50).values())
    assert lines + counted == 50_000
    assert lines < 3 * (BURST + 50 * 10 + 1)


def test_sources_are_bounded_and_forgotten() -> None:
    rate = RefusalRate()
    for i in range(10 * MOST_SOURCES):
        source = rate.source(f"s{i}")
        rate.admit(source, 0.0)
        assert (source == OTHERS) == (i >= MOST_SOURCES)
    assert rate.take_counts(0.0) == {OTHERS: 9 * MOST_SOURCES - BURST}
    assert rate.take_counts(1000.0) == {}
    assert rate.source("new") == "new"


def entry(status: int, key: str = "key-1", port: int = 1) -> Any:
    return make_entry(
        now_ms=0, request_id="r", key=key, peer=("10.0.0.1", port), call="put_topic", status=status, ms=1.0
    )


@pytest.mark.trio
async def test_refused_calls_beyond_the_rate_share_a_line(tmp_path: Path, mock_clock: MockClock) -> None:
    path = tmp_path / "audit"
    log = AuditLog(path)
    log.open()
    for i in range(300):
        await log.write(entry(403))
        await log.write(entry(401, "unknown", port=i))  # each from a port of its own
        await log.write(entry(200))
    await log.summarize()
    mock_clock.jump(1)
    for _ in range(200):
        await log.write(entry(403))
    await log.summarize()
    await log.summarize()
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len([line for line in lines if line["status"] == 200]) == 300, "what was done is never left out"
    for status, key, own, shared in ((403, "key-1", 110, [200, 190]), (401, "unknown", 100, [200])):
        of_source = [line for line in lines if line["status"] == status]
        assert len([line for line in of_source if line["call"] == "put_topic"]) == own
        summaries = [line for line in of_source if line["call"] == "refused"]
        assert [line["refused"] for line in summaries] == shared
        assert {(line["key"], line["peer"]) for line in summaries} == {(key, "10.0.0.1")}
