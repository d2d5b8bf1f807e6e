"""`verify` and `inspect` on directories with routers: no damage in what they leave, a clear sentence about what a copy
needs and is not there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.disk import SimFs
from tests.simulation.wal_content import scan_of, sealed_for
from tests.simulation.world import Life, World, quiet, wrecks_of
from tests.storage.made import COLD, CONFIG, ROOT
from tests.storage.offline.test_verify import (
    DIRS,
    change_part,
    crashed_while,
    damage,
    files,
    last_log,
    log_end,
    looked_at_while,
    overwrite,
    verify,
)
from tests.storage.routed import routed, settle
from topics.storage.offline.directory_facts import DirectoryFacts
from topics.storage.offline.findings import Finding
from topics.storage.offline.frame_dump import FrameFacts
from topics.storage.offline.inspect import Inspection
from topics.storage.offline.verify_routers import RouterCursors, contradiction
from topics.storage.recovery.recovered_state import shard_of
from topics.storage.wal.frames import CONTINUES, Frame, FrameType, UnsealedFrames, control_payload, encode_control

pytestmark = pytest.mark.slow


@cache
def _routed(end: str) -> SimFs:
    return routed(7, end=end).fs


@pytest.fixture
def stopped() -> SimFs:
    return _routed("stop").after_process_kill()


@pytest.fixture
def killed() -> SimFs:
    return _routed("kill").after_process_kill()


def problems(fs: SimFs) -> list[str]:
    return [finding.problem for finding in damage(fs)]


# ----------------------------------------------------------------- what routers leave


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_there_is_no_damage_in_what_routers_leave(end: str) -> None:
    found = verify(_routed(end).after_process_kill())
    assert {finding.severity for finding in found} == {"note"}
    gone = [finding.problem for finding in found if "of a deleted topic: " in finding.problem]
    assert ["it stays as long as copies point to it" in problem for problem in gone] == [end == "kill"]


def test_a_router_whose_source_is_gone_is_a_note(killed: SimFs) -> None:
    (note,) = [finding for finding in verify(killed) if "router" in finding.problem]
    assert note.problem == "router 'narrow': its source, topic 4, is gone: the next start drops it"


@pytest.mark.parametrize(
    ("stride", "count"),
    [(97, 20), pytest.param(17, 80 if EVERYTHING else 30, marks=pytest.mark.slow)],
    ids=["some", "many"],
)
def test_what_a_crash_leaves_is_no_damage(stride: int, count: int) -> None:
    crashed_while(routed, stride, count)


@pytest.mark.parametrize(
    "count", [6, pytest.param(20 if EVERYTHING else 12, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_what_the_start_after_a_crash_leaves_is_no_damage(count: int) -> None:
    world = World(6, config=CONFIG)
    wrecks = wrecks_of(world, lambda: 0, stride=23)
    routed(6, world=world)
    chance = random.Random(6)

    async def forward_what_is_due(life: Life) -> None:
        await settle(life, *life.engine.registry.topics)
        await trio.sleep(0.1)

    for _ in range(count):
        wreck = chance.choice(wrecks)
        kind: Any = chance.choice(["kill", "drop", "keep", "tear", "reorder"])
        left = wreck.world(kind, chance.randrange(100), CONFIG)
        left.live(forward_what_is_due, end="kill")
        assert damage(left.after("kill").fs) == [], (str(wreck), kind)


@pytest.mark.parametrize("every", [97, pytest.param(31 if EVERYTHING else 61, marks=pytest.mark.slow)])
def test_a_working_daemon_is_no_damage(every: int) -> None:
    looked_at_while(routed, every)


# ----------------------------------------------------------------- bytes that copies need


def forwarded(fs: SimFs) -> Iterator[tuple[str, Frame, dict[str, Any]]]:
    """The Forwarded frames with recipes in the logs, newest first."""
    for path, content in sorted(files(fs, ".log").items(), reverse=True):
        for frame in reversed(scan_of(content).frames):
            if frame.type == FrameType.FORWARDED:
                payload = control_payload(content, 0, frame)
                if "kinds" in payload:
                    yield path, frame, payload


def recipe_of(fs: SimFs, kind: str, router: str) -> tuple[str, Frame, dict[str, Any]]:
    """The newest one of a router that names this kind of file."""
    return next(found for found in forwarded(fs) if found[2]["files"][0][0] == kind and found[2]["router"] == router)


def test_a_flipped_bit_in_a_forwarded_frame_is_found(stopped: SimFs) -> None:
    path, frame, _ = recipe_of(stopped, "wal", "one")
    stopped.flip_bit(path, frame.offset + 60, 2)
    first, *_ = damage(stopped)
    assert (first.path, first.offset) == (path, frame.offset)
    assert f"the bytes up to {frame.end} are no valid frames" in first.problem


def test_a_flipped_bit_in_a_record_that_a_copy_needs_is_found_with_the_copy(killed: SimFs) -> None:
    path, frame, payload = recipe_of(killed, "wal", "one")
    _, shard, ordinal = payload["files"][0]
    source = next(file for file in files(killed, f"shard-{shard:02d}/") if file.endswith(f"{ordinal:020d}.log"))
    offset = payload["extents"][0][3]
    killed.flip_bit(source, offset + 50, 5)
    found = damage(killed)
    sentence = f"is a copy of the frame at {offset} of {source}, and no such frame is there"
    assert Finding(path, frame.offset, f"seq {frame.seq} of topic 'copies' {sentence}", "damage") in found
    assert any(finding.path == source and "are no valid frames" in finding.problem for finding in found)


def test_a_flipped_bit_in_a_segment_that_a_copy_needs_is_found_with_the_copy(killed: SimFs) -> None:
    path, frame, payload = recipe_of(killed, "segment", "orphan")
    source = DIRS.segment_path(payload["files"][0][1], payload["files"][0][2], "data")
    offset = payload["extents"][0][3]
    killed.flip_bit(source, offset + 35, 1)
    sentence = f"is a copy of the frame at {offset} of {source}, and no such frame is there"
    assert damage(killed) == [Finding(path, frame.offset, f"seq {frame.seq} of topic 'orphaned' {sentence}", "damage")]


def test_a_missing_segment_that_copies_need_is_found(killed: SimFs) -> None:
    path, frame, payload = recipe_of(killed, "segment", "orphan")
    source = DIRS.segment_path(payload["files"][0][1], payload["files"][0][2], "data")
    killed.unlink(source)
    (found,) = [finding for finding in damage(killed) if finding.path == path and finding.offset == frame.offset]
    assert found.problem.startswith(f"seqs {frame.seq} to ")
    assert found.problem.endswith(f"of {source}, and that file is missing")
    assert any(finding.problem.endswith(": no cold directory is given") for finding in damage(killed, None))


def test_copies_of_what_the_source_has_lost_behind_its_last_sync_are_a_note(killed: SimFs) -> None:
    _, frame, payload = recipe_of(killed, "wal", "two")  # into another shard
    _, shard, _ = payload["files"][0]
    source = last_log(killed, shard)
    content = files(killed)[source]
    rows = scan_of(content).frames
    end = max(row.offset for row in rows if row.offset <= payload["extents"][0][3] and not row.flags & CONTINUES)
    overwrite(killed, source, end, bytes(len(content) - end))
    found = verify(killed)
    assert {finding.severity for finding in found} == {"note"}
    lost = f"of {source}, behind the end of that log: the next start announces it as lost"
    assert [finding for finding in found if finding.offset == frame.offset and finding.problem.endswith(lost)]


# ----------------------------------------------------------------- frames that contradict themselves, or each other


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"from": 900}, "it is about seqs 900 to"),
        ({"total": 0}, "copies of"),
        ({"mask": [1, b"\x00"]}, "its mask is not about seqs"),
        ({"trim": True}, "a trim that makes copies"),
        ({"lens": b"\1\0\0\0"}, "1 by lens"),
        ({"files": []}, "its extents are not those of its files"),
        ({"flags": None}, "a recipe without flags"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_found(killed: SimFs, change: dict[str, Any], problem: str) -> None:
    _, frame, payload = recipe_of(killed, "wal", "one")
    assert contradiction(frame, payload) is None
    changed = {name: value for name, value in {**payload, **change}.items() if value is not None}
    assert problem in str(contradiction(frame, changed))


def test_copies_that_are_not_of_what_was_chosen_are_found(killed: SimFs) -> None:
    _, frame, payload = recipe_of(killed, "wal", "one")
    first, *rest = payload["extents"]
    payload["extents"] = [[first[0], first[1], first[2] + 1, first[3]], *rest]
    assert "of the source was chosen" in str(contradiction(frame, payload))


def put_frame(fs: SimFs, path: str, at: int, frame: UnsealedFrames) -> None:
    overwrite(fs, path, at, sealed_for(files(fs)[path], frame, at))


def test_a_contradiction_is_found_in_the_log(killed: SimFs) -> None:
    _, frame, payload = recipe_of(killed, "wal", "one")
    log = last_log(killed, shard_of(frame.topic_id, 2))
    end = log_end(files(killed)[log])
    bad = {**payload, "sizes": b""}
    put_frame(killed, log, end, encode_control(FrameType.FORWARDED, bad, topic_id=frame.topic_id, seq=9999, ts=1))
    (found, *_) = damage(killed)
    assert (found.path, found.offset) == (log, end)
    assert found.problem.startswith(f"a Forwarded frame of topic {frame.topic_id}: its recipe contradicts itself")


def test_seqs_that_are_left_out_or_come_twice_are_found(killed: SimFs) -> None:
    _, frame, payload = recipe_of(killed, "wal", "one")
    log = last_log(killed, shard_of(frame.topic_id, 2))
    end = log_end(files(killed)[log])
    trim = {name: payload[name] for name in ("router", "source")} | {
        "trim": True,
        "count": 0,
        "total": payload["total"],
    }
    trim |= {"from": payload["to"] + 1, "to": payload["to"] + 5}
    head = frame.seq + len(payload["flags"]) - 1
    for seq, problem in ((head + 3, "comes directly behind"), (head - 1, "comes once more, after")):
        put_frame(killed, log, end, encode_control(FrameType.FORWARDED, trim, topic_id=frame.topic_id, seq=seq, ts=1))
        assert f"topic {frame.topic_id}: seq {seq} {problem} seq {head}" in problems(killed)
    good = encode_control(FrameType.FORWARDED, trim, topic_id=frame.topic_id, seq=head + 1, ts=1)
    put_frame(killed, log, end, good)
    assert problems(killed) == []
    back = {**trim, "from": payload["to"]}
    put_frame(killed, log, end, encode_control(FrameType.FORWARDED, back, topic_id=frame.topic_id, seq=head + 1, ts=1))
    assert any("router 'one' goes on at seq" in problem for problem in problems(killed))


def test_cursors_begin_where_a_router_is_created_anew() -> None:
    cursors = RouterCursors()
    step = {"router": "r", "source": 1, "from": 5, "to": 9, "count": 2, "total": 7}
    assert cursors.forward(2, step) is None  # where it was before is not known
    cursors.create(2, ["r", 1, 0, 0, {}])  # an update
    assert cursors.forward(2, {**step, "from": 10, "to": 12, "total": 9}) is None
    assert "has made 10 copies, after 9" in str(cursors.forward(2, {**step, "from": 13, "to": 14, "total": 10}))
    cursors.delete(2, "r")
    assert cursors.forward(2, {**step, "from": 15, "to": 16, "total": 12}) is None  # was on its way
    cursors.create(2, ["r", 1, 3, 0, {}])
    assert "goes on at seq 5, and it was at 3" in str(cursors.forward(2, {**step, "total": 2}))


# ----------------------------------------------------------------- parts


def id_of(fs: SimFs, name: str) -> int:
    return next(topic.id for topic in facts(fs).topics if topic.name == name)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda part: setattr(part, "origins", [[1, [1], []]]), "bad runs of full chunks"),
        (lambda part: setattr(part, "origins", None), "origins are kept where a router is exactly_once"),
        (lambda part: part.routers[0].pop(), "contradicts itself"),
        (lambda part: part.routers.append(part.routers[0]), "a router twice"),
    ],
)
def test_a_part_whose_routers_or_origins_are_none_is_damage(stopped: SimFs, change: Any, problem: str) -> None:
    topic_id = id_of(stopped, "joined")
    change_part(stopped, topic_id, change)
    assert any(problem in found.problem for found in damage(stopped) if found.path == DIRS.manifest_path(topic_id))


def test_routers_between_topics_that_never_were_are_damage(stopped: SimFs) -> None:
    topic_id = id_of(stopped, "far")
    change_part(stopped, topic_id, lambda part: part.routers[0].__setitem__(1, 99))
    assert problems(stopped) == ["router 'two': its source, topic 99, was never there"]


# ----------------------------------------------------------------- inspect


def facts(fs: SimFs) -> DirectoryFacts:
    with quiet():
        return Inspection(fs, ROOT, COLD).facts()


def frames(fs: SimFs, kind: str) -> list[FrameFacts]:
    return [frame for frame in Inspection(fs, ROOT, COLD).frames() if frame.type == kind]


def test_topics_are_shown_with_the_routers_that_feed_them(killed: SimFs) -> None:
    found = facts(killed)
    assert found.refused is None
    joined = next(topic for topic in found.topics if topic.name == "joined")
    assert [(router.name, router.source) for router in joined.routers] == [("left", "orders"), ("right", "copies")]
    assert joined.keeps_origins
    assert 0 < joined.derived == joined.unstored
    orders = next(topic for topic in found.topics if topic.name == "orders")
    assert (orders.routers, orders.keeps_origins, orders.derived) == ([], False, 0)
    assert joined.routers[0].cursor == orders.head_seq
    assert joined.routers[0].config["guarantee"] == "exactly_once"


def test_frames_about_routers_are_shown_readably(killed: SimFs) -> None:
    created = frames(killed, "RouterCreate")[-1]
    assert created.payload.startswith("router='orphan' source='narrow' cursor=0 copies=0 config={")
    (deleted,) = frames(killed, "RouterDelete")
    assert (deleted.topic, deleted.payload) == ("gone", "name='over'")
    path, frame, payload = recipe_of(killed, "segment", "after")
    shown = next(one for one in frames(killed, "Forwarded") if (one.path, one.offset) == (path, frame.offset))
    numbers = f"from={payload['from']} to={payload['to']} count={payload['count']} total={payload['total']}"
    place = f"segment/{payload['files'][0][1]}/{payload['files'][0][2]}+{payload['extents'][0][3]}"
    assert shown.payload.startswith(f"router='after' source='orders' {numbers} frames={place}")
    assert any("trim=True" in one.payload for one in frames(killed, "Forwarded"))


def test_records_are_shown_with_their_origins(killed: SimFs) -> None:
    logged = next(frame for frame in frames(killed, "Append") if frame.topic == "kept")
    assert logged.payload.startswith("origin=3/")
    far = [frame for frame in frames(killed, "Record") if frame.topic == "far"]
    assert any(" hops=2 " in frame.payload for frame in far)
