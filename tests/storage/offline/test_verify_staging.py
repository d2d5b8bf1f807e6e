"""`verify` and `inspect` on directories with stages and their commits: no damage in what they leave, a clear sentence
about what a committed record needs and is not there."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.simulation.disk import SimFs
from tests.simulation.test_staging_crashes import CONFIG, TOPIC, request
from tests.simulation.wal_content import scan_of
from tests.simulation.world import Life, World
from tests.storage.made import ROOT
from tests.storage.offline.test_verify import damage, files
from topics.model import Performance
from topics.storage.offline.inspect import Inspection
from topics.storage.offline.verify_routers import contradiction
from topics.storage.segments.copy_frames import is_staged
from topics.storage.wal.frames import Frame, FrameType, control_payload


@cache
def _staged() -> SimFs:
    """A commit that no checkpoint has seen, of a stage that is in segments and in the log; and an open stage."""

    async def script(life: Life) -> None:
        await life.engine.stages.append(TOPIC, "a", request("a", range(9)), Performance())
        await life.compactor.checkpoint()
        await life.engine.stages.append(TOPIC, "a", request("a", range(9, 12)), Performance())
        await life.engine.stage_commits.commit(TOPIC, ["a"], "query/7", Performance())
        await life.engine.stages.append(TOPIC, "open", request("open", range(2)), Performance())
        life.engine.status.phase = "draining"

    world = World(3, config=CONFIG)
    assert world.live(script, end="kill")
    return world.after("kill").fs


@pytest.fixture
def fs() -> SimFs:
    return _staged().after_process_kill()


def committed(fs: SimFs, kind: str) -> tuple[str, Frame, dict[str, Any]]:
    """The Forwarded frame of the commit that names this kind of file, and where it is."""
    for path, content in files(fs, ".log").items():
        for frame in scan_of(content).frames:
            if frame.type == FrameType.FORWARDED:
                payload = control_payload(content, 0, frame)
                if is_staged(payload) and payload["files"][0][0] == kind:
                    return path, frame, payload
    raise AssertionError("no such frame")


def test_there_is_no_damage_in_what_stages_leave(fs: SimFs) -> None:
    assert damage(fs) == []


@pytest.mark.parametrize("kind", ["wal", "segment"])
def test_a_flipped_bit_in_what_was_staged_is_found_with_what_was_committed(fs: SimFs, kind: str) -> None:
    path, frame, payload = committed(fs, kind)
    _, owner, first = payload["files"][0]
    wanted = f"{first:020d}.{'log' if kind == 'wal' else 'data'}"
    (source,) = (
        name
        for name in files(fs, ".log", ".data")
        if name.endswith(wanted) and (kind == "segment" or f"-{owner:02d}/" in name)
    )
    fs.flip_bit(source, payload["extents"][0][3] + 50, 3)
    problems = [finding.problem for finding in damage(fs) if (finding.path, finding.offset) == (path, frame.offset)]
    assert any(f"seq {frame.seq} of topic {TOPIC!r} is a copy of the frame" in problem for problem in problems)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"to": 1}, "records with seqs"),
        ({"lens": None}, "a recipe without lens"),
        ({"sizes": b""}, "contradicts itself"),
        ({"kinds": [[3, 99, 1, 0, None]]}, "is a copy of topic 99 over 1 routers"),
        ({"flags": b"\x20\x20\x20"}, "flags 0x20"),
    ],
)
def test_a_frame_that_contradicts_itself_is_found(fs: SimFs, change: dict[str, Any], problem: str) -> None:
    _, frame, payload = committed(fs, "wal")
    assert contradiction(frame, payload) is None
    changed = {name: value for name, value in {**payload, **change}.items() if value is not None}
    assert problem in str(contradiction(frame, changed))


def test_the_frames_are_shown_with_names(fs: SimFs) -> None:
    shown = {(frame.type, frame.topic): frame.payload for frame in Inspection(fs, ROOT, None).frames()}
    assert "stage='open'" in shown["Stage", f"{TOPIC}?stage=open"]
    assert "key='query/7'" in shown["Stage", TOPIC]
    assert "stages=a" in shown["Stage", TOPIC]
    assert f"source='{TOPIC}?stage=a'" in shown["Forwarded", TOPIC]
