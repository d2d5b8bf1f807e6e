"""Watching topics by prefix: those that exist, those that come later, those that go, and those there is no room for."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.engine.delivery.client import Streams, request
from tests.engine.life import Life, living, refusal, settings, settle
from topics.auth.keys import Key, Scope
from topics.engine.delivery.outbox import OUTBOX_BYTES
from topics.engine.delivery.prefix_watches import MOST_NAMED, PrefixWatch, PrefixWatches
from topics.engine.delivery.prefix_wishes import MOST_PREFIXES, PrefixWishes, disjoint, wishes_of
from topics.engine.record_collector import RecordRequest
from topics.model import WatchRequest, WatchStart

WISH = RecordRequest(256, 256 << 10)


# --- which topics -----------------------------------------------------------------------------------------------------

NAMES = st.text("ab.", max_size=4)


def wishes(*prefixes: str, key: tuple[str, ...] = ()) -> PrefixWishes:
    covered = Key(b"x", Scope.READ, tuple(disjoint(key))).covered
    return wishes_of(prefixes, covered, lambda _: WISH, consistency="eventual")


@given(st.lists(NAMES, max_size=4), st.lists(NAMES.filter(bool), max_size=3), NAMES)
@hypothesis_settings(max_examples=300)
def test_the_longest_prefix_wins_among_what_the_key_covers(prefixes: list[str], key: list[str], name: str) -> None:
    found = wishes(*prefixes, key=tuple(key)).of(name)
    matching = [prefix for prefix in prefixes if name.startswith(prefix)]
    if matching and (not key or name.startswith(tuple(key))):
        assert found is not None
        assert found.prefix == max(matching, key=len)
    else:
        assert found is None


@given(st.lists(st.lists(NAMES, min_size=1, max_size=3), max_size=4), st.data())
@hypothesis_settings(max_examples=200)
def test_a_new_topic_is_told_to_the_watches_that_match_it_and_to_no_others(
    watched: list[list[str]], data: st.DataObject
) -> None:
    index = PrefixWatches()
    watches = []
    for prefixes in watched:
        watch = PrefixWatch.__new__(PrefixWatch)
        watch.wishes = wishes(*prefixes)
        index.add(watch)
        watches.append(watch)
    gone = data.draw(st.sets(st.integers(0, len(watches) - 1))) if watches else set()
    for i in gone:
        index.discard(watches[i])
        index.discard(watches[i])
    name = data.draw(NAMES)
    expected = [watch for i, watch in enumerate(watches) if i not in gone and watch.wishes.of(name) is not None]
    found = index.of(name)
    assert len(found) == len(expected)
    assert set(found) == set(expected)
    for watch in expected:
        index.discard(watch)
    if len(gone) + len(expected) == len(watches):
        assert not index._by_prefix
        assert not index._lengths


@pytest.mark.trio
async def test_existing_topics_are_in_the_answer_and_tail_is_theirs_alone(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1, 2)
    await life.append("b.x", 1)
    session, found = streams.session(prefixes=("a.",), start=None)
    assert {name: (at.from_seq, at.head_seq) for name, at in found.items()} == {"a.x": (2, 2)}
    reader = await streams.connect(session)
    await life.append("a.x", 3)
    await life.append("a.y", 1, 2)
    await settle()
    assert reader.kinds("b.x") == []
    assert reader.seqs("a.x") == [3]
    assert not reader.of("a.x", "topic_added")
    assert reader.kinds("a.y")[0] == "topic_added"
    assert reader.seqs("a.y") == [1, 2]
    added = reader.of("a.y")[0]
    assert (added.from_seq, added.earliest_seq, added.epoch) == (0, 1, life.engine.registry.topics["a.y"].id)


@pytest.mark.trio
async def test_named_topics_beat_prefixes(life: Life, streams: Streams) -> None:
    for name in ("a.x", "a.y"):
        await life.append(name, 1, 2, 3)
    session, found = life.engine.watch_sessions.open(with_prefix(request("a.x", start=2), "a."))
    assert {name: at.from_seq for name, at in found.items()} == {"a.x": 2, "a.y": 0}
    reader = await streams.connect(session)
    await settle()
    assert reader.seqs("a.x") == [3]
    assert reader.seqs("a.y") == [1, 2, 3]


def with_prefix(asked: WatchRequest, prefix: str, **start: Any) -> WatchRequest:
    return replace(asked, prefixes={**asked.prefixes, prefix: WatchStart(**start)})


@pytest.mark.trio
async def test_the_start_is_that_of_the_longest_prefix(life: Life, streams: Streams) -> None:
    for name in ("a.x", "a.b.x"):
        await life.append(name, 1, 2)
    _, found = life.engine.watch_sessions.open(with_prefix(with_prefix(request(), "a."), "a.b.", tail=True))
    assert {name: at.from_seq for name, at in found.items()} == {"a.x": 0, "a.b.x": 2}


@pytest.mark.trio
async def test_the_empty_prefix_is_that_of_every_topic(life: Life, streams: Streams) -> None:
    await life.append("a", 1)
    reader = await streams.watch(prefixes=("",))
    await life.append("z", 1)
    await settle()
    assert (reader.seqs("a"), reader.seqs("z")) == ([1], [1])


@pytest.mark.trio
async def test_what_a_key_does_not_cover_is_left_out_in_silence(life: Life, streams: Streams) -> None:
    for name in ("a.1", "a.2", "b.1"):
        await life.append(name, 1)
    covered = Key(b"k", Scope.READ, ("a.2", "a.3", "c.")).covered
    session, found = life.engine.watch_sessions.open(request(prefixes=("a.",)), b"k", covered)
    assert list(found) == ["a.2"]
    assert session.names == ["a.2", "a.2", "a.3"]
    reader = await streams.connect(session)
    for name in ("a.3", "a.4", "b.2", "c.1"):
        await life.append(name, 1)
    await settle()
    assert {frame.topic for frame in reader.frames} == {"a.2", "a.3"}
    session, found = life.engine.watch_sessions.open(request(prefixes=("b.",)), b"k", covered)
    assert not found
    reader = await streams.connect(session)
    await life.append("b.3", 1)
    await settle()
    assert reader.frames == []
    assert reader.open


# --- topics that come and go ------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_the_stream_does_not_end_by_deletions_and_made_again_is_added_anew(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1)
    session, _ = streams.session(prefixes=("a.",))
    reader = await streams.connect(session)
    await settle()
    await life.engine.topic_lifecycle.delete("a.x", if_empty=False)
    await settle()
    assert reader.kinds("a.x") == ["record", "caught_up", "topic_deleted"]
    await life.append("a.x", "new")
    await settle()
    assert reader.kinds("a.x")[3] == "topic_added"
    assert reader.seqs("a.x") == [1, 1]
    assert reader.of("a.x", "topic_added")[0].epoch == life.engine.registry.topics["a.x"].id
    assert reader.open


@pytest.mark.trio
async def test_a_session_without_a_topic_stays(life: Life, streams: Streams) -> None:
    session, found = streams.session(prefixes=("a.",))
    assert not found
    reader = await streams.connect(session)
    reader.cut()
    await settle()
    reader = await streams.connect(session)
    await life.append("a.x", 1)
    await settle()
    assert reader.kinds()[0] == "topic_added"
    assert reader.seqs("a.x") == [1]


@pytest.mark.trio
async def test_what_was_made_while_the_client_was_away_is_added(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1)
    session, _ = streams.session(prefixes=("a.",), start=None)
    reader = await streams.connect(session)
    await settle()
    reader.cut()
    await settle()
    await life.append("a.y", 1, 2)
    await life.append("a.x", 2)
    again = await streams.connect(session, reader.ids()[-1])
    await settle()
    assert again.seqs("a.x") == [2]
    assert again.kinds("a.y") == ["topic_added", "record", "caught_up"]
    assert again.seqs("a.y") == [1, 2]


@pytest.mark.trio
async def test_what_was_made_again_while_the_client_was_away_is_told_in_order(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1, 2)
    session, _ = streams.session(prefixes=("a.",))
    reader = await streams.connect(session)
    await settle()
    reader.cut()
    await settle()
    await life.engine.topic_lifecycle.delete("a.x", if_empty=False)
    await life.append("a.x", "new")
    for with_id in (None, reader.ids()[-1], reader.ids()[0]):
        again = await streams.connect(session, with_id)
        await settle()
        # With an id the client says each time that it has not heard of that.
        assert again.kinds("a.x") == ["topic_deleted", "topic_added", "record", "caught_up"]
        again.cut()
        await settle()


@pytest.mark.trio
async def test_an_older_id_brings_the_addition_again(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1)
    session, _ = streams.session(prefixes=("a.",))
    reader = await streams.connect(session)
    await settle()
    before = reader.ids()[-1]
    await life.append("a.y", 1)
    await settle()
    again = await streams.connect(session, before)
    await settle()
    assert again.kinds("a.y") == ["topic_added", "record", "caught_up"]
    assert again.kinds("a.x") == ["caught_up"]
    last = await streams.connect(session, again.ids()[-1])
    await life.append("a.y", 2)
    await settle()
    assert "topic_added" not in last.kinds("a.y")
    assert last.seqs("a.y") == [2]


@pytest.mark.trio
async def test_a_topic_that_is_gone_before_it_was_told_is_not_told(life: Life, streams: Streams) -> None:
    await life.append("a.x", "x" * (OUTBOX_BYTES + 1))
    session, _ = streams.session(prefixes=("a.",))
    reader = await streams.connect(session, stopped=True)
    await settle()
    await life.append("a.y", 1)
    await settle()
    await life.engine.topic_lifecycle.delete("a.y", if_empty=False)
    await settle()
    assert [feed.name for feed in session.feeds] == ["a.x"]
    reader.go_on_reading()
    await settle()
    assert reader.kinds("a.y") == []
    await life.append("a.y", 1)
    await settle()
    assert reader.kinds("a.y")[0] == "topic_added"


@pytest.mark.trio
async def test_a_client_that_is_slow_is_told_of_additions_again(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    """After 5 s the frames that wait are dropped, `topic-added` among them."""
    session, _ = streams.session(prefixes=("a.",))
    reader = await streams.connect(session, stopped=True)
    await life.append("a.x", "x" * 1000)
    await settle()
    for n in range(3):
        await life.append("a.y", n)
    await settle()
    await trio.sleep(10)
    reader.go_on_reading()
    await settle()
    assert reader.kinds("a.y")[0] == "topic_added"
    assert reader.kinds("a.y").count("topic_added") == 1
    assert reader.seqs("a.y") == [1, 2, 3]


@pytest.mark.trio
async def test_a_named_topic_that_is_made_again_is_told_so_and_a_deleted_one_may_come_back(
    life: Life, streams: Streams
) -> None:
    await life.append("a.x", 1)
    session, _ = streams.session("a.x", prefixes=("a.",))
    reader = await streams.connect(session)
    await settle()
    last = reader.ids()[-1]
    reader.cut()
    await settle()
    await life.engine.topic_lifecycle.delete("a.x", if_empty=False)
    await life.append("a.x", "new")
    for _ in range(2):
        again = await streams.connect(session, last)
        await settle()
        assert next((f.kind, f.reason) for f in again.of("a.x")) == ("tombstone", "recreated")
        assert again.seqs("a.x") == [1]
    await life.engine.topic_lifecycle.delete("a.x", if_empty=False)
    await settle()
    await life.append("a.x", "newer")
    await settle()
    kinds = again.kinds("a.x")
    assert kinds.index("topic_added") == kinds.index("topic_deleted") + 1
    assert again.seqs("a.x") == [1, 1]
    third = await streams.connect(session, last)  # it knows only the first of the three
    await settle()
    assert third.kinds("a.x") == ["topic_deleted", "topic_added", "record", "caught_up"]


@pytest.mark.trio
async def test_a_topic_that_is_waited_for_by_name_is_not_added(life: Life, streams: Streams) -> None:
    session, found = streams.session("a.x", prefixes=("a.",), create=True)
    assert found["a.x"].epoch is None
    reader = await streams.connect(session)
    await life.append("a.y", 1)
    await settle()
    before = reader.ids()[-1]
    await life.append("a.x", 1)
    await settle()
    assert "topic_added" not in reader.kinds("a.x")
    again = await streams.connect(session, before)
    await settle()
    assert again.seqs("a.x") == [1]
    assert not again.of("a.x", "tombstone")


def event_id(text: bytes) -> str:
    return urlsafe_b64encode(text).rstrip(b"=").decode()


@pytest.mark.trio
@pytest.mark.parametrize(
    "damaged",
    ["", "é", "!", *map(event_id, (b"{}", b"[1]", b'{"a.x":1}', b"[[1]]", b"[[1,2,3]]", b"[[1,-1]]", b"[[1,2]]x"))],
)
async def test_a_damaged_id_is_refused(life: Life, streams: Streams, damaged: str) -> None:
    await life.append("a.x", 1)
    session, _ = streams.session(prefixes=("a.",))
    error = await refusal(streams.connect(session, damaged))
    assert (error.code, error.detail["field"]) == ("invalid_request", "Last-Event-ID")
    assert (await streams.connect(session)).open


@pytest.mark.trio
async def test_an_id_with_an_instance_that_nobody_remembers_ends_the_session(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1)
    session, _ = streams.session(prefixes=("a.",))
    reader = await streams.connect(session)
    await settle()
    error = await refusal(streams.connect(session, event_id(b"[[1,1],[987654,1]]")))
    assert error.code == "not_found"
    await settle()
    assert not reader.open
    assert life.engine.watch_sessions.session_count == 0
    assert (await refusal(streams.connect(session))).code == "not_found"
    assert not life.engine.delivery.prefixes._by_prefix


@pytest.mark.trio
async def test_an_id_does_not_tell_of_topics_that_the_session_cannot_know(life: Life, streams: Streams) -> None:
    await life.append("secret", 1)
    epoch = life.engine.registry.topics["secret"].id
    session, _ = streams.session(prefixes=("a.",))
    for _ in range(2):
        reader = await streams.connect(session, event_id(b"[[%d,1]]" % epoch))
        await settle()
        assert reader.frames == []
        if "secret" in life.engine.registry.topics:
            await life.engine.topic_lifecycle.delete("secret", if_empty=False)


# --- no room ----------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_what_is_too_much_is_left_out_and_named(autojump_clock: Any, nursery: trio.Nursery) -> None:
    async with living(settings(max_watch_topics=3)) as life:
        streams = Streams(life, nursery)
        for n in range(5):
            await life.append(f"a.{n}", 1)
        session, found = streams.session(prefixes=("a.",))
        assert list(found) == ["a.0", "a.1", "a.2"]
        reader = await streams.connect(session)
        await life.append("a.5", 1)
        await life.append("b", 1)
        await settle()
        told = [(frame.topics, frame.count) for frame in reader.frames if frame.kind == "left_out"]
        assert told == [(["a.3", "a.4"], 2), (["a.5"], 1)]
        assert life.engine.registry.throttled["max_watch_topics"] == 2
        assert all(not received.line for received in reader.received if received.frame.kind == "left_out")
        await life.engine.topic_lifecycle.delete("a.0", if_empty=False)
        await life.append("a.6", 1)  # there is room now
        await settle()
        assert reader.seqs("a.6") == [1]
        again = await streams.connect(session)
        await settle()
        told = [(frame.topics, frame.count) for frame in again.frames if frame.kind == "left_out"]
        assert told == [(["a.3", "a.4", "a.5"], 3)]


@pytest.mark.trio
async def test_of_very_many_the_first_are_named_and_all_are_counted(autojump_clock: Any, nursery: trio.Nursery) -> None:
    async with living(settings(max_watch_topics=2, max_topics=0)) as life:
        streams = Streams(life, nursery)
        names = [f"a.{n:03}" for n in range(MOST_NAMED + 50)]
        for name in (*names, "b"):
            await life.put(name)
        reader = await streams.watch("a.000", "b", prefixes=("a.", "a.0"))
        await settle()
        (told,) = [frame for frame in reader.frames if frame.kind == "left_out"]
        assert told.topics == names[1 : MOST_NAMED + 1]
        assert told.count == MOST_NAMED + 49


@pytest.mark.trio
async def test_a_slow_client_is_told_once_what_was_left_out_meanwhile(
    autojump_clock: Any, nursery: trio.Nursery
) -> None:
    async with living(settings(max_watch_topics=1)) as life:
        streams = Streams(life, nursery)
        await life.append("a.0", "x" * (OUTBOX_BYTES + 1))
        reader = await streams.watch(prefixes=("a.",), stopped=True)
        await settle()
        for n in range(MOST_NAMED + 20):
            await life.put(f"a.{n + 1}")
        reader.go_on_reading()
        await settle()
        (told,) = [frame for frame in reader.frames if frame.kind == "left_out"]
        assert len(told.topics) == MOST_NAMED
        assert told.count == MOST_NAMED + 20


# --- nothing stays behind ---------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_watch_without_a_connection_is_not_told_of_topics(life: Life, streams: Streams) -> None:
    index = life.engine.delivery.prefixes
    session, _ = streams.session(prefixes=("a.", "b."))
    assert not index._by_prefix
    reader = await streams.connect(session)
    assert len(index.of("a.x")) == 1
    newer = await streams.connect(session)
    assert len(index.of("a.x")) == 1
    newer.cut()
    await settle()
    assert not reader.open
    assert not index._by_prefix
    assert not index._lengths


# --- sockets ----------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_socket_subscribes_to_a_prefix_and_leaves_it(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1, 2)
    socket = streams.socket()
    assert streams.subscribe_prefix(socket, "a.", start=None) == ["a.x"]
    await life.append("a.x", 3)
    await life.append("a.y", 1)
    await settle()
    assert socket.seqs("a.x") == [3]
    assert socket.kinds("a.y")[0] == "topic_added"
    assert socket.seqs("a.y") == [1]
    assert sorted(streams.unsubscribe_prefix(socket, "a.")) == ["a.x", "a.y"]
    assert streams.unsubscribe_prefix(socket, "a.") == []
    await life.append("a.x", 4)
    await life.append("a.z", 1)
    await settle()
    assert socket.seqs("a.x") == [3]
    assert socket.kinds("a.z") == []
    assert not life.engine.delivery.prefixes._by_prefix


@pytest.mark.trio
async def test_on_a_socket_the_longest_prefix_wins_in_either_order(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1)
    await life.append("a.b.x", 1)
    socket = streams.socket()
    assert streams.subscribe_prefix(socket, "a.") == ["a.b.x", "a.x"]
    await settle()
    assert streams.subscribe_prefix(socket, "a.b.", start=None) == ["a.b.x"]
    assert streams.subscribe_prefix(socket, "a.", start=None) == ["a.x"]
    await settle()
    prefixes = {feed.name: feed.prefix for feed in socket.outbox.feeds}
    assert prefixes == {"a.x": "a.", "a.b.x": "a.b."}
    assert streams.unsubscribe_prefix(socket, "a.b.") == []  # it stays, as one of "a."
    await life.append("a.b.x", 2)
    await settle()
    assert socket.seqs("a.b.x") == [1, 2]
    assert sorted(streams.unsubscribe_prefix(socket, "a.")) == ["a.b.x", "a.x"]


@pytest.mark.trio
async def test_on_a_socket_a_named_topic_beats_a_prefix_and_one_that_was_left_stays_out(
    life: Life, streams: Streams
) -> None:
    for name in ("a.x", "a.y"):
        await life.append(name, 1)
    socket = streams.socket()
    streams.subscribe(socket, streams.resolve(socket, "a.x"))
    await settle()
    assert streams.subscribe_prefix(socket, "a.") == ["a.y"]
    await settle()
    streams.unsubscribe(socket, "a.y")
    await life.append("a.y", 2)
    await settle()
    assert socket.seqs("a.y") == [1]
    assert streams.unsubscribe_prefix(socket, "a.") == []
    await life.append("a.x", 2)
    await settle()
    assert socket.seqs("a.x") == [1, 2]


@pytest.mark.trio
async def test_a_topic_that_comes_again_is_added_to_a_socket(life: Life, streams: Streams) -> None:
    await life.append("a.x", 1)
    socket = streams.socket()
    streams.subscribe_prefix(socket, "a.")
    await settle()
    await life.engine.topic_lifecycle.delete("a.x", if_empty=False)
    await life.append("a.x", 1)
    await settle()
    kinds = socket.kinds("a.x")
    assert kinds[:4] == ["record", "caught_up", "topic_deleted", "topic_added"]
    assert socket.seqs("a.x") == [1, 1]
    socket.cut()
    await settle()
    assert not life.engine.delivery.prefixes._by_prefix


@pytest.mark.trio
async def test_a_socket_has_a_bound_of_prefixes_and_of_topics(autojump_clock: Any, nursery: trio.Nursery) -> None:
    async with living(settings(max_watch_topics=2)) as life:
        streams = Streams(life, nursery)
        socket = streams.socket(slots=1000)
        for n in range(MOST_PREFIXES):
            streams.subscribe_prefix(socket, f"p{n}.")

        async def one_more() -> None:
            streams.subscribe_prefix(socket, "q.")

        error = await refusal(one_more())
        assert (error.code, error.detail["max"]) == ("invalid_request", MOST_PREFIXES)
        streams.subscribe_prefix(socket, "p0.")
        for n in range(3):
            await life.append(f"p1.{n}", 1)
        await settle()
        assert len(socket.outbox.feeds) == 2
        (told,) = [frame for frame in socket.frames if frame.kind == "left_out"]
        assert (told.topics, told.count) == (["p1.2"], 1)
