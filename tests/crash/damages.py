"""The other table: every kind of file, damaged in every way, and what the specification promises then
(`docs/spec/storage.md` section 3).

All rows begin with the same directory: two topics with cold, hot and active segments, deletions in all of them, two
snapshots, and a log of several files behind the newer one, all of it synced. One file is damaged; what becomes of that
is one of three things (`Outcome`), and it is the same after every further start. A row has several variants, which
differ in where the damage is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pytest
import trio

from tests.simulation import forgery
from tests.simulation.disk import SimFs
from tests.simulation.disk_state import SECTOR
from tests.simulation.model import Acked, Client, History, Sent, View, view_of
from tests.simulation.segment_lives import exactly, fill, maintenance
from tests.simulation.test_crash_sweep import see
from tests.simulation.test_damage import frames_of, overwrite, wal_files, zero
from tests.simulation.test_segment_damage import segment_of
from tests.simulation.world import COLD, ROOT, End, Life, World, settings
from tests.storage.data_file import rows_of
from topics.errors import ApiError
from topics.model import Performance, ReadRequest
from topics.storage.files.datadir import DataDirError
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.recovery.damage import Damage
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES
from topics.storage.segments.segment_format import encode_copies
from topics.storage.wal.frames import FrameType, StoredRecord

CONFIG: Final = settings(
    wal_file_bytes=4 << 10,
    segment_max_events=10,
    segment_max_age_ms=0,
    hot_retain_segments=2,
    cold_dir=Path(COLD),
    cache_bytes=0,
)
NAMES: Final = ("t", "u")
KILL_AND_DROP: Final[tuple[End, ...]] = ("kill", "drop")
VICTIM: Final = f"topics/{1:016x}"
"""The directory of the topic whose files are damaged."""


class Outcome(Enum):
    """What a start makes of damage."""

    REFUSED = "the start is refused, the file named; salvage gives up what is damaged"
    BEYOND = "the start is refused, the file named; salvage cannot help either"
    UNHARMED = "nothing is lost: it was not needed, or is made anew"
    HOLES = "what was in there is corrupt for readers, the rest is there"
    AWAY = "what was in there cannot be read now, the rest is there"
    UNNOTICED = "what is left verifies and is believed: it was so once, and stays so from now on"
    """The assumption about disks does not hold (`docs/spec/crash.md`), and nothing can tell."""


# ----------------------------------------------------------------- the directory


class Left(NamedTuple):
    """What the damage is done to."""

    world: World
    whole: dict[str, View]
    """What readers see of it as it is."""
    older: dict[str, bytes]
    """What was in some of its files before."""
    written: dict[str, dict[int, int]]
    """The number of every record that was ever appended, by topic and seq."""


@cache
def left() -> Left:
    """The directory, made once."""
    world = World(config=CONFIG)
    older: dict[str, bytes] = {}
    history = History()

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        for name in NAMES:
            await client.create(name, durability="fsync")
        for turn in range(6):
            for name in NAMES:
                await fill(client, name, 4)
                if turn % 2:
                    await client.delete(name, before=8 * turn, match=exactly("ab"))
            await life.compactor.checkpoint()
            await life.relocator.pass_over()
            if turn == 4:
                older.update({path: data for path, data in life.fs.tree().items() if data})
        for _ in range(6):
            for name in NAMES:
                await fill(client, name, 4, size=60)
        await trio.sleep(0.1)

    assert world.live(scenario, end="kill")
    world = world.after("kill")
    world.fs.settle()
    written: dict[str, dict[int, int]] = {name: {} for name in NAMES}
    sent = {entry.id: entry for entry in history.entries if isinstance(entry, Sent)}
    for entry in history.entries:
        if isinstance(entry, Acked) and entry.first:
            append = sent[entry.id]
            written[append.topic].update(zip(range(entry.first, entry.last + 1), append.numbers, strict=True))
    return Left(world, see(world.after("kill")), older, written)


# ----------------------------------------------------------------- which file


def replayed(fs: SimFs) -> list[str]:
    """The files of the log behind the newest snapshot, but for the one that it ends in."""
    return wal_files(fs)[-4:]


def in_the_middle(fs: SimFs) -> str:
    """A file of the log that has others before and behind it."""
    return replayed(fs)[1]


def the_last(fs: SimFs) -> str:
    return wal_files(fs)[-1]


def snapshots(fs: SimFs) -> list[str]:
    return sorted(path for path in fs.tree() if path.startswith(f"{ROOT}/meta/snapshot."))


def the_newest_snapshot(fs: SimFs) -> str:
    return snapshots(fs)[-1]


def segments(fs: SimFs, root: str, kind: str) -> list[str]:
    """The files of this kind of the victim's segments, oldest first."""
    return sorted(path for path in fs.tree() if path.startswith(f"{root}/{VICTIM}/") and path.endswith(kind))


