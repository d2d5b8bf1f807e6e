"""Whose cold directory it is (`docs/design/cold_store.md`): two data directories on one, one that is not mounted, one
of a version that had no identities, and what a crash leaves of joining them."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from tests.simulation.disk import Fault, SimFs
from tests.simulation.model import Client, History
from tests.simulation.segment_lives import SMALL, fill, looked_at
from tests.simulation.world import COLD, ROOT, Life, World, Wreck, wrecks_of
from topics.errors import ApiError
from topics.model import Performance, ReadRequest
from topics.storage.cold.identity import IDENTITY, ColdIdentity, ColdRoot, read_cold_identity, read_data_identity
from topics.storage.files.datadir import DataDirError
from topics.storage.files.fs import OsFs, write_atomic
from topics.storage.offline.verify import Verification

OTHER = "/other"

Script = Callable[[Life], Awaitable[None]]


def client_of(life: Life) -> Client:
    return Client(life.engine, History())


async def make_cold(life: Life) -> None:
    """A topic with cold segments."""
    await client_of(life).create("topic", durability="fsync")
    await fill(client_of(life), "topic", 12)
    await life.compactor.checkpoint()
    assert await life.relocator.pass_over()


async def nothing(_life: Life) -> None:
    """A start and a stop."""


async def whole(life: Life) -> None:
    """All of it is there."""
    views = await looked_at(life)
    assert len(views["topic"].records) == 24
    assert not views["topic"].gaps


def started(fs: SimFs, scenario: Script, *, root: str = ROOT, adopt: bool = False) -> None:
    """A life on this disk, with all that maintenance does."""

    async def live(life: Life) -> None:
        await scenario(life)
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        await life.relocator.pass_over()

    world = World(config=replace(SMALL, data_dir=Path(root), cold_adopt=adopt), fs=fs)
    assert world.live(live)


def made() -> SimFs:
    """A disk with a data directory and its cold one."""
    fs = SimFs()
    started(fs, make_cold)
    return fs


def cold_files(fs: SimFs) -> dict[str, bytes | None]:
    return {path: content for path, content in fs.tree().items() if path.startswith(COLD)}


def without_identity(fs: SimFs, *roots: str) -> SimFs:
    """As a version has left it that knew of none."""
    for root in roots:
        fs.unlink(f"{root}/{IDENTITY}")
        fs.sync_dir(root)
    return fs


# ----------------------------------------------------------------- two data directories


def test_a_second_data_directory_is_refused_and_deletes_nothing() -> None:
    """Its start took the first one's cold segments for leftovers, and deleted all of them."""
    fs = made()
    before = cold_files(fs)
    with pytest.raises(DataDirError, match="belongs to the data directory with the id"):
        started(fs, nothing, root=OTHER)
    assert cold_files(fs) == before
    started(fs, whole)


def test_a_second_data_directory_with_a_cold_one_of_its_own_is_refused_on_the_first_ones() -> None:
    fs = made()
    other = replace(SMALL, data_dir=Path(OTHER), cold_dir=Path("/mine"))
    assert World(config=other, fs=fs).live(make_cold)
    before = cold_files(fs)
    with pytest.raises(DataDirError, match="belongs to the data directory with the id"):
        started(fs, nothing, root=OTHER)
    assert cold_files(fs) == before


@pytest.mark.parametrize("topics", [False, True])
def test_content_without_identity_is_not_taken_over_by_a_directory_that_does_not_know_it(topics: bool) -> None:
    """Data directories number their topics alike; what tells them apart then is the name in the cold manifest."""
    fs = without_identity(made(), COLD)
    before = cold_files(fs)
    if topics:

        async def same_id(life: Life) -> None:
            await client_of(life).create("another", durability="fsync")

        assert World(config=replace(SMALL, data_dir=Path(OTHER), cold_dir=None), fs=fs).live(same_id)
    with pytest.raises(DataDirError, match="not those of /other"):
        started(fs, nothing, root=OTHER)
    assert cold_files(fs) == before


def test_a_cold_directory_is_locked_for_the_life_of_the_daemon() -> None:
    """A copy of a data directory has its identity; only the lock keeps the two apart."""
    fs = made()

    async def beside(life: Life) -> None:
        copy = "/copy"
        fs.mkdir(copy)
        write_atomic(fs, f"{copy}/{IDENTITY}", fs.read(f"{ROOT}/{IDENTITY}"))
        root = ColdRoot(fs, copy, COLD, adopt=False)
        with pytest.raises(DataDirError, match="in use by another daemon"):
            root.look()
        with pytest.raises(OSError, match="in use by another daemon"):
            root.may_read()

    started(fs, beside)
    started(fs, whole)


