"""Finding frames behind bytes that are none."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from tests.simulation.disk import SimFs
from topics.storage.files.fs import File
from topics.storage.wal import frame_search, frames
from topics.storage.wal.frame_search import FrameSearch, LaterSeq, LogFile, ReplayedTopic, behind, vouched_behind
from topics.storage.wal.frames import FrameType, UnsealedFrames, encode_appends, encode_control, joined

TS = 1_700_000_000_000
SALT = 0x9234_5678_90AB_CDEF


def made(content: bytes) -> File:
    file = SimFs().open("/f", create=True)
    file.pwrite(content, 0)
    return file


def append(seq: int, size: int = 10, *, topic_id: int = 3, tag: bytes = b"") -> UnsealedFrames:
    tags = [tag] if tag else None
    return encode_appends(
        topic_id, seq, TS, [b"x" * size], nodes=None, tags=tags, metas=None, durable=False, closes_batch=True
    ).data


def log_file(content: bytes, salt: int | None = SALT, *, ordinal: int = 0) -> LogFile:
    return LogFile(made(content), len(content), ordinal, salt)


def found(content: bytes, start: int = 0, salt: int | None = SALT) -> list[tuple[int, int]]:
    """Type and offset of what is found; each is in the window that comes with it."""
    frames = []
    search = FrameSearch(log_file(content, salt), start)
    for frame, window, base in search.found():
        assert window[frame.offset - base : frame.end - base] == content[frame.offset : frame.end]
        frames.append((frame.type, frame.offset))
    assert not search.exhausted
    return frames


@pytest.fixture(params=[frame_search.SEARCH_BYTES, 300, 64])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Windows so small that frames lie across their ends."""
    monkeypatch.setattr(frame_search, "SEARCH_BYTES", request.param)
    return int(request.param)


def test_frames_of_topics_with_the_id_of_an_epoch_are_found() -> None:
    content = joined([append(1, topic_id=number) for number in (1, 5 << 32, (1 << 56) - 1)]).sealed(SALT, 40)
    assert [kind for kind, _ in found(bytes(40) + content)] == [1, 1, 1]


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("salt", [None, SALT])
@pytest.mark.parametrize("seed", range(12))
def test_every_frame_is_found_whatever_is_between(seed: int, salt: int | None) -> None:
    rng = random.Random(seed)
    content, wanted = b"", []
    for seq in range(1, 30):
        content += rng.choice([b"", bytes(rng.randrange(100)), rng.randbytes(rng.randrange(200)), b"\1" * 50])
        synced = rng.random() < 0.3
        at = len(content)
        vouching = encode_control(FrameType.SYNCED, {"file": 0, "offset": at})
        wanted.append((int(FrameType.SYNCED) if synced else 1, at))
        content += (vouching if synced else append(seq, rng.randrange(1, 400))).sealed(salt, at)
    content += rng.randbytes(60)
    assert found(content, salt=salt) == wanted
    vouching_at = [at for kind, at in wanted if kind == FrameType.SYNCED]
    assert vouched_behind(log_file(content, salt), 0) == (max(vouching_at, default=0), True)
    for start in (1, wanted[7][1], wanted[7][1] + 1, wanted[20][1] - 5):
        assert found(content, start, salt) == [one for one in wanted if one[1] >= start]
        behind_it = [at for at in vouching_at if at >= start]
        assert vouched_behind(log_file(content, salt), start) == (max(behind_it, default=0), True)


@pytest.mark.usefixtures("window")
def test_a_damaged_frame_is_passed_over_and_the_next_is_found() -> None:
    frames = [append(seq) for seq in range(1, 6)]
    whole = joined(frames).sealed(SALT, 0)
    size = len(frames[0])
    for at in range(size, 2 * size):
        broken = bytearray(whole)
        broken[at] ^= 0x40
        assert found(bytes(broken)) == [(1, i * size) for i in (0, 2, 3, 4)]


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("kind", FrameType)
@pytest.mark.parametrize("salt", [SALT, None])
def test_frames_of_every_type_are_found(kind: FrameType, salt: int | None) -> None:
    frame = encode_control(kind, {"x": 1}, topic_id=3) if kind != FrameType.APPEND else append(1)
    assert found(bytes(100) + frame.sealed(salt, 100), salt=salt) == [(kind, 100)]