def sealed(kind: str, root: str = ROOT) -> Callable[[SimFs], str]:
    """A file of the oldest sealed segment in a tier."""
    return lambda fs: segments(fs, root, kind)[0]


def active(kind: str) -> Callable[[SimFs], str]:
    """A file of the segment that is appended to."""
    return lambda fs: segments(fs, ROOT, kind)[-1]


def named(path: str) -> Callable[[SimFs], str]:
    return lambda fs: f"{ROOT}/{path}"


# ----------------------------------------------------------------- what is done to it

Do = Callable[[SimFs, str, range, random.Random], None]
"""Damages a file somewhere in a range."""


def a_bit(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    fs.flip_bit(path, rng.choice(where), rng.randrange(8))


def a_sector(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    """Zeros where a sector was, or as much of one as the range has."""
    start = rng.choice(range(where.start, where.stop, SECTOR))
    zero(fs, path, start, min(start + SECTOR, where.stop))


def truncated(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    handle = fs.open(path)
    handle.truncate(rng.choice(where))
    handle.fdatasync()
    handle.close()


def cut_at_a_boundary(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    """Cut behind a whole frame of `.data`, a whole entry of `.idx`: what is left verifies."""
    content = fs.tree()[path] or b""
    ends = rows_of(content).offset if path.endswith(".data") else range(0, len(content), INDEX_ENTRY_BYTES)
    end = rng.choice(list(ends))
    truncated(fs, path, range(end, end + 1), rng)


def emptied(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    truncated(fs, path, range(1), rng)


def planted(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    """Frames that a client can make, which are valid but for what it does not know: the salt and the offset. They stand
    in the middle of a frame, and say to be records of this segment and of others."""
    rows = rows_of(fs.tree()[path] or b"")
    i = rng.randrange(len(rows.offset) - 1)
    at = rows.offset[i] + rng.randrange(30)
    room = (rows.offset[-1] - at) if len(rows.offset) > 1 else 0
    bytes_ = b""
    while True:
        seq, salt = rng.choice([rows.seq[i], rows.seq[-1], rows.seq[i] + 1, 1]), rng.choice([None, 0, 12345])
        record = StoredRecord(seq, rows.ts[i], b"", b"", b"", b'"forged"')
        more = encode_copies([record], [None], salt=salt, offset=rng.choice([at + len(bytes_), 0])).data
        if len(bytes_) + len(more) > room:
            break
        bytes_ += more
        if rng.random() < 0.4:
            break
    overwrite(fs, path, at, bytes_ or b"\xff")


def missing(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    fs.unlink(path)
    fs.sync_dir(path.rpartition("/")[0])


def older(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    """What the file held before; of a log that was not there yet, its first half."""
    content = left().older.get(path) or left().world.fs.tree()[path] or b""
    before = content if path in left().older else content[: where.start + len(where) // 2]
    length = len(fs.tree()[path] or b"")
    handle = fs.open(path)
    handle.truncate(len(before))
    handle.fdatasync()
    handle.close()
    overwrite(fs, path, 0, before)
    if path.endswith(".log"):  # they are as long as they were made
        overwrite(fs, path, len(before), bytes(length - len(before)))


# ----------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Harm:
    """A row: files, what is done to them, and what comes of it."""

    name: str
    files: Callable[[SimFs], list[str]]
    do: Do
    outcome: Outcome
    within: Callable[[SimFs, str], range]
    """Where in the file the damage begins."""

    def hurt(self, fs: SimFs, variant: int) -> list[str]:
        """Do it; to which files."""
        rng = random.Random(f"{self.name} {variant}")
        paths = self.files(fs)
        for path in paths:
            self.do(fs, path, self.within(fs, path), rng)
        return paths


def anywhere(fs: SimFs, path: str) -> range:
    """All of a file."""
    return range(len(fs.tree()[path] or b""))


def all_but_the_newline(fs: SimFs, path: str) -> range:
    return anywhere(fs, path)[:-1]


def in_a_frame(fs: SimFs, path: str) -> range:
    """What frames of the log take, but for the last of them."""
    return range(FILE_HEADER_BYTES, frames_of(fs, path)[-1].offset)


def in_the_header(fs: SimFs, path: str) -> range:
    """The header of a file of the log, or what a cut leaves of it."""
    return range(FILE_HEADER_BYTES)


def a_frame_start(fs: SimFs, path: str) -> range:
    """Where some frame begins; the file is cut there, or within the frame. It is a long one: damage that is shorter
    than the verdict about it is refused by salvage too."""
    found = frames_of(fs, path)
    frame = max(found[len(found) // 3 : len(found) * 5 // 6], key=lambda frame: frame.frame_len)
    return range(frame.offset, frame.offset + 1)


def vouched(fs: SimFs, path: str) -> range:
    """What is behind the snapshot and before the last position that was said to be synced."""
    last = [frame for frame in frames_of(fs, path) if frame.type == FrameType.SYNCED][-2]
    return range(FILE_HEADER_BYTES, last.offset)


def behind_all(fs: SimFs, path: str) -> range:
    """The last frame, which says that all before it is synced; of itself nobody says so."""
    last = frames_of(fs, path)[-1]
    assert last.type == FrameType.SYNCED
    return range(last.offset, last.end)


WAYS: Final[dict[str, Do]] = {
    "bit": a_bit,
    "sector": a_sector,
    "truncated": truncated,
    "missing": missing,
    "older": older,
}

CUTS: Final[dict[str, Do]] = {"boundary": cut_at_a_boundary, "emptied": emptied}
"""Ways to shorten a segment's file that leave nothing in it that does not verify."""


def garbage(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    """Bytes that mean nothing, over several frames or over the header."""
    overwrite(fs, path, where.start, rng.randbytes(min(len(where), 700)))


def forged(fs: SimFs, path: str, where: range, rng: random.Random) -> None:
    """Frames of somebody who knows the format and not the salt of the file."""
    text = "".join(forgery.frames(rng.choice((0, 1)))).encode()
    overwrite(fs, path, rng.choice(where[: -len(text)]), text)


LOG_WAYS: Final[dict[str, Do]] = {"garbage": garbage, "forged": forged}
"""Ways to damage a file of the log."""

ALL_WAYS: Final[dict[str, Do]] = WAYS | LOG_WAYS | CUTS | {"planted": planted}


def rows(
    name: str,
    files: Callable[[SimFs], str | list[str]],
    outcomes: dict[str, Outcome],
    within: Callable[[SimFs, str], range] = anywhere,
) -> list[Harm]:
    """A kind of file, and what comes of each way to damage it."""

    def listed(fs: SimFs) -> list[str]:
        found = files(fs)
        return [found] if isinstance(found, str) else found

    return [Harm(f"{name}-{way}", listed, ALL_WAYS[way], outcome, within) for way, outcome in outcomes.items()]


def cuts(outcome: Outcome) -> dict[str, Outcome]:
    """The same comes of everything that shortens a file."""
    return dict.fromkeys(CUTS, outcome)


def with_index(data: Callable[[SimFs], str]) -> Callable[[SimFs], list[str]]:
    """A `.data` and its `.idx`, which are shortened together."""
    return lambda fs: [data(fs), data(fs).replace(".data", ".idx")]


def all_ways(outcome: Outcome, **others: Outcome) -> dict[str, Outcome]:
    """The same comes of everything, but for `others`."""
    return dict.fromkeys(WAYS, outcome) | others


def but_older(outcome: Outcome) -> dict[str, Outcome]:
    """The same comes of everything; what it held before makes no sense, or is what it holds now."""
    return {way: outcome for way in WAYS if way != "older"}


REFUSED, BEYOND, UNHARMED, HOLES, AWAY, UNNOTICED = Outcome

WILD: Final = dict.fromkeys(LOG_WAYS, REFUSED)
BEHEADED: Final = {"bit": UNHARMED, "sector": REFUSED, "truncated": REFUSED, "garbage": REFUSED}

DAMAGES: Final[tuple[Harm, ...]] = (
    *rows("wal-middle", in_the_middle, all_ways(REFUSED, missing=BEYOND) | WILD, in_a_frame),
    *rows("wal-last", the_last, all_ways(REFUSED, missing=UNNOTICED, older=UNNOTICED) | WILD, vouched),
    *rows("wal-end", the_last, {"bit": UNHARMED, "sector": UNHARMED, "truncated": REFUSED}, behind_all),
    *rows("wal-middle-header", in_the_middle, BEHEADED, in_the_header),
    *rows("wal-last-header", the_last, BEHEADED, in_the_header),
    *rows("wal-middle-boundary", in_the_middle, dict.fromkeys(("bit", "sector", "truncated"), REFUSED), a_frame_start),
    *rows("wal-last-boundary", the_last, dict.fromkeys(("bit", "sector", "truncated"), REFUSED), a_frame_start),
    *rows("snapshot-newest", the_newest_snapshot, all_ways(UNHARMED)),
    *rows("snapshot-both", snapshots, but_older(UNHARMED)),
    *rows("manifest", named(f"{VICTIM}/topic.cbor"), all_ways(UNHARMED)),
    *rows("data-sealed", sealed(".data"), all_ways(HOLES, older=UNHARMED) | cuts(HOLES) | {"planted": HOLES}),
    *rows("data-active", active(".data"), all_ways(HOLES) | cuts(HOLES) | {"planted": HOLES}),
    *rows(
        "data-cold",
        sealed(".data", COLD),
        all_ways(HOLES, missing=AWAY, older=UNHARMED) | cuts(HOLES) | {"planted": HOLES},
    ),
    *rows("data-and-idx", with_index(sealed(".data")), {"truncated": HOLES, "missing": HOLES, **cuts(HOLES)}),
    *rows("data-and-idx-active", with_index(active(".data")), {"truncated": HOLES, **cuts(HOLES)}),
    *rows("idx-sealed", sealed(".idx"), all_ways(UNHARMED, older=UNNOTICED) | cuts(UNHARMED)),
    *rows("idx-active", active(".idx"), all_ways(UNHARMED) | cuts(UNHARMED)),
    *rows("idx-cold", sealed(".idx", COLD), all_ways(UNHARMED) | cuts(UNHARMED)),
    *rows("idx-cold-copy", sealed(".idx.cold"), all_ways(UNHARMED, older=UNHARMED) | cuts(UNHARMED)),
    *rows("tags", sealed(".tags"), all_ways(UNHARMED) | {"emptied": UNHARMED}),
    *rows("tags-cold", sealed(".tags", COLD), all_ways(UNHARMED) | {"emptied": UNHARMED}),
    *rows("format", named("FORMAT"), but_older(BEYOND), all_but_the_newline),
    *rows("witness", named("meta/witness"), all_ways(UNHARMED)),
    *rows("current", named("wal/CURRENT"), all_ways(UNHARMED)),
)


# ----------------------------------------------------------------- judging

Views = dict[str, View]
Stake = dict[str, set[int]]
"""By topic, the seqs that damage may cost."""


def judge_harm(harm: Harm, variant: int) -> None:
    """Damage a copy of the directory, and check what each start makes of it."""
    world = left().world.after("kill")
    paths = harm.hurt(world.fs, variant)
    match harm.outcome:
        case Outcome.REFUSED:
            check_refused(world, paths, Damage)
            check_steady(world, check_salvaged(world, at_stake(paths)))
        case Outcome.BEYOND:
            check_refused(world, paths, DataDirError)
            world.settings = replace(CONFIG, recovery="salvage")
            check_refused(world, paths, DataDirError)
        case Outcome.UNHARMED:
            check_steady(world, check_holes(see(world), {}))
        case Outcome.HOLES:
            check_steady(world, check_holes(see(world), at_stake(paths)))
        case Outcome.AWAY:
            check_away(world, at_stake(paths))
        case Outcome.UNNOTICED:
            check_steady(world, check_written(see(world)))


def at_stake(paths: Iterable[str]) -> Stake:
    """The records in these files."""
    names = {view.epoch: name for name, view in left().whole.items()}
    stake: Stake = {name: set() for name in NAMES}
    for path in paths:
        if path.endswith(".log"):
            for frame in frames_of(left().world.fs, path):
                if frame.type == FrameType.APPEND:
                    stake[names[frame.topic_id]].add(frame.seq)
        else:
            directory, first = segment_of(path)
            stake[names[int(directory, 16)]].update(range(first, first + CONFIG.segment_max_events))
    return stake


def files_of(world: World) -> dict[str, bytes | None]:
    """All but what says who is running."""
    return {path: content for path, content in world.fs.tree().items() if not path.endswith("/LOCK")}


def check_refused(world: World, paths: Sequence[str], kind: type[Exception]) -> None:
    """The start is refused as often as it is tried, says which file it is, and changes none."""
    before = files_of(world)
    for _ in range(2):
        world = world.after("kill")
        with pytest.raises(kind) as refused:
            see(world)
        said = str(refused.value)
        assert any(path in said for path in (*paths, f"{ROOT}/wal")), f"{said} names none of {paths}"
        assert kind is not Damage or f"{paths[0]} at offset " in said, f"{said} does not say where in {paths}"
        assert files_of(world) == before, "a start that was refused has changed a file"


def check_salvaged(world: World, stake: Stake) -> Views:
    """Salvage gives up no more than was in the file; what it shows."""
    world.settings = replace(CONFIG, recovery="salvage")
    views = see(world)
    world.settings = CONFIG
    return check_holes(views, stake, beyond=True)


def check_holes(views: Views, stake: Stake, *, beyond: bool = False) -> Views:
    """Everything is there but for what may be missing, of which readers are told; nothing is back. With `beyond` heads
    may stand higher, above a hole. What was given to it."""
    for name, whole in left().whole.items():
        view, may = views[name], stake.get(name, set())
        assert view.records.items() <= whole.records.items(), f"{name}: {view.records.items() - whole.records.items()}"
        missing = whole.records.keys() - view.records.keys()
        assert missing <= may, f"{name}: {sorted(missing - may)} are missing, and were in no file that was hit"
        for first, last, reason in view.gaps:
            extent = set(range(first, min(last, whole.head) + 1))
            assert reason == "corrupt", f"{name}: {view.gaps}"
            assert extent <= may | (range(1, whole.head + 1) - whole.records.keys()), f"{name}: {view.gaps}"
        silent = [seq for seq in missing if view.gap_of(seq) != "corrupt"]
        assert not silent, f"{name}: {silent} are missing in silence: {view.gaps}"
        assert view.head == whole.head or (beyond and view.head > whole.head), f"{name}: head {view.head}"
        assert view.count == len(view.records), f"{name}: count is {view.count}, there are {len(view.records)}"
        assert view.earliest == min(view.records, default=view.head + 1), f"{name}: earliest_seq is {view.earliest}"
        assert missing or view.bytes == whole.bytes, f"{name}: bytes is {view.bytes}, it was {whole.bytes}"
    return views


def check_written(views: Views) -> Views:
    """Nothing is there that was not written, and nothing of it is called damaged. What was given to it."""
    for name, written in left().written.items():
        view = views[name]
        there = {seq: record.data for seq, record in view.records.items()}
        assert there.items() <= written.items(), f"{name}: {there.items() - written.items()}"
        assert (view.head <= max(written), view.gaps) == (True, []), f"{name}: head {view.head}, gaps {view.gaps}"
        assert view.count == len(view.records), f"{name}: count is {view.count}, there are {len(view.records)}"
    return views


def check_away(world: World, stake: Stake) -> None:
    """The start succeeds, every time; what is behind the file is served, what is in it is not, nor is it given up."""

    async def look(life: Life) -> None:
        for name, whole in left().whole.items():
            away = stake[name]
            state = await life.engine.topic_states.of(name, touch=False)
            assert (state.head_seq, state.count) == (whole.head, whole.count)
            if not away:
                assert await view_of(life.engine, name) == whole
                continue
            with pytest.raises(ApiError, match="not_ready"):
                await life.engine.reads.read(name, ReadRequest(from_seq=min(away) - 1, limit=5), Performance())
            result = await life.engine.reads.read(name, ReadRequest(from_seq=max(away), limit=1000), Performance())
            rows = msgspec.json.decode(b"[" + result.records + b"]")
            assert [row["$seq"] for row in rows] == [seq for seq in whole.records if seq > max(away)]

    assert world.live(look, end="kill")
    for end in KILL_AND_DROP:
        assert world.after(end).live(look, end="kill")


def check_steady(world: World, views: Views) -> None:
    """Every further start shows the same; the topics go on from it; and maintenance, and a crash behind it, change
    nothing."""
    for end in KILL_AND_DROP:
        assert see(world.after(end)) == views, f"another start, after a {end}, shows something else"
    last = world.after("drop")

    async def go_on(life: Life) -> None:
        client = Client(life.engine, History())
        for name, view in views.items():
            result = await client.append(name, 2)
            assert result is not None
            assert result.first_seq == view.head + 1, f"{name}: after {view.head} comes {result.first_seq}"
        await maintenance(life)

    assert last.live(go_on, end="kill")
    after = see(last.after("drop"))
    for name, view in views.items():
        assert view.records.items() <= after[name].records.items(), f"{name}: maintenance has taken something"
        assert len(after[name].records) == len(view.records) + 2, f"{name}: maintenance has brought something back"
        told = [all(after[name].gap_of(seq) for seq in range(gap[0], gap[1] + 1)) for gap in view.gaps]
        assert all(told), f"{name}: gaps were {view.gaps} and are {after[name].gaps}"
