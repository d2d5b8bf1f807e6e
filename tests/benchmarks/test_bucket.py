"""The part `bucket`: what is computed of measurements, and what it appends."""

from __future__ import annotations

import zlib
from array import array

import msgspec
import pytest

from benchmarks.bucket import DISTINCT, LogState, archived_share, single_figures, times
from benchmarks.bucket_stores import event_data, event_requests
from benchmarks.client import Load
from benchmarks.diff import BATCH
from benchmarks.figures import resolve
from benchmarks.parts import PARTS
from benchmarks.references import cpu_figures
from tests.benchmarks.runs import STEADY


def load(*latencies_ms: float) -> Load:
    return Load(seconds=1.0, requests=len(latencies_ms), latencies_ms=array("d", latencies_ms))


def test_latencies_stand_beside_those_of_the_same_turn_without_a_bucket() -> None:
    figures = single_figures("append", "one-disk-s3", [load(2.0), load(3.0)], [load(1.0), load(3.0)])
    found = {one.id: one for one in resolve("bucket", [*cpu_figures(STEADY), *figures], {})}
    assert (found["bucket/one-disk-s3-p50"].median, found["bucket/one-disk-s3-p99"].median) == (2.5, 2.5)
    ratio = found["bucket/one-disk-s3-p50-times"]
    assert (ratio.low, ratio.high, ratio.met) == (1.0, 2.0, False)
    assert found["bucket/one-disk-s3-p99-times"].target == 1.3


def test_without_a_bucket_there_is_nothing_to_compare() -> None:
    figures = single_figures("append", "one-disk-off", [load(2.0)], None)
    assert [one.id for one in resolve("bucket", figures, {})] == ["bucket/one-disk-off-p50", "bucket/one-disk-off-p99"]


def test_ratios_are_those_of_the_same_turn() -> None:
    assert times([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("lags", "share"),
    [((0, 0), 100), ((0, 250), 75), ((500, 250), 125), ((0, 1000), 0)],
    ids=["all of it", "but for the end", "and what was late before", "nothing"],
)
def test_what_was_archived_is_what_was_written_less_what_the_bucket_lacks_more(
    lags: tuple[int, int], share: float
) -> None:
    before, after = LogState(5000, lags[0]), LogState(6000, lags[1])
    assert archived_share(before, after) == share


def test_a_daemon_without_a_bucket_has_no_lag() -> None:
    assert LogState.of({"topics_wal_bytes_written_total": 7.0}) == LogState(7.0, 0.0)


def test_events_are_about_a_hundred_bytes_that_differ_and_compress_as_text_does() -> None:
    events = [event_data(number) for number in range(1000)]
    assert all(isinstance(msgspec.json.decode(event), dict) for event in events)
    assert {len(event) for event in events} <= set(range(90, 111))
    assert len(set(events)) == 1000
    text = "\n".join(events).encode()
    assert 0.2 < len(zlib.compress(text)) / len(text) < 0.5


def test_a_request_has_a_whole_batch() -> None:
    (request,) = event_requests("t", BATCH, 1)
    body = msgspec.json.decode(request.partition(b"\r\n\r\n")[2])
    assert [record["data"]["order"] for record in body["records"][:2]] == [1_001_000, 1_001_001]
    assert len(body["records"]) == BATCH
    assert DISTINCT > 1


def test_each_kind_of_restore_is_shown_for_each_store() -> None:
    shown = PARTS["bucket"].shown
    assert {"restore-file-full", "restore-s3-full", "restore-s3-full-start", "batches-s3-archived"} <= set(shown)