def test_a_real_directory_is_locked_itself(tmp_path: Path) -> None:
    fs = OsFs()
    (tmp_path / "cold").mkdir()
    first = fs.lock_dir(str(tmp_path / "cold"))
    root = ColdRoot(fs, str(tmp_path / "data"), str(tmp_path / "cold"), adopt=False)
    with pytest.raises(DataDirError, match="in use by another daemon"):
        root.look()
    first.release()
    root.look()
    assert root.state == "new"
    root.release()


def test_where_directories_cannot_be_locked_a_file_in_it_is() -> None:
    fs = made()
    fs.inject(Fault(error=errno.EBADF, name="lock_dir", times=None))

    async def beside(_life: Life) -> None:
        with pytest.raises(DataDirError, match="in use by another daemon"):
            ColdRoot(fs, ROOT, COLD, adopt=False).look()

    started(fs, beside)


# ----------------------------------------------------------------- away, lost, damaged


@pytest.mark.parametrize("left", ["nothing", "mount point", "no identity"])
def test_a_cold_directory_that_is_not_the_one_that_was_there_is_refused_and_left_alone(left: str) -> None:
    fs = made()
    if left == "no identity":
        without_identity(fs, COLD)
    else:
        fs.rename(COLD, "/elsewhere")
        if left == "mount point":
            fs.mkdir(COLD)
    before = cold_files(fs)
    with pytest.raises(DataDirError, match=r"unset TOPICS_COLD_DIR.*TOPICS_COLD_ADOPT=1"):
        started(fs, nothing)
    assert cold_files(fs) == before


def test_one_that_is_lost_for_good_is_given_up_when_told_so() -> None:
    fs = made()
    fs.rename(COLD, "/lost")

    async def degraded(life: Life) -> None:
        with pytest.raises(ApiError) as refused:
            await life.engine.reads.read("topic", ReadRequest(limit=5), Performance())
        assert refused.value.code == "not_ready"

    started(fs, degraded, adopt=True)
    started(fs, degraded)


def test_one_that_has_lost_nothing_but_its_identity_is_taken_back_when_told_so() -> None:
    fs = without_identity(made(), COLD)
    started(fs, whole, adopt=True)
    started(fs, whole)


def test_a_mount_that_goes_while_the_daemon_runs_is_not_written_to() -> None:
    fs = made()

    async def away(life: Life) -> None:
        fs.rename(COLD, "/elsewhere")
        fs.mkdir(COLD)
        await fill(client_of(life), "topic", 12)
        await life.compactor.checkpoint()
        with pytest.raises(OSError, match="is its volume mounted"):
            await life.relocator.pass_over()
        assert not fs.listdir(COLD)
        fs.rmdir(COLD)
        fs.rename("/elsewhere", COLD)
        assert await life.relocator.pass_over()

    started(fs, away)


def test_an_identity_that_is_damaged_refuses_the_start() -> None:
    fs = made()
    fs.flip_bit(f"{COLD}/{IDENTITY}", 0, 1)
    with pytest.raises(DataDirError, match="IDENTITY is damaged"):
        started(fs, nothing)


@pytest.mark.parametrize("root", [ROOT, COLD])
@pytest.mark.parametrize(
    "harm", [b"", b"\xff\xfe", b'{"id":', b"[1]", b"{}", b'{"id":"abc"}', b'{"id":"' + b"z" * 3000]
)
def test_a_damaged_identity_is_refused_in_one_line_with_what_it_should_hold_and_that_mends_it(
    root: str, harm: bytes
) -> None:
    fs = made()
    path = f"{root}/{IDENTITY}"
    line = fs.read(path)
    write_atomic(fs, path, harm)
    with pytest.raises(DataDirError) as refused:
        started(fs, nothing)
    message = str(refused.value)
    assert message.startswith(f"{path} is damaged: it should hold the line {line.decode().strip()}")
    assert "restore it from a copy" in message
    assert "\n" not in message
    assert len(message) < 700
    write_atomic(fs, path, message.partition("should hold the line ")[2].partition(" ")[0].encode())
    started(fs, whole)