def test_what_looks_like_a_header_is_not_believed() -> None:
    frame = append(1, 100).sealed(SALT, 0)
    assert found(frame[:-1]) == []
    assert found(frame[:60] + bytes(500)) == []
    assert found(frame[1:]) == []
    assert found(bytes(1000)) == []
    assert found(b"") == []


@pytest.mark.usefixtures("window")
def test_a_frame_inside_the_data_of_a_frame_is_data() -> None:
    inner = append(9).sealed(None, 0)
    outer = append(1, tag=b"y" * 20 + inner)
    for salt in (None, SALT):
        assert found((outer + append(2)).sealed(salt, 0), salt=salt) == [(1, 0), (1, len(outer))]


def test_noise_is_no_frame() -> None:
    assert found(random.Random(5).randbytes(200_000)) == []


# ----------------------------------------------------------------- what a client chose


def torn(inner: bytes) -> bytes:
    """What is left of a record with these bytes in its tag, whose last sector was not written."""
    return append(1, tag=inner).sealed(SALT, 0)[: -len(b"x" * 10) - 8] + bytes(200)


def forged(kind: str, salt: int | None) -> bytes:
    """A frame that a client has made, who knows where it will stand and guesses the salt."""
    at = frames.HEADER_BYTES
    frame = {
        "synced": encode_control(FrameType.SYNCED, {"file": 0, "offset": at}),
        "append": append(7_400_000),
        "file end": encode_control(FrameType.FILE_END, {"last": {3: 7_400_000}, "next": 1}),
        "delete": encode_control(FrameType.TOPIC_DELETE, {"name": "t"}, topic_id=3),
    }[kind]
    return frame.sealed(salt, at)


KNOWN = {3: ReplayedTopic(1, (0, 0), True)}


@pytest.mark.parametrize("kind", ["synced", "append", "file end", "delete"])
@pytest.mark.parametrize("salt", [None, 0, SALT ^ 1])
def test_without_the_salt_of_a_file_no_client_can_make_a_frame_of_it(kind: str, salt: int | None) -> None:
    content = torn(forged(kind, salt))
    assert found(content) == []
    assert vouched_behind(log_file(content), 0) == (0, True)
    assert behind(log_file(content), 0, KNOWN) == (len(content), {}, 0)
    assert found(torn(forged(kind, SALT))) != [], "with the salt it would be one"


def test_a_frame_that_was_moved_or_copied_to_another_place_is_none() -> None:
    frame = encode_control(FrameType.SYNCED, {"file": 0, "offset": 0}).sealed(SALT, 100)
    assert found(bytes(100) + frame) == [(FrameType.SYNCED, 100)]
    assert found(bytes(99) + frame) == []
    assert vouched_behind(log_file(bytes(101) + frame), 0) == (0, True)


@pytest.mark.parametrize("salt", [None, SALT])
def test_a_synced_frame_says_nothing_about_what_lies_behind_it(salt: int | None) -> None:
    for offset, believed in ((50, 0 if salt is None else 50), (200, 200), (201, 0), (1 << 40, 0), (-1, 0), ("x", 0)):
        frame = encode_control(FrameType.SYNCED, {"file": 0, "offset": offset}).sealed(salt, 200)
        assert vouched_behind(log_file(bytes(200) + frame + bytes(90), salt), 0) == (believed, True), offset
    other = encode_control(FrameType.SYNCED, {"file": 7, "offset": 200}).sealed(salt, 200)
    assert vouched_behind(log_file(bytes(200) + other, salt), 0) == (0, True)


