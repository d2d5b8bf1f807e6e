"""Finding frames behind bytes that are none."""

from __future__ import annotations

import random

import pytest

from tests.simulation.disk import SimFs
from topics.storage import resync
from topics.storage.frames import FrameType, encode_appends, encode_control
from topics.storage.fs import File
from topics.storage.resync import find_frames


def made(content: bytes) -> File:
    file = SimFs().open("/f", create=True)
    file.pwrite(content, 0)
    return file


def append(seq: int, size: int = 10) -> bytes:
    return encode_appends(
        3, seq, 1_700_000_000_000, [b"x" * size], nodes=None, tags=None, metas=None, durable=False, closes_batch=True
    ).data


def found(content: bytes, start: int = 0, only: FrameType | None = None) -> list[tuple[int, int]]:
    """Type and offset of what is found; each is in the window that comes with it."""
    frames = []
    for frame, window, base in find_frames(made(content), start, len(content), only=only):
        assert window[frame.offset - base : frame.end - base] == content[frame.offset : frame.end]
        frames.append((frame.type, frame.offset))
    return frames


@pytest.fixture(params=[resync.SEARCH_BYTES, 300, 64])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Windows so small that frames lie across their ends."""
    monkeypatch.setattr(resync, "SEARCH_BYTES", request.param)
    return int(request.param)


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("seed", range(12))
def test_every_frame_is_found_whatever_is_between(seed: int) -> None:
    rng = random.Random(seed)
    content, wanted = b"", []
    for seq in range(1, 30):
        content += rng.choice([b"", bytes(rng.randrange(100)), rng.randbytes(rng.randrange(200)), b"\1" * 50])
        data = (
            append(seq, rng.randrange(1, 400)) if rng.random() < 0.7 else encode_control(FrameType.SYNCED, {"a": seq})
        )
        wanted.append((1 if data[4] == 1 else int(FrameType.SYNCED), len(content)))
        content += data
    content += rng.randbytes(60)
    assert found(content) == wanted
    assert found(content, only=FrameType.SYNCED) == [one for one in wanted if one[0] == FrameType.SYNCED]
    for start in (1, wanted[7][1], wanted[7][1] + 1, wanted[20][1] - 5):
        assert found(content, start) == [one for one in wanted if one[1] >= start]


@pytest.mark.usefixtures("window")
def test_a_damaged_frame_is_passed_over_and_the_next_is_found() -> None:
    frames = [append(seq) for seq in range(1, 6)]
    whole = b"".join(frames)
    size = len(frames[0])
    for at in range(size, 2 * size):
        broken = bytearray(whole)
        broken[at] ^= 0x40
        assert found(bytes(broken)) == [(1, i * size) for i in (0, 2, 3, 4)]


@pytest.mark.usefixtures("window")
def test_what_looks_like_a_header_is_not_believed() -> None:
    frame = append(1, 100)
    assert found(frame[:-1]) == []
    assert found(frame[:60] + bytes(500)) == []
    assert found(frame[1:]) == []
    assert found(bytes(1000)) == []
    assert found(b"") == []


@pytest.mark.usefixtures("window")
def test_a_frame_inside_the_data_of_a_frame_is_data() -> None:
    inner = append(9)
    outer = encode_appends(
        3, 1, 5, [b"y" * 20 + inner], nodes=None, tags=None, metas=None, durable=False, closes_batch=True
    ).data
    assert found(outer + append(2)) == [(1, 0), (1, len(outer))]


def test_noise_is_no_frame() -> None:
    assert found(random.Random(5).randbytes(200_000)) == []
