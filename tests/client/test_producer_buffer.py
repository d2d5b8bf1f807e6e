"""Batches of a producer: what goes out when, in which order, and what became of it. No clock, no threads."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from topics.client.producers.producer_buffer import Buffer, BufferLimits, ProducerBatch, ProducerClosed, RoomRequest

LINGER = 10.0
Place = tuple[ProducerBatch, int]


def buffer_of(
    *,
    batch_records: int = 3,
    batch_bytes: int = 1000,
    max_in_flight: int = 2,
    max_buffered_records: int = 10,
    max_buffered_bytes: int = 10_000,
    news: list[str] | None = None,
    keep_deliveries: bool = False,
) -> Buffer[Place]:
    limits = BufferLimits(
        batch_records=batch_records,
        batch_bytes=batch_bytes,
        linger=LINGER,
        max_in_flight=max_in_flight,
        max_buffered_records=max_buffered_records,
        max_buffered_bytes=max_buffered_bytes,
    )
    told = [] if news is None else news
    return Buffer(
        limits,
        key_prefix="key",
        delivery=lambda batch, index: (batch, index),
        news=lambda: told.append("news"),
        keep_deliveries=keep_deliveries,
    )


def put(buffer: Buffer[Place], *records: str, topic: str = "t", now: float = 0.0) -> list[Place]:
    """Put records for which there is room."""
    places = []
    for record in records:
        place = buffer.put(topic, record.encode(), now)
        assert place is not None
        places.append(place)
    return places


def take(buffer: Buffer[Place], now: float = 0.0) -> ProducerBatch:
    """Take a batch that is due."""
    batch = buffer.take(now)
    assert batch is not None
    return batch


def end(buffer: Buffer[Place], batch: ProducerBatch, now: float = 0.0, *, error: Exception | None = None) -> None:
    buffer.settle(batch, first_seq=0 if error else 1, error=error)
    buffer.finish(batch, now)


def texts(batch: ProducerBatch) -> str:
    return b"".join(batch.records).decode()


# --- when a batch is due ---------------------------------------------------------------------------------------------


def test_a_batch_is_due_when_it_is_full() -> None:
    buffer = buffer_of(batch_records=3)
    put(buffer, "a", "b")
    assert buffer.take(0.0) is None
    put(buffer, "c", "d")
    assert texts(take(buffer)) == "abc"


def test_a_batch_is_full_when_the_next_record_would_make_it_too_large() -> None:
    buffer = buffer_of(batch_bytes=10)
    put(buffer, "aaa", "bbb", "ccc")
    assert texts(take(buffer)) == "aaabbb"


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    buffer = buffer_of(batch_bytes=10)
    put(buffer, "a", "b" * 50, "c")
    first = take(buffer)
    assert texts(first) == "a"
    end(buffer, first)
    assert texts(take(buffer)) == "b" * 50


def test_a_batch_is_due_when_it_has_lingered() -> None:
    buffer = buffer_of()
    put(buffer, "a", now=5.0)
    put(buffer, "b", now=9.0)
    assert buffer.take(14.9) is None
    assert buffer.next_at() == 15.0
    assert texts(take(buffer, 15.0)) == "ab"
    assert buffer.take(100.0) is None
    assert buffer.next_at() == math.inf


def test_a_flush_makes_everything_due() -> None:
    buffer = buffer_of()
    places = put(buffer, "a", topic="x") + put(buffer, "b", topic="y")
    assert buffer.flush() == [batch for batch, _ in places]
    assert [texts(take(buffer)), texts(take(buffer))] == ["a", "b"]


def test_a_flush_names_what_is_in_flight_too() -> None:
    buffer = buffer_of()
    put(buffer, "a", "b", "c")
    batch = take(buffer)
    assert buffer.flush() == [batch]
    end(buffer, batch)
    assert buffer.flush() == []


def test_what_was_flushed_behind_a_batch_in_flight_does_not_linger() -> None:
    buffer = buffer_of()
    put(buffer, "a", "b", "c", "d")
    first = take(buffer)
    buffer.flush()
    end(buffer, first)
    assert texts(take(buffer)) == "d"


def test_a_batch_grows_while_the_one_before_is_in_flight() -> None:
    buffer = buffer_of()
    put(buffer, "a")
    first = take(buffer, LINGER)
    put(buffer, "b", now=LINGER)
    assert buffer.take(3 * LINGER) is None
    put(buffer, "c", now=3 * LINGER)
    end(buffer, first, 3 * LINGER)
    assert texts(take(buffer, 3 * LINGER)) == "bc"


def test_a_batch_in_flight_does_not_change() -> None:
    buffer = buffer_of()
    put(buffer, "a")
    batch = take(buffer, LINGER)
    put(buffer, "b", now=LINGER)
    assert texts(batch) == "a"


# --- turns of topics -------------------------------------------------------------------------------------------------


def test_a_topic_has_one_batch_in_flight() -> None:
    buffer = buffer_of()
    put(buffer, *"abcdef")
    first = take(buffer)
    assert buffer.take(0.0) is None
    end(buffer, first)
    assert texts(take(buffer)) == "def"


def test_so_many_topics_are_in_flight_and_no_more() -> None:
    buffer = buffer_of(max_in_flight=2)
    for topic in "xyz":
        put(buffer, *"abc", topic=topic)
    first = take(buffer)
    take(buffer)
    assert buffer.take(0.0) is None
    end(buffer, first)
    assert take(buffer).topic == "z"


def test_a_busy_topic_lets_others_go_first() -> None:
    buffer = buffer_of(max_in_flight=1, max_buffered_records=20)
    put(buffer, *"abcdef", topic="busy")
    put(buffer, *"abc", topic="other")
    order = []
    for _ in range(3):
        batch = take(buffer)
        order.append(batch.topic)
        end(buffer, batch)
    assert order == ["busy", "other", "busy"]


# --- news ------------------------------------------------------------------------------------------------------------


def test_an_idle_sender_is_told_of_the_first_record_and_not_of_the_next() -> None:
    news: list[str] = []
    buffer = buffer_of(news=news)
    put(buffer, "a", "b")
    assert len(news) == 1
    assert buffer.take(0.0) is None
    assert buffer.next_at() == LINGER
    put(buffer, "x", topic="later", now=1.0)
    assert len(news) == 1, "it wakes up before that is due"
    put(buffer, "c")
    assert len(news) == 2, "a batch is full"


def test_a_sender_with_its_hands_full_is_not_told() -> None:
    news: list[str] = []
    buffer = buffer_of(news=news, max_in_flight=1)
    put(buffer, *"abc")
    batch = take(buffer)
    buffer.take(0.0)
    buffer.next_at()
    news.clear()
    put(buffer, *"def")
    assert news == []
    end(buffer, batch)
    assert len(news) == 1


# --- room ------------------------------------------------------------------------------------------------------------


def test_there_is_room_again_when_a_batch_has_its_outcome() -> None:
    buffer = buffer_of(max_buffered_records=3)
    put(buffer, *"abc")
    assert buffer.put("t", b"d", 0.0) is None
    batch = take(buffer)
    assert buffer.put("t", b"d", 0.0) is None, "what is in flight counts"
    end(buffer, batch)
    put(buffer, "d")


def test_bytes_are_bounded_too() -> None:
    buffer = buffer_of(max_buffered_bytes=10)
    put(buffer, "aaaa")
    assert buffer.put("t", b"bbbbb", 0.0) is None
    put(buffer, "bbbb")


def test_a_record_that_never_fits_is_refused() -> None:
    buffer = buffer_of(max_buffered_bytes=10)
    with pytest.raises(ValueError, match="never fits"):
        buffer.put("t", b"x" * 10, 0.0)


def test_room_goes_to_whoever_has_waited_longest() -> None:
    buffer = buffer_of(batch_records=1, max_buffered_bytes=10)
    put(buffer, "aaaa", "b")
    woken: list[str] = []
    large = buffer.wait_for_room(b"L" * 9, lambda: woken.append("large"))
    small = buffer.wait_for_room(b"s", lambda: woken.append("small"))
    assert buffer.put("t", b"x", 0.0) is None, "the others were first"
    end(buffer, take(buffer))
    assert woken == [], "there is room for the small one, but it is not its turn"
    end(buffer, take(buffer))
    assert woken == ["large"]
    assert buffer.put("t", b"L" * 9, 0.0, large) is not None
    assert not small.granted
    end(buffer, take(buffer))
    assert woken == ["large", "small"]


def test_room_that_is_not_used_goes_to_the_next() -> None:
    buffer = buffer_of(max_buffered_records=3)
    put(buffer, *"abc")
    first = buffer.wait_for_room(b"x", lambda: None)
    second = buffer.wait_for_room(b"y", lambda: None)
    third = buffer.wait_for_room(b"z", lambda: None)
    buffer.leave(second)
    end(buffer, take(buffer))
    assert first.granted
    assert third.granted
    assert not second.granted
    assert buffer.records == 2
    buffer.leave(first)
    buffer.leave(third)
    assert buffer.records == 0


def test_nothing_lingers_while_somebody_waits_for_room() -> None:
    buffer = buffer_of(batch_records=100, max_buffered_records=3)
    put(buffer, *"abc")
    buffer.wait_for_room(b"d", lambda: None)
    assert texts(take(buffer)) == "abc"


# --- the end ---------------------------------------------------------------------------------------------------------


def test_a_closed_buffer_takes_nothing_and_sends_what_it_has() -> None:
    buffer = buffer_of(max_buffered_records=1)
    put(buffer, "a")
    woken: list[str] = []
    turn = buffer.wait_for_room(b"b", lambda: woken.append("closed"))
    buffer.close()
    assert woken == ["closed"]
    for given in (None, turn):
        with pytest.raises(ProducerClosed):
            buffer.put("t", b"b", 0.0, given)
    buffer.leave(turn)
    buffer.flush()
    assert texts(take(buffer)) == "a"


def test_what_is_abandoned_has_failed_and_what_is_in_flight_has_not() -> None:
    buffer = buffer_of()
    places = put(buffer, *"abcde")
    batch = take(buffer)
    why = ProducerClosed("enough")
    for abandoned in buffer.abandon(why):
        buffer.finish_abandoned(abandoned)
    end(buffer, batch)
    assert [buffer.outcome(*place) for place in places[:3]] == [1, 2, 3]
    for place in places[3:]:
        with pytest.raises(ProducerClosed, match="enough"):
            buffer.outcome(*place)
    assert buffer.records == 0
    assert buffer.take(math.inf) is None


# --- failures --------------------------------------------------------------------------------------------------------


def test_failures_that_nobody_has_asked_for_are_reported_once() -> None:
    buffer = buffer_of()
    put(buffer, *"abc")
    why = ProducerClosed("no")
    end(buffer, take(buffer), error=why)
    report = buffer.failures()
    assert report is not None
    assert (report.records, report.error) == (3, why)
    assert buffer.failures() is None


def test_a_failure_that_was_asked_for_before_or_after_is_not_reported() -> None:
    buffer = buffer_of()
    before, after, never = put(buffer, *"abc")
    assert buffer.ask(*before, lambda: None)
    end(buffer, take(buffer), error=ProducerClosed("no"))
    for _ in range(2):
        with pytest.raises(ProducerClosed):
            buffer.outcome(*after)
    report = buffer.failures()
    assert report is not None
    assert report.records == 1
    with pytest.raises(ProducerClosed):
        buffer.outcome(*never)
    assert buffer.failures() is None
    put(buffer, *"def")
    end(buffer, take(buffer), error=ProducerClosed("no"))
    with pytest.raises(ProducerClosed):
        buffer.outcome(*before)
    with pytest.raises(ProducerClosed):
        buffer.outcome(*never)
    report = buffer.failures()
    assert report is not None
    assert report.records == 3, "what was reported is not counted off again"


def test_whoever_has_stopped_waiting_for_an_outcome_has_not_seen_it() -> None:
    buffer = buffer_of()
    place, _, _ = put(buffer, *"abc")

    def wake() -> None:
        raise AssertionError("it waits no longer")

    buffer.ask(*place, wake)
    assert buffer.unask(*place, wake)
    end(buffer, take(buffer), error=ProducerClosed("no"))
    report = buffer.failures()
    assert report is not None
    assert report.records == 3


def test_failures_that_are_told_one_by_one_are_not_reported() -> None:
    buffer = buffer_of(keep_deliveries=True)
    places = put(buffer, *"abc")
    batch = take(buffer)
    assert batch.deliveries == places
    end(buffer, batch, error=ProducerClosed("no"))
    assert buffer.failures() is None


def test_a_batch_that_fails_does_not_hold_up_the_next() -> None:
    buffer = buffer_of()
    places = put(buffer, *"abcdef")
    end(buffer, take(buffer), error=ProducerClosed("no"))
    end(buffer, take(buffer))
    assert buffer.outcome(*places[3]) == 1


@pytest.mark.parametrize("name", ["batch_records", "batch_bytes", "max_in_flight", "max_buffered_records"])
def test_a_bound_that_lets_nothing_through_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        buffer_of(**{name: 0})  # type: ignore[arg-type]


# --- anything in any order -------------------------------------------------------------------------------------------

TOPICS = st.sampled_from(["x", "y", "z"])
MAX_RECORDS, MAX_BYTES, IN_FLIGHT, BATCH_RECORDS, BATCH_BYTES = 12, 120, 2, 3, 30


class Life(RuleBasedStateMachine):
    """A buffer, its senders, and a daemon that answers in any order: with success, or with a failure that is final."""

    def __init__(self) -> None:
        super().__init__()
        self.news: list[str] = []
        self.buffer = buffer_of(
            batch_records=BATCH_RECORDS,
            batch_bytes=BATCH_BYTES,
            max_in_flight=IN_FLIGHT,
            max_buffered_records=MAX_RECORDS,
            max_buffered_bytes=MAX_BYTES,
            news=self.news,
        )
        self.now = 0.0
        self.number = 0
        self.waiting: list[tuple[RoomRequest, str, bytes]] = []
        self.sent: dict[str, list[tuple[bytes, Place]]] = defaultdict(list)
        """Every record that was taken, by topic, in order."""
        self.stored: dict[str, list[bytes]] = defaultdict(list)
        """What the daemon has, by topic, in order."""
        self.flying: list[ProducerBatch] = []
        self.keys: set[str] = set()
        self.failed: set[bytes] = set()
        self.asleep_until = -math.inf

    def _record(self, size: int) -> bytes:
        self.number += 1
        return f"{self.number}".encode().rjust(size, b"0")

    @rule(topic=TOPICS, size=st.integers(4, 40))
    def send(self, topic: str, size: int) -> None:
        record = self._record(size)
        place = self.buffer.put(topic, record, self.now)
        if place is None:
            turn = self.buffer.wait_for_room(record, lambda: None)
            self.waiting.append((turn, topic, record))
        else:
            self.sent[topic].append((record, place))

    @rule(data=st.data())
    @precondition(lambda self: any(turn.granted for turn, _, _ in self.waiting))
    def use_room(self, data: st.DataObject) -> None:
        granted = [one for one in self.waiting if one[0].granted]
        one = data.draw(st.sampled_from(granted))
        turn, topic, record = one
        place = self.buffer.put(topic, record, self.now, turn)
        assert place is not None
        self.sent[topic].append((record, place))
        self.buffer.leave(turn)
        self.waiting.remove(one)

    @rule(data=st.data())
    @precondition(lambda self: self.waiting)
    def give_up_waiting(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.waiting))
        self.buffer.leave(one[0])
        self.waiting.remove(one)

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def flush(self) -> None:
        self.buffer.flush()

    @rule()
    @precondition(lambda self: self.news or self.asleep_until <= self.now)
    def wake_up(self) -> None:
        """The sender sleeps until there is news or something is due, as the real one does."""
        self.news.clear()
        while (batch := self.buffer.take(self.now)) is not None:
            assert batch.topic not in {one.topic for one in self.flying}, "two batches of a topic in flight"
            assert batch.key not in self.keys
            assert 0 < len(batch.records) == batch.count <= BATCH_RECORDS
            assert batch.size <= BATCH_BYTES or batch.count == 1
            self.keys.add(batch.key)
            self.flying.append(batch)
        assert len(self.flying) <= IN_FLIGHT
        self.asleep_until = self.buffer.next_at()
        assert self.asleep_until > self.now, "it would not sleep at all"

    @rule(data=st.data(), stored=st.booleans(), fails=st.booleans())
    @precondition(lambda self: self.flying)
    def answer(self, data: st.DataObject, stored: bool, fails: bool) -> None:
        """A success, or a failure for good of what may have been stored or not."""
        batch = data.draw(st.sampled_from(self.flying))
        self.flying.remove(batch)
        log = self.stored[batch.topic]
        first = len(log) + 1
        if stored or not fails:
            log.extend(batch.records)
        if fails:
            self.failed.update(batch.records)
        self.buffer.settle(batch, first_seq=0 if fails else first, error=ProducerClosed("no") if fails else None)
        self.buffer.finish(batch, self.now)

    @invariant()
    def the_bounds_hold(self) -> None:
        kept = [turn for turn, _, _ in self.waiting if turn.granted]
        open_records = [record for places in self.sent.values() for record, (batch, _) in places if not batch.finished]
        assert self.buffer.records == len(open_records) + len(kept) <= MAX_RECORDS
        assert sum(len(one) + 1 for one in open_records) + sum(turn.size for turn in kept) <= MAX_BYTES

    @invariant()
    def what_is_stored_is_in_order_and_once(self) -> None:
        for topic, log in self.stored.items():
            numbers = [int(record) for record in log]
            order = [int(record) for record, _ in self.sent[topic]]
            assert len(set(numbers)) == len(numbers)
            assert numbers == [number for number in order if number in set(numbers)]

    def teardown(self) -> None:
        """Everybody who waits is served, and the daemon takes all that is left: nothing is lost, nothing hangs."""
        for _ in range(1000):
            if not self.waiting and not self.buffer.records:
                break
            for one in [one for one in self.waiting if one[0].granted]:
                turn, topic, record = one
                place = self.buffer.put(topic, record, self.now, turn)
                assert place is not None
                self.sent[topic].append((record, place))
                self.buffer.leave(turn)
                self.waiting.remove(one)
            if self.news or self.asleep_until <= self.now:
                self.wake_up()
            elif self.flying:
                self._take(self.flying[0])
            else:
                assert self.asleep_until < math.inf, "it sleeps for ever over records"
                self.now = self.asleep_until
        assert not self.waiting
        assert self.buffer.records == 0
        assert self.buffer.flush() == []
        for topic, places in self.sent.items():
            for record, place in places:
                if record in self.failed:
                    with pytest.raises(ProducerClosed):
                        self.buffer.outcome(*place)
                else:
                    assert self.stored[topic][self.buffer.outcome(*place) - 1] == record
        assert self.buffer.failures() is None, "every failure was seen"

    def _take(self, batch: ProducerBatch) -> None:
        self.flying.remove(batch)
        log = self.stored[batch.topic]
        first = len(log) + 1
        log.extend(batch.records)
        self.buffer.settle(batch, first_seq=first)
        self.buffer.finish(batch, self.now)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40)
