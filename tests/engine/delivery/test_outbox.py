"""What waits for one connection: how much, in which order, and how a slow connection is told from a fast one."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.delivery.client import Connection, LineFormat, held_bytes, held_messages
from tests.engine.life import settle
from topics.engine.delivery.feed import TAKEN_OVER, Feed, TopicPosition
from topics.engine.delivery.outbox import GRACE_MS, LAGGED_MS, OUTBOX_BYTES, PIECE_BYTES, TOO_SLOW_MS, Outbox
from topics.engine.record_collector import RecordRequest

pytestmark = pytest.mark.trio

WISH = RecordRequest(256, 256 << 10)
FORM = LineFormat()
STARTS_S = 0.5
"""How often the daemon looks at connections that do not take what they are sent."""


class Box:
    """An outbox with a connection, and feeds that only count."""

    def __init__(self, nursery: trio.Nursery, *, slots: int | None = None, run: bool = True, **options: Any) -> None:
        self.connection = Connection(**options)
        self.sending: dict[Outbox, None] = {}
        self.given_room: list[Feed] = []
        self.ended: list[Feed] = []
        self.feed = Feed("t", WISH, TopicPosition(0, 1))
        self.closed = trio.Event()
        self.outbox = Outbox(
            FORM,
            self.connection,
            stamp=lambda: b"%d\n" % self.feed.position,
            on_room=self.given_room.extend,
            on_ended=self.ended.append,
            sending=self.sending,
            slots=slots,
        )
        self.feed.outbox = self.outbox
        nursery.start_soon(self._watch)
        if run:
            self.connection.start(nursery, self.outbox, self._close)

    def _close(self) -> None:
        self.closed.set()
        self.sending.pop(self.outbox, None)

    async def _watch(self) -> None:
        while True:
            await trio.sleep(STARTS_S)
            for outbox in list(self.sending):
                outbox.check()

    def put(self, size: int = 100, *, ends: bool = False) -> None:
        """A frame of the feed: one record of so many bytes."""
        self.feed.position += 1
        self.feed.told = self.feed.position
        data = b'{"$seq":%d,"$ts":0,"data":"%b"}' % (self.feed.position, b"x" * size)
        frame = FORM.record("t", data, self.feed.position - 1, self.feed.position, 100)
        self.outbox.put(frame, self.feed, ends=ends)

    @property
    def lines(self) -> list[str]:
        return self.connection.ids()

    @property
    def seqs(self) -> list[int]:
        return self.connection.seqs("t")


async def test_a_frame_is_sent_in_the_step_in_which_it_is_put_in(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    box.put()
    assert box.seqs == [1]
    assert box.feed.sent == TopicPosition(1, 1)
    assert not box.sending
    assert held_bytes(box.outbox) == 0


async def test_nothing_is_sent_before_the_connection_is_ready(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery, run=False)
    box.put()
    await trio.sleep(1)
    assert box.seqs == []
    box.connection.start(nursery, box.outbox, box._close)
    await settle()
    assert box.seqs == [1]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("share", [None, 0.0, 0.3, 0.99])
async def test_frames_arrive_in_order_however_much_the_socket_takes(
    direct: bool, whole: bool, share: float | None, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    taken = None if share is None else lambda: share
    box = Box(nursery, direct=direct, whole_frames=whole, share=taken)
    await settle()
    for n in range(60):
        box.put(n * 3000)
        if n % 7 == 0:
            await settle()
        if n % 13 == 0:
            box.connection.stop_reading()
        if n % 13 == 5:
            box.connection.go_on_reading()
    box.connection.go_on_reading()
    await settle()
    assert box.seqs == list(range(1, 61))
    assert box.lines == [str(n) for n in range(1, 61)]
    assert box.feed.sent == TopicPosition(60, 1)
    assert held_bytes(box.outbox) == box.outbox._bytes == 0


async def test_what_is_in_flight_counts_until_it_is_sent(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    box.connection.stop_reading()
    box.put(OUTBOX_BYTES // 2)
    await settle()
    assert box.sending
    assert box.feed.sent == TopicPosition(0, 1)
    assert not box.outbox.has_room(OUTBOX_BYTES // 2)
    assert box.outbox.has_room(OUTBOX_BYTES // 3)


async def test_one_frame_may_be_larger_than_the_outbox_if_nothing_else_waits(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    box = Box(nursery, direct=False)
    await settle()
    box.connection.stop_reading()
    assert box.outbox.has_room(3 * OUTBOX_BYTES)
    box.put(3 * OUTBOX_BYTES)
    assert not box.outbox.has_room()
    box.connection.go_on_reading()
    await settle()
    assert box.seqs == [1]


async def test_who_wants_room_is_told_when_half_of_it_is_free(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery, direct=False, whole_frames=True)
    await settle()
    box.connection.stop_reading()
    for _ in range(10):
        box.put(OUTBOX_BYTES // 10 - 200)
    await settle()
    box.outbox.want_room(box.feed)
    box.connection.late_confirmation = True
    box.connection.go_on_reading()
    held = []
    while not box.given_room:
        held.append(held_bytes(box.outbox))
        await trio.sleep(0.01)
    assert max(held) > OUTBOX_BYTES // 2
    assert held_bytes(box.outbox) <= OUTBOX_BYTES // 2
    assert box.given_room == [box.feed]


async def test_slots_are_messages_in_flight_and_waiting(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery, slots=4)
    await settle()
    box.connection.stop_reading()
    for _ in range(4):
        assert box.outbox.has_room()
        box.put()
        await settle()
    assert held_messages(box.outbox) == 4
    assert not box.outbox.has_room()


async def test_an_answer_waits_for_a_slot(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery, slots=1)
    await settle()
    box.connection.stop_reading()
    box.put()
    done: list[bool] = []

    async def answer() -> None:
        done.append(await box.outbox.room())

    nursery.start_soon(answer)
    await trio.sleep(1)
    assert done == []
    box.connection.go_on_reading()
    await settle()
    assert done == [True]


async def test_an_answer_that_waits_hears_of_the_end(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery, slots=1)
    await settle()
    box.connection.stop_reading()
    box.put()
    done: list[bool] = []

    async def answer() -> None:
        done.append(await box.outbox.room())

    nursery.start_soon(answer)
    await settle()
    box.outbox.finish(TAKEN_OVER)
    await settle()
    assert done == [False]


# --- slow -------------------------------------------------------------------------------------------------------------


async def test_lagged_what_is_queued_is_dropped_and_what_is_in_flight_is_not(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    box = Box(nursery)
    await settle()
    box.put()
    box.connection.stop_reading()
    for _ in range(3):
        box.put(PIECE_BYTES)
        await settle()
    await trio.sleep(LAGGED_MS / 1000 - 0.6)
    assert held_messages(box.outbox) == 3
    await trio.sleep(1.2)
    assert held_messages(box.outbox) == 1
    assert box.feed.mark == TopicPosition(2, 1)
    assert box.feed in box.outbox.wanting
    box.connection.go_on_reading()
    await settle()
    assert box.seqs == [1, 2]
    assert box.feed.sent == box.feed.mark == TopicPosition(2, 1)
    assert box.given_room == [box.feed]


async def test_lagged_a_feed_with_nothing_in_flight_goes_back_to_what_was_sent(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    box = Box(nursery, direct=False, whole_frames=True)
    await settle()
    box.connection.stop_reading()
    box.outbox.put(LineFormat.answer("pong", []))
    await settle()
    box.put()
    box.put()
    await trio.sleep(LAGGED_MS / 1000 + 1)
    assert box.feed.mark == box.feed.sent == TopicPosition(0, 1)
    assert not box.feed.caught_up


async def test_lagged_what_was_promised_to_a_command_is_still_sent(nursery: trio.Nursery, autojump_clock: Any) -> None:
    """Frames are ranges again and are made anew; the answer of a command would never come."""
    box = Box(nursery, slots=4)
    await settle()
    box.connection.stop_reading()
    box.put()
    await settle()
    box.outbox.put(LineFormat.answer("ack", []))
    box.put()
    await trio.sleep(LAGGED_MS / 1000 + 1)
    box.connection.go_on_reading()
    await settle()
    assert box.connection.kinds() == ["record", "ack"]


async def test_a_trickle_is_progress(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    box.connection.stop_reading()
    box.put(PIECE_BYTES)
    box.put(PIECE_BYTES)
    for _ in range(30):
        await trio.sleep(4)
        box.connection.acknowledge(1)
    assert held_messages(box.outbox) == 2
    assert box.connection.open


async def test_too_slow_is_told_last_and_then_it_is_over(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    box.connection.stop_reading()
    box.put()
    box.put()
    await trio.sleep(TOO_SLOW_MS / 1000 + 1)
    assert box.outbox.closing
    assert not box.connection.aborted
    box.connection.go_on_reading()
    await settle()
    assert box.connection.kinds() == ["record", "record", "final"]
    assert box.connection.frames[-1].status == 408
    assert box.connection.complete
    assert not box.connection.aborted


async def test_who_does_not_take_the_last_frame_is_cut_off(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    box.connection.stop_reading()
    box.put()
    began = trio.current_time()
    await box.closed.wait()
    assert box.connection.aborted
    took_ms = (trio.current_time() - began) * 1000
    assert TOO_SLOW_MS + GRACE_MS <= took_ms <= TOO_SLOW_MS + GRACE_MS + 2 * STARTS_S * 1000


async def test_a_connection_with_nothing_to_send_is_never_slow(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    await trio.sleep(1000)
    assert box.connection.open
    assert set(box.connection.kinds()) == {"heartbeat"}
    assert len(box.connection.frames) == 66


async def test_a_heartbeat_comes_when_nothing_else_has(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    for _ in range(5):
        await trio.sleep(14)
        box.put()
    assert box.connection.kinds() == ["record"] * 5
    await trio.sleep(15.1)
    assert box.connection.kinds()[-1] == "heartbeat"


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_finishing_sends_what_is_in_flight_and_the_reason(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    box.connection.stop_reading()
    for _ in range(3):
        box.put(PIECE_BYTES)
        await settle()
    box.outbox.finish(TAKEN_OVER)
    box.outbox.finish(TAKEN_OVER)
    assert not box.outbox.has_room()
    box.connection.go_on_reading()
    await settle()
    assert box.connection.kinds() == ["record", "final"]
    assert box.feed.sent == box.feed.mark == TopicPosition(1, 1)
    assert box.connection.complete


async def test_a_feed_ends_with_its_last_frame_and_not_before(nursery: trio.Nursery, autojump_clock: Any) -> None:
    box = Box(nursery)
    await settle()
    box.connection.stop_reading()
    box.put(ends=True)
    await settle()
    assert box.ended == []
    box.connection.go_on_reading()
    await settle()
    assert box.ended == [box.feed]


async def test_cancelled_between_arrival_and_confirmation_it_was_not_sent(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    box = Box(nursery, direct=False)
    await settle()
    box.connection.late_confirmation = True
    box.put()
    await trio.sleep(0.01)
    assert box.seqs == [1]
    box.connection.cut()
    await settle()
    assert box.connection.unconfirmed
    assert box.feed.sent == TopicPosition(0, 1)
