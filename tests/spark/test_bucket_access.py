"""Which base a query reads, and the pins that keep it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bucket.simulated_objects import SimFault, SimObjects, given_faults
from topics.bucket.base_format import BaseBody, BaseHead, encode_base
from topics.bucket.object_names import FORMAT, PINS, base_name, pin_name
from topics.bucket.object_store import ObjectStore
from topics.bucket.ownership.owner_format import BucketFormat, encode_format
from topics.bucket.pin_format import Pin, decode_pin
from topics.spark.bucket_access import OpenBucket, PlannedBase, opened
from topics.spark.errors import FilesError
from topics.spark.options import PIN_MS, AsOf

URL = "s3://bucket/here"
WALL_MS = {3: 1_000_000_000_000, 5: 1_000_000_600_000, 9: 1_000_001_200_000}
HOUR = 3_600_000


class Moment:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 5_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Moment:
    return Moment()


@pytest.fixture
def objects() -> SimObjects:
    """A bucket with three empty bases."""
    made = SimObjects()
    made.put_new(FORMAT, encode_format(BucketFormat(bucket=1, id="x")))
    for number, wall_ms in WALL_MS.items():
        head = BaseHead(bucket="x", epoch=1, number=number, first_round=number, wall_ms=wall_ms, shards=1, body_bytes=0)
        made.put_new(base_name(number), encode_base(head, BaseBody(snapshot={}, files=[], pages=[])))
    return made


def bucket_of(objects: ObjectStore, clock: Moment, pin_ms: int | None = HOUR) -> OpenBucket:
    return OpenBucket(URL, objects, pin_ms, now_ms=clock, sleep=lambda _s: None)


def pins_in(objects: SimObjects) -> dict[str, Pin]:
    return {name: decode_pin(content) for name, content in objects.objects.items() if name.startswith(PINS)}


@pytest.mark.parametrize(
    ("as_of", "number"),
    [
        (None, 9),
        (AsOf("round", 9), 9),
        (AsOf("round", 8), 5),
        (AsOf("round", 10**6), 9),
        (AsOf("round", 3), 3),
        (AsOf("time", WALL_MS[5]), 5),
        (AsOf("time", WALL_MS[5] - 1), 3),
        (AsOf("time", 2 * WALL_MS[9]), 9),
    ],
)
def test_the_newest_base_that_is_not_beyond_what_is_asked_for_is_read(
    objects: SimObjects, clock: Moment, as_of: AsOf | None, number: int
) -> None:
    assert bucket_of(objects, clock).choose(as_of) == number


@pytest.mark.parametrize("as_of", [AsOf("round", 2), AsOf("time", WALL_MS[3] - 1)])
def test_what_is_older_than_the_oldest_base_is_refused(objects: SimObjects, clock: Moment, as_of: AsOf) -> None:
    said = r"asOf: the oldest base in s3://bucket/here is for round 3, of 2001-09-09T01:46:40.000000Z"
    with pytest.raises(FilesError, match=said):
        bucket_of(objects, clock).choose(as_of)


def test_a_pin_names_the_base_and_when_it_ends(objects: SimObjects, clock: Moment) -> None:
    planned = bucket_of(objects, clock).pinned(9)
    assert planned == PlannedBase(9, planned.pin, clock.now + HOUR)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", planned.pin)
    assert pins_in(objects) == {pin_name(planned.pin): Pin(base=9, expires=clock.now + HOUR)}
    assert bucket_of(objects, clock, None).pinned(9).expires == clock.now + PIN_MS
    bucket_of(objects, clock).unpin(planned)
    assert pin_name(planned.pin) not in pins_in(objects)


def test_without_pins_nothing_is_written(objects: SimObjects, clock: Moment) -> None:
    bucket = bucket_of(objects, clock, 0)
    planned = bucket.pinned(9)
    clock.now += 10 * HOUR
    bucket.unpin(bucket.renewed(planned))
    assert pins_in(objects) == {}
    assert {op for op, _ in objects.calls} == {"put_new"}  # those of the fixture


@pytest.mark.parametrize("fault", [SimFault.BEFORE, SimFault.AFTER, SimFault.THROTTLED])
def test_a_pin_is_written_again_while_the_store_does_not_answer(
    objects: SimObjects, clock: Moment, fault: SimFault
) -> None:
    objects.faults = given_faults([fault, fault])
    planned = bucket_of(objects, clock).pinned(9)
    assert pins_in(objects)[pin_name(planned.pin)].base == 9


def test_whoever_may_not_write_is_told_how_to_read_without_a_pin(objects: SimObjects, clock: Moment) -> None:
    objects.faults = given_faults([SimFault.DENIED])
    with pytest.raises(FilesError, match=r"the pin cannot be written: .*below pins/; with pinMs=0"):
        bucket_of(objects, clock).pinned(9)


def test_a_pin_is_renewed_when_half_of_its_time_is_over(objects: SimObjects, clock: Moment) -> None:
    bucket = bucket_of(objects, clock)
    planned = bucket.pinned(9)
    clock.now += HOUR // 2 - 1
    assert bucket.renewed(planned) == planned
    clock.now += 1
    renewed = bucket.renewed(planned)
    assert renewed.expires == clock.now + HOUR
    assert pins_in(objects)[pin_name(planned.pin)] == Pin(base=9, expires=renewed.expires)
    clock.now += 1000
    before = len(objects.calls)
    assert bucket.renewed(planned) == renewed  # a task that was planned then, after another one
    assert [op for op, _ in objects.calls[before:]] == ["get"]


def test_a_pin_that_has_ended_is_made_again(
    objects: SimObjects, clock: Moment, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = bucket_of(objects, clock)
    planned = bucket.pinned(9)
    bucket.unpin(planned)
    clock.now += 3 * HOUR
    bucket.renewed(planned)
    assert pins_in(objects)[pin_name(planned.pin)] == Pin(base=9, expires=clock.now + HOUR)
    assert "had ended" in caplog.text


@pytest.mark.parametrize("fault", [SimFault.DENIED, SimFault.WRONG])
def test_a_task_goes_on_if_its_pin_cannot_be_renewed(
    objects: SimObjects, clock: Moment, caplog: pytest.LogCaptureFixture, fault: SimFault
) -> None:
    """Denied: a warning. Changed: another task has renewed it."""
    bucket = bucket_of(objects, clock)
    planned = bucket.pinned(9)
    clock.now += HOUR
    objects.faults = given_faults([None, fault])
    assert bucket.renewed(planned).expires == clock.now + HOUR  # so that it is not tried for each segment
    assert ("cannot be renewed" in caplog.text) == (fault is SimFault.DENIED)


def test_a_variable_of_the_provider_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:s3cret@10.0.0.1")
    with pytest.raises(FilesError, match="AWS_ENDPOINT_URL must not contain a user") as failure:
        opened("s3://bucket/here", None)
    assert "s3cret" not in str(failure.value)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FilesError, match=f"{tmp_path}/none"):
        opened(f"file://{tmp_path}/none", None).choose(None)
