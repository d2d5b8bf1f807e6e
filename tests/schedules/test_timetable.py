"""At which times a schedule is due, above all where clocks are put forward and back."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from topics.schedules.timetable import Cron, Every, TimetableError, zone_of

HOUR = 3_600_000
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata")
CRONS = ("* * * * *", "*/10 * * * *", "30 2 * * *", "0 0 * * 0", "15 1-3 * * *", "0 12 1 * *", "0 0 29 2 *")


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def texts(times: list[int]) -> list[str]:
    return [f"{datetime.fromtimestamp(ts / 1000, UTC):%m-%dT%H:%M}" for ts in times]


def test_what_is_in_a_gap_is_skipped() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")  # 2026-03-29 has no 02:30
    found = cron.newest(ms("2026-03-27T12:00"), ms("2026-03-31T12:00"), 100)
    assert texts(found) == ["03-28T01:30", "03-30T00:30", "03-31T00:30"]


def test_what_is_in_an_overlap_fires_once_at_its_first_occurrence() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")  # 2026-10-25 has two
    assert texts(cron.newest(ms("2026-10-24T12:00"), ms("2026-10-26T12:00"), 100)) == ["10-25T00:30", "10-26T01:30"]
    often = Cron("*/30 * * * *", "Europe/Berlin")
    found = often.newest(ms("2026-10-25T00:00"), ms("2026-10-25T02:00"), 100)
    assert texts(found) == ["10-25T00:30", "10-25T02:00"]
    in_the_second_hour = often.next_after(ms("2026-10-25T01:05"))
    assert in_the_second_hour == ms("2026-10-25T02:00")


@settings(max_examples=60)
@given(data=st.data(), zone=st.sampled_from(ZONES), expression=st.sampled_from(CRONS))
def test_the_times_are_those_minutes_whose_local_time_fits_for_the_first_time(
    data: st.DataObject, zone: str, expression: str
) -> None:
    check_times(zone, expression, data)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", CRONS)
@given(data=st.data())
def test_the_times_of_every_expression_in_every_zone_are_those_minutes(
    zone: str, expression: str, data: st.DataObject
) -> None:
    check_times(zone, expression, data)


def check_times(zone: str, expression: str, data: st.DataObject) -> None:
    """A naive model: every minute of some days is looked at by itself."""
    days = [
        "2026-03-28",
        "2026-10-24",
        "2026-04-04",
        "2026-10-03",
        "2026-11-01",
        "2026-03-08",
        "2011-12-29",
        "2026-06-01",
    ]
    begin = ms(data.draw(st.sampled_from(days)) + "T00:00") + data.draw(st.integers(0, 59_999))
    hours = data.draw(st.integers(1, 30))
    where = ZoneInfo(zone)
    wanted = []
    for ts in range(begin - begin % 60_000 + 60_000, begin + hours * HOUR + 1, 60_000):
        local = datetime.fromtimestamp(ts / 1000, where)
        if local.fold == 0 and _fits(expression, local):
            wanted.append(ts)
    cron = Cron(expression, zone)
    assert cron.newest(begin, begin + hours * HOUR, 10_000) == wanted
    most = data.draw(st.integers(1, 20))
    assert cron.newest(begin, begin + hours * HOUR, most) == wanted[-most:]
    if wanted:
        assert cron.next_after(begin) == wanted[0]


def _fits(expression: str, local: datetime) -> bool:
    fields = (local.minute, local.hour, local.day, local.month, local.isoweekday() % 7)
    return all(_field_fits(text, value) for text, value in zip(expression.split(), fields, strict=True))


def _field_fits(text: str, value: int) -> bool:
    if text.startswith("*"):
        return value % int(text[2:] or 1) == 0
    first, _, last = text.partition("-")
    return int(first) <= value <= int(last or first)


@given(
    every=st.integers(100, 10**9),
    anchor=st.integers(0, 10**12),
    after=st.integers(0, 2 * 10**12),
    span=st.integers(0, 10**10),
    most=st.integers(1, 50),
)
@example(every=100, anchor=1000, after=0, span=1000, most=5)
@example(every=100, anchor=1000, after=1100, span=100, most=5)
def test_every_counts_from_its_anchor(every: int, anchor: int, after: int, span: int, most: int) -> None:
    table = Every(every, anchor)
    following = table.next_after(after)
    assert following > max(after, anchor)
    assert (following - anchor) % every == 0
    assert following - every <= max(after, anchor)
    found = table.newest(after, after + span, most)
    assert len(found) <= most
    assert all(after < ts <= after + span and ts > anchor and (ts - anchor) % every == 0 for ts in found)
    assert all(b - a == every for a, b in pairwise(found))
    if found:
        assert found[-1] + every > after + span
        assert len(found) == most or found[0] == following
    else:
        assert following > after + span


def test_after_years_the_newest_are_found_without_looking_at_all() -> None:
    cron = Cron("* * * * *", "America/New_York")
    end = ms("2026-01-01T00:00")
    assert cron.newest(ms("1990-01-01T00:00"), end, 1000) == [end - 60_000 * i for i in reversed(range(1000))]
    rare = Cron("0 0 29 2 *", "UTC")
    assert texts(rare.newest(ms("1960-01-01T00:00"), end, 2)) == ["02-29T00:00", "02-29T00:00"]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "five fields"),
        ("@daily", "five fields"),
        ("* * * * * *", "five fields"),
        ("60 * * * *", "bad minute"),
        ("* * * * mo", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 31 4,6 *", "bad day-of-month"),
        ("٣ * * * *", "five fields"),
        ("0 " * 300, "five fields"),
    ],
)
def test_a_bad_expression_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(TimetableError, match=f"^cron: .*{reason}"):
        Cron(expression, "UTC")


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../../etc/passwd", "/etc/passwd", "America", "x" * 1000, "Ä"])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(TimetableError, match=r"^time_zone: "):
        zone_of(name)


def test_without_zone_files_only_utc_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise FileNotFoundError(name)

    monkeypatch.setattr("topics.schedules.timetable.ZoneInfo", missing)
    assert zone_of("UTC") is UTC
    with pytest.raises(TimetableError, match="is not known"):
        zone_of("Europe/Berlin")