def test_two_damaged_identities_are_refused_with_the_form_of_the_line() -> None:
    fs = made()
    for root in (ROOT, COLD):
        write_atomic(fs, f"{root}/{IDENTITY}", b"?")
    with pytest.raises(DataDirError, match=r'/data/IDENTITY is damaged: it should hold a line .*"id":.*"cold":'):
        started(fs, nothing)


@pytest.mark.parametrize("member", [b'"data"', b'"id"'])
def test_an_identity_whose_member_has_lost_its_name_is_damaged_and_nobody_elses(member: bytes) -> None:
    fs = made()
    path = f"{COLD}/{IDENTITY}"
    write_atomic(fs, path, fs.read(path).replace(member, b'"x' + member[2:]))
    with pytest.raises(DataDirError, match="IDENTITY is damaged"):
        started(fs, nothing)


def test_a_start_without_a_cold_directory_keeps_what_it_knows_of_it() -> None:
    fs = made()
    before = read_data_identity(fs, ROOT, None)
    assert World(config=replace(SMALL, cold_dir=None), fs=fs).live(nothing)
    assert read_data_identity(fs, ROOT, None) == before
    started(fs, whole)


# ----------------------------------------------------------------- joining


def test_what_a_version_without_identities_has_left_is_taken_over() -> None:
    fs = without_identity(made(), COLD, ROOT)
    started(fs, whole)
    mine, its = read_data_identity(fs, ROOT, None), read_cold_identity(fs, COLD, ROOT)
    assert mine is not None
    assert its is not None
    assert (mine.cold, its.data, mine.pending) == (its.id, mine.id, False)
    lines = [fs.read(f"{root}/{IDENTITY}") for root in (ROOT, COLD)]
    assert [line.count(b"\n") for line in lines] == [1, 1]
    assert msgspec.json.decode(lines[0]) == {"id": mine.id, "cold": its.id}


def test_with_an_empty_cold_directory_where_cold_segments_should_be_it_is_not() -> None:
    fs = without_identity(made(), COLD, ROOT)
    fs.rename(COLD, "/elsewhere")
    with pytest.raises(DataDirError, match="is its volume mounted"):
        started(fs, nothing)
    assert not fs.exists(COLD)


@pytest.mark.parametrize("end", ["drop", "keep", "kill", "reorder"])
def test_a_crash_anywhere_while_they_are_joined_refuses_no_start(end: str) -> None:
    """The data directory says first with which cold one it is about to be joined."""
    fs = without_identity(made(), COLD, ROOT)
    world = World(config=SMALL, fs=fs)
    wrecks = [wreck for wreck in _starts(world) if IDENTITY in wreck.op.path or wreck.op.path == COLD]
    assert len(wrecks) >= 8
    for wreck in wrecks:
        after = wreck.world(end, 3, SMALL)  # type: ignore[arg-type]
        assert after.live(whole)
        assert after.live(whole)


def _starts(world: World) -> list[Wreck]:
    wrecks = wrecks_of(world, lambda: 0)
    assert world.live(nothing)
    return wrecks


def test_a_cold_directory_that_fails_at_the_start_is_joined_later() -> None:
    """docs/spec/crash.md 17: a cold store that is missing degrades reads, not the start."""
    fs = SimFs()
    fs.inject(Fault(error=errno.EIO, path=f"{COLD}*", times=3))

    async def later(life: Life) -> None:
        assert not life.store.cold_dir.is_ours
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.store.cold_dir.watch)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert life.store.cold_dir.is_ours
        await make_cold(life)

    started(fs, later)
    started(fs, whole)


def test_the_lines_are_what_the_documentation_says() -> None:
    assert ColdIdentity("ab", cold="cd").line() == b'{"id":"ab","cold":"cd"}\n'
    assert ColdIdentity("cd", data="ab").line() == b'{"id":"cd","data":"ab"}\n'


@pytest.mark.parametrize("wrong", ["none", "missing", "foreign", "damaged"])
def test_verify_says_of_two_directories_that_they_do_not_belong_together(wrong: str) -> None:
    fs = made()
    if wrong == "missing":
        without_identity(fs, COLD)
    elif wrong == "foreign":
        write_atomic(fs, f"{COLD}/{IDENTITY}", ColdIdentity("0" * 32, data="1" * 32).line())
    elif wrong == "damaged":
        fs.flip_bit(f"{COLD}/{IDENTITY}", 0, 1)
    found = [finding.path for finding in Verification(fs, ROOT, COLD).findings() if finding.severity == "damage"]
    assert found == ([] if wrong == "none" else [f"{COLD}/{IDENTITY}"])
