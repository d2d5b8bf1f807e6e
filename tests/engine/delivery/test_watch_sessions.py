"""Watch sessions: their cursors, their connections one after another, their ends, and what they may not exceed."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Any

import pytest
import trio
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.engine.delivery.client import Connection, LineFormat, Streams, positions_of, request
from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from topics.engine.delivery.feed import Feed, TopicPosition
from topics.engine.delivery.watch_session import NAMED_CURSORS, WatchSession
from topics.engine.record_collector import RecordRequest
from topics.errors import ApiError
from topics.model import WatchRequest, WatchStart
from topics.runtime.offload import Pool

WISH = RecordRequest(256, 256 << 10)


def event_id(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


# --- ids --------------------------------------------------------------------------------------------------------------


def session_of(topics: int) -> WatchSession:
    return WatchSession("wid_x", [Feed(f"t{n}", WISH, TopicPosition(n, 1)) for n in range(topics)], 15_000)


@pytest.mark.parametrize("topics", [1, 2, NAMED_CURSORS, NAMED_CURSORS + 1, 256])
def test_an_id_says_where_every_topic_is(topics: int) -> None:
    session = session_of(topics)
    said = session.read_id(session.cursors().decode()).positions
    assert said == {f"t{n}": n for n in range(topics)}
    assert b"=" not in session.cursors()
    if topics <= NAMED_CURSORS:
        assert positions_of(session.cursors().decode(), ()) == said


@pytest.mark.parametrize("topics", [2, NAMED_CURSORS + 1])
def test_an_id_from_before_a_topic_was_forgotten_still_means_the_others(topics: int) -> None:
    session = session_of(topics)
    before = session.cursors().decode()
    session.forget(session.feeds[0])
    assert session.read_id(before).positions["t1"] == 1
    assert session.read_id(session.cursors().decode()).positions["t1"] == 1


@pytest.mark.parametrize(
    "damaged",
    [
        *("", "=", "a", "é", "\x00", "ab cd", "e30\n", "e+/0", "*", "{}", "AAAA"),
        *map(event_id, (None, 1, "t0", [], [1], [1, 2, 3], {"t0": None}, {"t0": "1"}, {"t0": 1.5}, {"t0": [1]})),
        *map(event_id, ({"t0": -1}, {"t0": 2**64}, {"t0": 10**400}, {"t0": True})),
        event_id({"t0": 1})[:-2],
        "[" * 1000,
        urlsafe_b64encode(b"[" * 100_000).decode(),
        urlsafe_b64encode(b'{"t0":' * 10_000).decode(),
        urlsafe_b64encode(b'{"\xff":1}').decode(),
        urlsafe_b64encode(b'{"t0":1}x').decode(),
    ],
)
def test_a_damaged_id_is_refused(damaged: str) -> None:
    with pytest.raises(ApiError) as refused:
        session_of(2).read_id(damaged)
    assert refused.value.code == "invalid_request"


SESSIONS = [session_of(2), session_of(NAMED_CURSORS + 1)]
JSON = st.dictionaries(st.sampled_from(["t0", "t1", "u"]), st.integers()) | st.lists(st.integers(), max_size=3)


@given(st.text(max_size=20) | st.binary(max_size=20).map(lambda raw: raw.decode("latin-1")) | JSON.map(event_id))
@example("e30")
@hypothesis_settings(max_examples=100)
def test_an_id_is_understood_or_refused(text: str) -> None:
    for session in SESSIONS:
        with suppress(ApiError):
            assert all(0 <= seq < 2**64 for seq in session.read_id(text).positions.values())


@pytest.mark.trio
async def test_an_id_rewinds_and_never_the_other_way(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.append("t", 1, 2, 3, 4)
    session, _ = streams.session("t")
    first = await streams.connect(session)
    await settle()
    assert positions_of(first.ids()[-1], ()) == {"t": 4}
    first.cut()
    await settle()
    second = await streams.connect(session, event_id({"t": 2, "unknown": 7}))
    await settle()
    assert second.seqs("t") == [3, 4]
    second.cut()
    await settle()
    third = await streams.connect(session, event_id({"t": 100}))
    await settle()
    assert third.kinds() == ["caught_up"]


@pytest.mark.trio
async def test_a_damaged_id_leaves_the_older_connection_alone(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1)
    session, _ = streams.session("t")
    first = await streams.connect(session)
    error = await refusal(streams.connect(session, "damaged!"))
    assert (error.code, error.detail["field"]) == ("invalid_request", "Last-Event-ID")
    await life.append("t", 2)
    await settle()
    assert first.open
    assert first.seqs("t") == [1, 2]


@pytest.mark.trio
async def test_a_stream_without_a_session_goes_on_after_its_id(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1, 2, 3)
    watch_sessions, one = life.engine.watch_sessions, WatchRequest(topics={"t": WatchStart()})
    reader = await streams.connect(watch_sessions.stream_of("t", one, event_id({"t": 2})))
    await settle()
    assert reader.seqs("t") == [3]
    for wrong in (event_id({"u": 2}), event_id({}), "!"):
        with pytest.raises(ApiError) as refused:
            watch_sessions.stream_of("t", one, wrong)
        assert refused.value.code == "invalid_request"
    assert watch_sessions.session_count == 0


@pytest.mark.trio
async def test_a_session_of_many_topics_resumes_by_its_ids(life: Life, streams: Streams, autojump_clock: Any) -> None:
    names = await topics(life, *(f"t{n}" for n in range(NAMED_CURSORS + 6)))
    session, _ = streams.session(*names)
    first = await streams.connect(session)
    await settle()
    for name in names:
        await life.append(name, 1)
        await settle()
    half = next(line for line, frame, _ in first.received if frame.seqs and frame.topic == "t35")
    await life.engine.topic_lifecycle.delete("t69", if_empty=False)
    await settle()
    first.cut()
    await settle()
    second = await streams.connect(session, half)
    await settle()
    again = [name for name in names if second.seqs(name)]
    assert again == [f"t{n}" for n in range(36, 69)]


# --- one connection after another -------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_session_goes_on_where_its_connection_was(life: Life, streams: Streams, autojump_clock: Any) -> None:
    session, _ = streams.session(*await topics(life, "t", "u"))
    seen: dict[str, list[int]] = {"t": [], "u": []}
    for n in range(1, 6):
        reader = await streams.connect(session)
        await life.append("t", n)
        await settle()
        reader.cut()
        await settle()
        await life.append("u", n)
        for name, seqs in seen.items():
            seqs += reader.seqs(name)
    assert seen == {"t": [1, 2, 3, 4, 5], "u": [1, 2, 3, 4]}


async def topics(life: Life, *names: str) -> tuple[str, ...]:
    for name in names:
        await life.put(name)
    return names


@pytest.mark.trio
async def test_a_take_over_waits_for_what_is_in_flight(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.append("t", *range(10))
    session, _ = streams.session("t", limit=1)
    older = await streams.connect(session, stopped=True)
    await settle()
    newer = Called(streams.nursery, lambda: streams.connect(session))
    await trio.sleep(0.5)
    assert not newer.done
    older.go_on_reading()
    await settle()
    assert newer.done
    assert older.complete
    assert older.frames[-1].status == 409
    assert older.seqs("t") + newer.result.seqs("t") == list(range(1, 11))
    assert older.seqs("t")


@pytest.mark.trio
async def test_a_take_over_does_not_wait_for_ever(life: Life, streams: Streams, autojump_clock: Any) -> None:
    """What the older connection had in flight is sent again, and the older one is told all the same."""
    await life.append("t", 1, 2)
    session, _ = streams.session("t")
    older = await streams.connect(session, stopped=True)
    await settle()
    began = trio.current_time()
    newer = await streams.connect(session)
    await settle()
    assert trio.current_time() - began == pytest.approx(1)
    assert newer.seqs("t") == [1, 2]
    assert older.open
    older.go_on_reading()
    await settle()
    assert older.complete
    assert older.frames[-1].status == 409
    await life.append("t", 3)
    newer.cut()
    await settle()
    last = await streams.connect(session)
    await settle()
    assert newer.seqs("t") + last.seqs("t") == [1, 2, 3]


@pytest.mark.trio
async def test_of_many_that_take_over_at_once_one_stays(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.append("t", 1)
    session, _ = streams.session("t")
    calls = [Called(streams.nursery, lambda: streams.connect(session)) for _ in range(5)]
    await trio.sleep(10)
    connections = [call.result for call in calls]
    assert sum(connection.open for connection in connections) == 1
    assert sorted(connection.kinds()[-1] for connection in connections) == ["caught_up"] + ["final"] * 4
    await life.append("t", 2)
    await settle()
    assert sum(connection.seqs("t").count(2) for connection in connections) == 1


@pytest.mark.trio
async def test_a_take_over_that_is_cancelled_leaves_the_session_usable(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1)
    session, _ = streams.session("t")
    older = await streams.connect(session, stopped=True)
    await settle()
    call = Called(streams.nursery, lambda: streams.connect(session))
    await settle()
    call.scope.cancel()
    await trio.sleep(2)
    assert call.cancelled
    older.go_on_reading()
    await settle()
    assert older.complete
    last = await streams.connect(session)
    await settle()
    assert last.kinds()[-1] == "caught_up"


@pytest.mark.trio
async def test_too_slow_is_not_the_end_of_the_session(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.put("t")
    session, _ = streams.session("t", limit=2)
    slow = await streams.connect(session, stopped=True)
    await life.append("t", *range(10))
    await trio.sleep(40)
    assert slow.aborted
    assert not slow.open
    fast = await streams.connect(session)
    await settle()
    assert fast.seqs("t") == list(range(1, 11))


# --- topics that go ---------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_the_last_topic_takes_the_stream_and_the_session_with_it(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1)
    await life.append("u", 1)
    session, _ = streams.session("t", "u")
    reader = await streams.connect(session)
    await settle()
    await life.engine.topic_lifecycle.delete("t", if_empty=False)
    await settle()
    assert reader.open
    assert [frame.head_seq for frame in reader.of("t", "topic_deleted")] == [1]
    assert positions_of(reader.ids()[-1], ()) == {"u": 1}
    await life.engine.topic_lifecycle.delete("u", if_empty=False)
    await settle()
    assert reader.complete
    assert reader.kinds()[-1] == "topic_deleted"
    assert life.engine.watch_sessions.session_count == 0
    assert (await refusal(streams.connect(session))).code == "not_found"


@pytest.mark.trio
async def test_a_topic_that_went_while_there_was_no_connection(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1, 2)
    await life.append("u", 1)
    session, _ = streams.session("t", "u")
    await life.engine.topic_lifecycle.delete("t", if_empty=False)
    reader = await streams.connect(session)
    await settle()
    assert [(frame.kind, frame.head_seq) for frame in reader.of("t")] == [("topic_deleted", 2)]
    assert reader.seqs("u") == [1]


@pytest.mark.trio
@pytest.mark.parametrize("records", [0, 1, 5])
async def test_a_topic_that_was_made_anew_while_there_was_no_connection(
    records: int, life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1, 2, 3)
    session, _ = streams.session("t")
    first = await streams.connect(session)
    await settle()
    first.cut()
    await settle()
    await life.engine.topic_lifecycle.delete("t", if_empty=False)
    await life.put("t")
    for n in range(records):
        await life.append("t", n)
    second = await streams.connect(session)
    await settle()
    gap = second.frames[0]
    assert (gap.kind, gap.reason, gap.gap_from, gap.gap_to) == ("tombstone", "recreated", 1, records)
    assert second.seqs("t") == list(range(1, records + 1))
    assert second.kinds()[-1] == "caught_up"
    second.cut()
    await settle()
    third = await streams.connect(session)
    await settle()
    assert third.kinds() == ["caught_up"]


@pytest.mark.trio
@pytest.mark.parametrize("lagged", [True, False])
async def test_that_a_topic_was_made_anew_is_told_again_to_who_has_not_got_it(
    lagged: bool, life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1)
    session, _ = streams.session("t")
    first = await streams.connect(session)
    await settle()
    first.cut()
    await settle()
    await life.engine.topic_lifecycle.delete("t", if_empty=False)
    await life.append("t", 1, 2)
    reader = await streams.connect(session, stopped=True, direct=False, whole_frames=True)
    reader.outbox.put(LineFormat.answer("heartbeat", []))
    await trio.sleep(7)
    if lagged:
        reader.go_on_reading()
    else:
        reader.cut()
        await settle()
        reader = await streams.connect(session)
    await settle()
    assert [frame.reason for frame in reader.of("t", "tombstone")] == ["recreated"]
    assert reader.seqs("t") == [1, 2]


@pytest.mark.trio
async def test_the_end_of_a_topic_is_told_again_to_who_has_not_got_it(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1)
    session, _ = streams.session("t")
    first = await streams.connect(session)
    await settle()
    first.stop_reading()
    await life.engine.topic_lifecycle.delete("t", if_empty=False)
    await settle()
    first.cut()
    await settle()
    second = await streams.connect(session)
    await settle()
    assert second.kinds() == ["topic_deleted"]
    assert life.engine.watch_sessions.session_count == 0


@pytest.mark.trio
async def test_a_topic_that_goes_while_its_watcher_wants_room_is_told_once(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t", durability="memory")
    await life.append("other", 1)
    reader = await streams.watch("t", "other", stopped=True)
    for _ in range(40):
        await life.append("t", "x" * 30_000)
    await settle()
    assert reader.outbox.wanting
    await life.engine.topic_lifecycle.delete("t", if_empty=False)
    await settle()
    reader.go_on_reading()
    await trio.sleep(2)
    assert reader.kinds("t").count("topic_deleted") == 1
    assert reader.kinds("t")[-1] == "topic_deleted"


# --- their time -------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_an_idle_session_ends_after_its_time(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with living(settings(session_ttl_ms=10_000)) as life:
        streams, watch_sessions = Streams(life, nursery), life.engine.watch_sessions
        await life.append("t", 1)
        never, _ = streams.session("t")
        shown, _ = streams.session("t")
        reader = await streams.connect(shown)
        await trio.sleep(9)
        assert watch_sessions.session_count == 2
        await trio.sleep(2)
        assert watch_sessions.session_count == 1
        assert (await refusal(streams.connect(never))).code == "not_found"
        with pytest.raises(ApiError):
            watch_sessions.session(never.wid)
        await trio.sleep(100)
        reader.cut()
        await trio.sleep(9)
        assert watch_sessions.session(shown.wid) is shown
        reader = await streams.connect(shown)
        await trio.sleep(60)
        assert reader.open
        reader.cut()
        await trio.sleep(11)
        assert watch_sessions.session_count == 0
        assert life.engine.registry.topics["t"].audience is None


@pytest.mark.trio
async def test_the_daemon_says_farewell_to_all(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with living() as life:
        streams, watch_sessions = Streams(life, nursery), life.engine.watch_sessions
        await life.append("t", 1)
        reader, stopped = await streams.watch("t"), await streams.watch("t", stopped=True)
        socket = streams.socket()
        await settle()
        began = trio.current_time()
        await watch_sessions.say_farewell()
        assert trio.current_time() - began < 2
        await settle()
        assert reader.complete
        assert socket.complete
        assert reader.frames[-1].status == socket.frames[-1].status == 503
        assert stopped.aborted
        late = await streams.watch("t")
        await settle()
        assert late.kinds() == ["final"]


@pytest.mark.trio
async def test_a_daemon_that_another_one_replaces_ends_streams_and_serves_who_comes_again(
    nursery: trio.Nursery, autojump_clock: Any
) -> None:
    async with living() as life:
        streams = Streams(life, nursery)
        await life.append("t", 1)
        reader, socket = await streams.watch("t"), streams.socket()
        await settle()
        life.engine.watch_sessions.send_elsewhere()
        await settle()
        assert reader.complete
        assert socket.complete
        assert reader.frames[-1].status == socket.frames[-1].status == 503
        again = await streams.watch("t")
        await settle()
        assert again.open


# --- caps -------------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_there_are_only_so_many_sessions(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with living(settings(max_watch_sessions=2, session_ttl_ms=1000)) as life:
        streams, watch_sessions = Streams(life, nursery), life.engine.watch_sessions
        await life.append("t", 1)
        for _ in range(2):
            streams.session("t")
        with pytest.raises(ApiError) as refused:
            streams.session("t")
        assert (refused.value.code, refused.value.detail["limit"]) == ("throttled", "max_watch_sessions")
        assert refused.value.detail["max"] == 2
        assert watch_sessions.session_count == 2
        assert life.engine.registry.throttled == {"max_watch_sessions": 1}
        await trio.sleep(2)
        streams.session("t")


@pytest.mark.trio
async def test_there_are_only_so_many_connections(autojump_clock: Any) -> None:
    async with living(settings(max_sse_connections=3)) as life:
        places = life.engine.watch_sessions.places
        places.take("sse", b""), places.take("ws", b"")
        third = places.take("sse", b"")
        with pytest.raises(ApiError) as refused:
            places.take("ws", b"")
        assert (refused.value.code, refused.value.detail["limit"]) == ("throttled", "max_sse_connections")
        third.close()
        third.close()
        assert (places.sse, places.ws) == (1, 1)
        places.take("ws", b"")


@pytest.mark.trio
async def test_a_key_has_only_so_many_connections_of_all_kinds(autojump_clock: Any) -> None:
    async with living(settings(max_sse_connections_per_key=2)) as life:
        places = life.engine.watch_sessions.places
        first = places.take("sse", b"one")
        places.take("ws", b"one")
        with pytest.raises(ApiError) as refused:
            places.take("sse", b"one")
        assert (refused.value.code, refused.value.detail["limit"]) == ("throttled", "max_sse_connections_per_key")
        places.take("sse", b"another")
        first.close()
        places.take("ws", b"one")


@pytest.mark.trio
async def test_a_socket_has_only_so_many_topics(nursery: trio.Nursery, autojump_clock: Any) -> None:
    async with living(settings(max_watch_topics=2)) as life:
        streams = Streams(life, nursery)
        await topics(life, "a", "b", "c")
        socket = streams.socket()
        streams.subscribe(socket, streams.resolve(socket, "a", "b"))
        streams.subscribe(socket, streams.resolve(socket, "a"))
        with pytest.raises(ApiError) as refused:
            streams.resolve(socket, "c")
        assert refused.value.code == "invalid_request"
        streams.unsubscribe(socket, "a")
        streams.subscribe(socket, streams.resolve(socket, "c"))


@pytest.mark.trio
async def test_unknown_topics_are_refused_or_left_out(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.append("t", 1)
    assert list(streams.session("t", "unknown", lenient=True)[1]) == ["t"]
    with pytest.raises(ApiError) as unknown:
        streams.session("t", "unknown")
    assert unknown.value.code == "topic_not_found"
    with pytest.raises(ApiError) as refused:
        life.engine.watch_sessions.open(request("unknown", lenient=True))
    assert refused.value.code == "invalid_request"
    assert life.engine.watch_sessions.session_count == 1


# --- sockets ----------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_subscribing_again_replaces_the_cursor(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.append("t", 1, 2, 3)
    socket = streams.socket()
    streams.subscribe(socket, streams.resolve(socket, "t"))
    await settle()
    streams.subscribe(socket, streams.resolve(socket, "t", start=1))
    await settle()
    assert socket.seqs("t") == [1, 2, 3, 2, 3]
    audience = life.engine.registry.topics["t"].audience
    assert audience is not None
    assert len(audience.consumers) == 1


@pytest.mark.trio
async def test_a_socket_holds_at_most_its_slots(life: Life, streams: Streams, autojump_clock: Any) -> None:
    names = [f"t{n}" for n in range(10)]
    await topics(life, *names)
    socket = streams.socket(4)
    await settle()
    socket.stop_reading()
    streams.subscribe(socket, streams.resolve(socket, *names))
    for name in names:
        await life.append(name, 1)
    await settle()
    assert len(socket.outbox._queue) + len(socket.outbox._flight) == 4
    socket.go_on_reading()
    await trio.sleep(1)
    assert all(socket.seqs(name) == [1] for name in names)
    assert all("caught_up" in socket.kinds(name) for name in names)


@pytest.mark.trio
async def test_a_strong_watcher_is_counted_only_while_it_is_there(nursery: trio.Nursery, autojump_clock: Any) -> None:
    disk = HeldOffload()
    async with living(offload=disk) as life:
        streams = Streams(life, nursery)
        await life.put("t")
        reader = await streams.watch("t", consistency="strong")
        audience = life.engine.registry.topics["t"].audience
        assert audience is not None
        assert audience.strong == 1
        reader.cut()
        await settle()
        assert audience.strong == 0
        assert Pool.WAL in disk.calls


@pytest.mark.trio
async def test_an_id_from_before_a_topic_was_made_anew_is_told_so_again(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    """What the connection in between took was lost on the way: a seq alone would not tell of which instance it is."""
    await life.append("t", 1, 2, 3)
    session, _ = streams.session("t")

    async def shown(last_event_id: str | None = None) -> Connection:
        connection = await streams.connect(session, last_event_id)
        await settle()
        connection.cut()
        await settle()
        return connection

    first = await shown()
    await life.engine.topic_lifecycle.delete("t", if_empty=False)
    await life.append("t", *range(5))
    between = await shown()
    known, newer = first.ids()[-1], between.ids()[-1]
    for last_event_id in (known, known, newer):  # the newer one, too, is from before it was told again
        again = await shown(last_event_id)
        assert [frame.reason for frame in again.of("t", "tombstone")] == ["recreated"]
        assert again.seqs("t") == [1, 2, 3, 4, 5]
        latest = again.ids()[-1]
    assert (await shown(latest)).kinds("t") == ["caught_up"]


@pytest.mark.trio
@pytest.mark.parametrize("topics", [2, NAMED_CURSORS + 1])
async def test_the_end_of_a_topic_is_told_again_to_an_id_from_before_it(
    topics: int, life: Life, streams: Streams, autojump_clock: Any
) -> None:
    """The connection had taken the frame, and broke before its client had it."""
    names = [f"t{n}" for n in range(topics)]
    for name in names:
        await life.append(name, 1)
    session, _ = streams.session(*names)
    first = await streams.connect(session)
    await settle()
    before = first.ids()[-1]
    await life.engine.topic_lifecycle.delete("t0", if_empty=False)
    await settle()
    assert first.kinds("t0")[-1] == "topic_deleted"
    after = first.ids()[-1]
    first.cut()
    await settle()
    for last_event_id, kinds in ((before, ["topic_deleted"]), (after, []), (before, ["topic_deleted"]), (None, [])):
        again = await streams.connect(session, last_event_id)
        await settle()
        assert again.kinds("t0") == kinds
        assert "t1" not in {name for name in names if again.kinds(name) == ["topic_deleted"]}
        again.cut()
        await settle()
    # One of the same name is another topic, of which this session knows nothing.
    await life.append("t0", 1, 2)
    again = await streams.connect(session, before)
    await settle()
    assert [(frame.kind, frame.head_seq) for frame in again.of("t0")] == [("topic_deleted", 1)]