@pytest.mark.parametrize(("salt", "counted"), [(None, 2), (SALT, 4)])
def test_seqs_never_go_back(salt: int | None, counted: int) -> None:
    """Two of the four tell how many seqs are missing. With a salt the other two are frames of the log, too."""
    known = {3: ReplayedTopic(20, (0, 0), True), 4: ReplayedTopic(5, (9, 0), True)}
    log = joined([append(20), append(25), append(24), append(3, topic_id=4)])
    content = bytes(60) + log.sealed(salt, 60)
    first = len(append(20))
    assert behind(log_file(content, salt), 0, known) == (
        60 + (first if salt is None else 0),
        {3: LaterSeq(25, True), 4: LaterSeq(3, True)},  # which was in the part of topic 4 already
        counted,
    )


def test_in_an_old_file_only_what_fits_is_believed() -> None:
    """There a client can make frames. They would give up seqs of others, or delete their topics."""
    for frame in (
        append(7_400_000),
        append(2, topic_id=99),
        encode_control(FrameType.FILE_END, {"last": {3: 7_400_000}, "next": 1}),
        encode_control(FrameType.FILE_END, {"last": {99: 1}, "next": 1}),
        encode_control(FrameType.FILE_END, {"last": 7, "next": 1}),
        encode_control(FrameType.TOPIC_DELETE, {"name": "t"}, topic_id=99),
        encode_control(FrameType.SYNCED, {"file": 0, "offset": 59}),
    ):
        content = bytes(60) + frame.sealed(None, 60)
        assert found(content, salt=None) != []
        assert behind(log_file(content, None), 0, KNOWN) == (len(content), {}, 0)
    created = encode_control(FrameType.TOPIC_CREATE, {"name": "t", "config": {}}, topic_id=99)
    content = bytes(60) + (created + append(1, topic_id=99) + append(2)).sealed(None, 60)
    assert behind(log_file(content, None), 0, KNOWN) == (60, {99: LaterSeq(1, True), 3: LaterSeq(2, True)}, 3)


def test_a_search_has_a_bound_whatever_the_bytes_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers of a chain of frames that are as long as the rest of the file: each would be hashed."""
    hashed = 0
    scan_window = frames.scan_window

    def counting(window: bytes, base: int, **others: Any) -> frames.LogScan:
        nonlocal hashed
        hashed += len(window)
        return scan_window(window, base, **others)

    size = 2 << 20
    content = bytearray()
    while len(content) < size - 64:
        rest = size - len(content)
        content += struct.pack("<IBBQQQHHI", rest - 4, 1, 0, 3, 5, TS, 0, 0, rest - 4 - frames.MIN_FRAME_LEN)
    content += bytes(size - len(content))
    end = append(6).sealed(SALT, len(content))
    monkeypatch.setattr(frames, "scan_window", counting)
    monkeypatch.setattr(frame_search, "WORK_BASE", 1 << 20)
    search = FrameSearch(log_file(bytes(content) + end), 0)
    assert list(search.found()) == []
    assert search.exhausted
    assert hashed <= 6 * size + (1 << 20)
    assert behind(log_file(bytes(content) + end), 0, KNOWN) == (len(content) + len(end), {}, 0)
    hashed = 0
    vouching = encode_control(FrameType.SYNCED, {"file": 0, "offset": 7}).sealed(SALT, len(content))
    assert vouched_behind(log_file(bytes(content) + vouching), 0) == (7, True)
    assert hashed < 200, "only what may be a Synced frame"
    old = encode_control(FrameType.SYNCED, {"file": 0, "offset": len(content)}).sealed(None, len(content))
    assert vouched_behind(log_file(bytes(content) + old, None), 0) == (0, False)


def test_the_first_byte_that_is_not_zero_is_found_also_where_the_file_is_shorter_than_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_search, "WINDOW_BYTES", 4)
    handle = made(bytes(9) + b"x" + bytes(7))
    assert frame_search.first_nonzero(handle, 0, 17) == 9
    assert frame_search.first_nonzero(handle, 9, 17) == 9
    assert frame_search.first_nonzero(handle, 0, 9) is None
    assert not frame_search.only_zeros(handle, 0, 17)
    assert frame_search.only_zeros(handle, 10, 40)  # there are 17 bytes
