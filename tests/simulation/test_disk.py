"""The simulated disk keeps what `docs/spec/crash.md` lets storage rely on, and takes every liberty it leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.disk import Fault, Op, SimCrash, SimFs
from tests.simulation.disk_state import CRASH_KINDS, SECTOR, CrashKind
from topics.storage.files.fs import File, write_all, write_atomic

SEEDS = range(200)


def put(fs: SimFs, path: str, data: bytes, *, sync: bool = False) -> File:
    """A file with that content; with `sync` durable, its name too."""
    file = fs.open(path, create=True)
    write_all(file, data, 0)
    if sync:
        file.fdatasync()
        fs.sync_dir(path.rpartition("/")[0] or "/")
    return file


def outcomes(fs: SimFs, kind: CrashKind, path: str = "/f") -> set[bytes | None]:
    """What a file may hold after a crash, over many seeds; None if it is gone."""
    return {fs.after_machine_crash(kind, seed).tree().get(path) for seed in SEEDS}


# ----------------------------------------------------------------- what is durable


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_synced_content_under_a_synced_name_survives_every_crash(kind: CrashKind) -> None:
    fs = SimFs()
    put(fs, "/f", b"synced", sync=True)
    assert outcomes(fs, kind) == {b"synced"}


def test_an_unsynced_write_may_be_lost_or_kept_whole() -> None:
    fs = SimFs()
    put(fs, "/f", b"old", sync=True).pwrite(b"new", 0)
    assert fs.read("/f") == b"new"
    assert outcomes(fs, "drop") == {b"old"}
    assert outcomes(fs, "keep") == {b"new"}


def test_a_data_sync_does_not_make_the_name_durable() -> None:
    fs = SimFs()
    put(fs, "/f", b"data").fdatasync()
    assert outcomes(fs, "drop") == {None}
    assert outcomes(fs, "tear") == {None, b"data"}
    fs.sync_dir("/")
    assert outcomes(fs, "drop") == {b"data"}


def test_a_directory_sync_does_not_make_content_durable() -> None:
    fs = SimFs()
    put(fs, "/f", b"data")
    fs.sync_dir("/")
    assert outcomes(fs, "drop") == {b""}


def test_a_file_in_a_directory_whose_own_name_is_not_synced_is_lost_with_it() -> None:
    fs = SimFs()
    fs.mkdir("/a/b")
    put(fs, "/a/b/f", b"data", sync=True)
    fs.sync_dir("/a")
    assert fs.after_machine_crash("drop", 0).tree() == {}
    fs.sync_dir("/")
    assert fs.after_machine_crash("drop", 0).tree() == {"/a": None, "/a/b": None, "/a/b/f": b"data"}


def test_sync_all_makes_everything_durable() -> None:
    fs = SimFs()
    fs.mkdir("/a/b")
    put(fs, "/a/b/f", b"data")
    with pytest.raises(OSError, match="No such device"):
        fs.sync_all("/a")
    fs.anchor("/a")
    fs.sync_all("/a")
    assert fs.after_machine_crash("drop", 0).tree() == {"/a": None, "/a/b": None, "/a/b/f": b"data"}


def test_truncation_and_preallocation_wait_for_a_sync_like_writes() -> None:
    fs = SimFs()
    file = put(fs, "/f", b"0123456789", sync=True)
    file.truncate(4)
    file.preallocate(6)
    assert fs.read("/f") == b"0123\0\0"
    assert outcomes(fs, "drop") == {b"0123456789"}
    assert outcomes(fs, "tear") == {b"0123456789", b"0123", b"0123\0\0"}


def test_a_sync_after_a_truncate_makes_the_shorter_length_durable() -> None:
    fs = SimFs()
    file = put(fs, "/f", b"0123456789", sync=True)
    file.truncate(4)
    file.fdatasync()
    assert outcomes(fs, "reorder") == {b"0123"}


# ----------------------------------------------------------------- kinds of crash


def test_tear_leaves_a_prefix_cut_at_bytes_and_at_sectors() -> None:
    fs = SimFs()
    file = put(fs, "/f", b"", sync=True)
    first, second = bytes([1]) * 700, bytes([2]) * 1400
    file.pwrite(first, 0)
    file.pwrite(second, 700)
    found = outcomes(fs, "tear")
    assert all((first + second).startswith(content) for content in found if content is not None)
    lengths = {len(content) for content in found if content is not None}
    assert {SECTOR, 2 * SECTOR, 2100} <= lengths
    assert any(length % SECTOR and length not in (700, 2100) for length in lengths)
    assert 0 < len(lengths & set(range(1, 700))) < len(lengths)


def test_reorder_may_keep_a_later_sector_and_lose_an_earlier_one() -> None:
    fs = SimFs()
    file = put(fs, "/f", bytes(3 * SECTOR), sync=True)
    for sector in range(3):
        file.pwrite(bytes([sector + 1]) * SECTOR, sector * SECTOR)
    seen = {bytes(content[::SECTOR]) for content in outcomes(fs, "reorder") if content is not None}
    assert seen == {bytes([a, b, c]) for a in (0, 1) for b in (0, 2) for c in (0, 3)}


def test_reorder_keeps_whole_sectors_of_a_write_that_spans_them() -> None:
    fs = SimFs()
    put(fs, "/f", bytes(4 * SECTOR), sync=True).pwrite(b"x" * 2 * SECTOR, 100)
    parts = [(100, SECTOR), (SECTOR, 2 * SECTOR), (2 * SECTOR, 2 * SECTOR + 100)]
    for content in outcomes(fs, "reorder"):
        assert content is not None
        for start, end in parts:
            assert content[start:end] in (b"x" * (end - start), bytes(end - start))
        assert not content[:100].strip(b"\0")
        assert not content[2 * SECTOR + 100 :].strip(b"\0")


def test_reorder_may_keep_the_older_of_two_writes_to_one_place() -> None:
    fs = SimFs()
    file = put(fs, "/f", b"zero", sync=True)
    file.pwrite(b"one!", 0)
    file.pwrite(b"two!", 0)
    assert outcomes(fs, "reorder") == {b"zero", b"one!", b"two!"}


def test_reorder_may_keep_the_size_without_the_bytes() -> None:
    fs = SimFs()
    put(fs, "/f", b"", sync=True).pwrite(b"x" * 3 * SECTOR, 0)
    assert bytes(3 * SECTOR) in outcomes(fs, "reorder")


def test_garble_makes_garbage_of_unsynced_bytes_only() -> None:
    fs = SimFs()
    synced = b"s" * 2 * SECTOR
    put(fs, "/f", synced, sync=True).pwrite(b"x" * 300, 100)
    found = outcomes(fs, "garble")
    assert all(c is not None and c[:100] == synced[:100] and c[400:] == synced[400:] for c in found)
    middles = {c[100:400] for c in found if c is not None}
    assert {b"x" * 300, b"s" * 300} < middles


class TestPowerCut:
    """Properties of any crash after any history."""

    histories = st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 2000), st.binary(min_size=1, max_size=1500)),
            st.tuples(st.just("truncate"), st.integers(0, 3000), st.just(b"")),
            st.tuples(st.just("extend"), st.integers(0, 3000), st.just(b"")),
            st.tuples(st.just("sync"), st.just(0), st.just(b"")),
        ),
        max_size=12,
    )

    @staticmethod
    def play(file: File, history: list[tuple[str, int, bytes]]) -> None:
        for name, number, data in history:
            match name:
                case "write":
                    write_all(file, data, number)
                case "truncate":
                    file.truncate(number)
                case "extend":
                    file.preallocate(number)
                case _:
                    file.fdatasync()

    @settings(deadline=None)  # the time of an example says something about the machine only
    @given(history=histories, kind=st.sampled_from(CRASH_KINDS), seed=st.integers(0, 1000))
    def test_bytes_synced_and_not_written_again_are_unchanged(
        self, history: list[tuple[str, int, bytes]], kind: CrashKind, seed: int
    ) -> None:
        fs = SimFs()
        file = put(fs, "/f", b"", sync=True)
        self.play(file, history)
        before = fs.read("/f")
        safe = [offset for offset in range(len(before)) if fs.content_durable("/f", offset, offset + 1)]
        after = fs.after_machine_crash(kind, seed).read("/f")
        assert [after[offset : offset + 1] for offset in safe] == [before[offset : offset + 1] for offset in safe]
        if fs.content_durable("/f"):
            assert after == before

    @settings(deadline=None)  # the time of an example says something about the machine only
    @given(history=histories, kind=st.sampled_from(CRASH_KINDS), seed=st.integers(0, 1000))
    def test_a_sync_at_the_end_makes_everything_survive(
        self, history: list[tuple[str, int, bytes]], kind: CrashKind, seed: int
    ) -> None:
        fs = SimFs()
        file = put(fs, "/f", b"", sync=True)
        self.play(file, [*history, ("sync", 0, b"")])
        assert fs.content_durable("/f")
        before = fs.read("/f")
        assert fs.after_machine_crash(kind, seed).read("/f") == before


# ----------------------------------------------------------------- names


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_a_rename_is_whole_or_not_at_all(kind: CrashKind) -> None:
    fs = SimFs()
    put(fs, "/a", b"new", sync=True)
    put(fs, "/b", b"old", sync=True)
    fs.rename("/a", "/b")
    trees = [fs.after_machine_crash(kind, seed).tree() for seed in SEEDS]
    allowed: list[dict[str, bytes | None]] = [{"/a": b"new", "/b": b"old"}, {"/b": b"new"}]
    assert all(tree in allowed for tree in trees)
    if kind not in ("drop", "keep"):
        assert all(tree in trees for tree in allowed)


def test_a_rename_without_a_data_sync_may_publish_an_empty_file() -> None:
    fs = SimFs()
    put(fs, "/a.tmp", b"content")
    fs.rename("/a.tmp", "/a")
    fs.sync_dir("/")
    assert fs.after_machine_crash("drop", 0).tree() == {"/a": b""}


def test_a_rename_between_directories_needs_both_synced() -> None:
    fs = SimFs()
    fs.mkdir("/x")
    fs.mkdir("/y")
    fs.sync_dir("/")
    put(fs, "/x/f", b"data", sync=True)
    fs.rename("/x/f", "/y/f")
    fs.sync_dir("/y")
    assert not fs.entry_durable("/y/f")
    fs.sync_dir("/x")
    assert fs.entry_durable("/y/f")
    assert fs.after_machine_crash("drop", 0).tree() == {"/x": None, "/y": None, "/y/f": b"data"}


def test_an_unsynced_unlink_may_come_back_with_the_content_it_had() -> None:
    fs = SimFs()
    put(fs, "/f", b"data", sync=True)
    fs.unlink("/f")
    assert outcomes(fs, "drop") == {b"data"}
    assert outcomes(fs, "reorder") == {b"data", None}


def test_changes_of_one_name_survive_in_their_order() -> None:
    fs = SimFs()
    put(fs, "/f", b"one", sync=True)
    fs.unlink("/f")
    put(fs, "/f", b"two").fdatasync()
    fs.unlink("/f")
    assert outcomes(fs, "reorder") == {b"one", b"two", None}
    fs = SimFs()
    put(fs, "/a", b"data").fdatasync()
    fs.rename("/a", "/b")
    fs.rename("/b", "/c")
    trees = [fs.after_machine_crash("reorder", seed).tree() for seed in SEEDS]
    assert all(len(tree) <= 1 for tree in trees)
    assert {name for tree in trees for name in tree} == {"/a", "/b", "/c"}


def test_changes_of_different_names_survive_independently() -> None:
    fs = SimFs()
    put(fs, "/a", b"")
    put(fs, "/b", b"")
    assert {tuple(fs.after_machine_crash("tear", seed).tree()) for seed in SEEDS} == {
        (),
        ("/a",),
        ("/b",),
        ("/a", "/b"),
    }


def test_a_removed_directory_may_come_back() -> None:
    fs = SimFs()
    fs.mkdir("/d")
    fs.sync_dir("/")
    fs.rmdir("/d")
    assert fs.after_machine_crash("drop", 0).tree() == {"/d": None}


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_write_atomic_leaves_the_old_or_the_new_content_whatever_its_last_step(kind: CrashKind) -> None:
    clean = SimFs()
    write_atomic(clean, "/f", b"old" * 1000)
    before = clean.mutations
    write_atomic(clean, "/f", b"new" * 1000)
    seen: set[bytes | None] = set()
    for step in range(before, clean.mutations):
        for applied in (False, True):
            fs = SimFs(crash_at=step, crash_applied=applied)
            write_atomic(fs, "/f", b"old" * 1000)
            with pytest.raises(SimCrash):
                write_atomic(fs, "/f", b"new" * 1000)
            seen |= {fs.after_machine_crash(kind, seed).tree()["/f"] for seed in range(10)}
    assert seen == {b"old" * 1000, b"new" * 1000}


# ----------------------------------------------------------------- crashes at an operation


def test_crash_at_stops_before_or_after_the_effect_and_for_good() -> None:
    for applied, content in ((False, b""), (True, b"data")):
        fs = SimFs(crash_at=1, crash_applied=applied)
        file = fs.open("/f", create=True)
        assert file.pread(10, 0) == b""
        with pytest.raises(SimCrash):
            file.pwrite(b"data", 0)
        uses: list[Callable[[], object]] = [
            partial(file.pread, 1, 0),
            file.fdatasync,
            file.size,
            partial(fs.exists, "/f"),
            partial(fs.mkdir, "/"),
            fs.boot_id,
        ]
        for use in uses:
            with pytest.raises(SimCrash):
                use()
        file.close()
        assert fs.after_process_kill().read("/f") == content


def test_an_operation_that_fails_by_itself_can_be_the_last_one_too() -> None:
    fs = SimFs(crash_at=0, crash_applied=True)
    with pytest.raises(SimCrash):
        fs.unlink("/missing")


def test_every_operation_is_recorded_and_mutations_are_counted() -> None:
    journal: list[Op] = []
    fs = SimFs(journal=journal)
    told: list[Op] = []
    fs.subscribe(told.append)
    put(fs, "/f", b"data", sync=True).pread(4, 0)
    fs.rename("/f", "/g")
    assert told == journal == fs.ops
    assert [(op.index, op.name, op.path, op.detail, op.mutation) for op in fs.ops] == [
        (0, "create", "/f", "", 0),
        (1, "pwrite", "/f", "0+4", 1),
        (2, "fdatasync", "/f", "", 2),
        (3, "sync_dir", "/", "", 3),
        (4, "pread", "/f", "0+4", None),
        (5, "rename", "/f", "/g", 4),
    ]
    assert fs.mutations == 5
    fs.after_process_kill(journal=journal).exists("/g")
    assert journal[-1].index == 6


def test_one_run_shows_the_states_of_a_crash_before_every_operation() -> None:
    states: list[dict[str, bytes | None]] = []
    fs = SimFs()
    write_atomic(fs, "/f", b"old")
    fs.subscribe(lambda op: states.append(fs.after_machine_crash("drop", op.index).tree()))
    write_atomic(fs, "/f", b"new")
    assert states == [{"/f": b"old"}] * len(states)
    assert fs.after_machine_crash("drop", 0).tree() == {"/f": b"new"}


def test_a_crash_is_not_an_exception_that_a_handler_may_swallow() -> None:
    assert not issubclass(SimCrash, Exception)
    fs = SimFs()
    fs.crash()
    with pytest.raises(SimCrash):
        fs.listdir("/")


# ----------------------------------------------------------------- a process kill


def test_a_process_kill_keeps_the_page_cache_but_makes_nothing_durable() -> None:
    fs = SimFs()
    fs.lock("/LOCK", "pid 1")
    fs.sync_dir("/")
    put(fs, "/f", b"data")
    boot, identity = fs.boot_id(), fs.identity("/")
    born = fs.after_process_kill()
    assert born.read("/f") == b"data"
    assert (born.boot_id(), born.identity("/")) == (boot, identity)
    assert born.open_files == 0
    assert not born.content_durable("/f")
    assert set(born.after_machine_crash("drop", 0).tree()) == {"/LOCK"}
    born = fs.after_process_kill()
    born.open("/f").fdatasync()
    born.sync_dir("/")
    assert born.after_machine_crash("drop", 0).read("/f") == b"data"
    assert fs.after_machine_crash("drop", 0).tree().get("/f") is None


def test_a_machine_crash_gives_a_new_boot_id_and_the_same_identities() -> None:
    fs = SimFs()
    fs.mkdir("/d")
    fs.sync_dir("/")
    boots = {fs.boot_id()}
    identity = fs.identity("/d")
    for life in range(3):
        fs = fs.after_machine_crash("drop", 0)
        assert fs.boot_id() not in boots, life
        boots.add(fs.boot_id())
    assert fs.identity("/d") == identity


def test_the_new_machine_and_the_dead_one_share_nothing() -> None:
    fs = SimFs()
    put(fs, "/f", b"data", sync=True)
    for born in (fs.after_process_kill(), fs.after_machine_crash("keep", 0)):
        born.open("/f").pwrite(b"DATA", 0)
        put(born, "/g", b"", sync=True)
        assert fs.tree() == fs.tree(durable=True) == {"/f": b"data"}


# ----------------------------------------------------------------- faults


def test_a_failed_sync_loses_what_was_pending_and_the_next_one_does_not_tell() -> None:
    fs = SimFs()
    file = put(fs, "/f", b"old!", sync=True)
    file.pwrite(b"new!", 0)
    fs.inject(Fault(name="fdatasync", error=errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        file.fdatasync()
    file.fdatasync()
    assert file.pread(4, 0) == b"new!"
    assert not fs.content_durable("/f")
    assert outcomes(fs, "keep") == {b"old!"}
    assert fs.after_process_kill().after_machine_crash("garble", 1).read("/f") == b"old!"


def test_bytes_written_again_after_a_failed_sync_can_be_synced() -> None:
    fs = SimFs()
    file = put(fs, "/f", b"old!old!", sync=True)
    file.pwrite(b"new!new!", 0)
    fs.inject(Fault(name="fdatasync", error=errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        file.fdatasync()
    file.pwrite(b"new!", 4)
    file.fdatasync()
    assert outcomes(fs, "drop") == {b"old!new!"}


def test_a_failed_sync_may_have_reached_the_disk_in_part_or_whole() -> None:
    found = set()
    for seed in SEEDS:
        fs = SimFs(seed)
        file = put(fs, "/f", bytes(2 * SECTOR), sync=True)
        file.pwrite(b"x" * 2 * SECTOR, 0)
        fs.inject(Fault(name="fdatasync", error=errno.EIO, keep_some=True))
        with pytest.raises(OSError, match="Input/output error"):
            file.fdatasync()
        found.add(fs.after_machine_crash("keep", 0).read("/f")[::SECTOR])
    assert found == {b"\0\0", b"x\0", b"\0x", b"xx"}
    fs = SimFs(faults=[Fault(name="fdatasync", error=errno.EIO, applied=True)])
    file = put(fs, "/f", b"data")
    fs.sync_dir("/")
    with pytest.raises(OSError, match="Input/output error"):
        file.fdatasync()
    assert outcomes(fs, "drop") == {b"data"}


def test_a_failed_directory_sync_loses_names_and_the_next_one_does_not_tell() -> None:
    fs = SimFs()
    put(fs, "/f", b"data").fdatasync()
    fs.inject(Fault(name="sync_dir", error=errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        fs.sync_dir("/")
    fs.sync_dir("/")
    fs.settle()
    assert not fs.entry_durable("/f")
    assert outcomes(fs, "drop") == {None}
    assert fs.after_process_kill().read("/f") == b"data"


def test_a_failed_sync_of_everything_loses_content_and_names() -> None:
    fs = SimFs()
    put(fs, "/f", b"old", sync=True).pwrite(b"new", 0)
    put(fs, "/g", b"new")
    fs.inject(Fault(name="sync_all", error=errno.EIO))
    fs.anchor("/")
    for _ in range(2):  # every later caller gets the error too
        with pytest.raises(OSError, match="Input/output error"):
            fs.sync_all("/")
    fs.settle()
    assert fs.after_machine_crash("drop", 0).tree() == {"/f": b"old"}


def test_a_failed_write_back_is_told_once_to_each_descriptor_that_was_open() -> None:
    fs = SimFs()
    first = put(fs, "/f", b"data")
    second = fs.open("/f")
    assert fs.fail_writeback("/f") == 1
    third = fs.open("/f")  # nobody has been told yet
    for file in (first, second, third):
        with pytest.raises(OSError, match="Input/output error"):
            file.fdatasync()
        file.fdatasync()
    fs.open("/f").fdatasync()  # somebody has been told
    assert outcomes(fs, "drop") == {None}


@pytest.mark.parametrize("told", [False, True])
def test_a_file_that_nobody_has_open_may_leave_the_cache_with_its_error(told: bool) -> None:
    fs = SimFs()
    put(fs, "/f", b"data").close()
    fs.fail_writeback(told=told)
    fs.open("/f").fdatasync()
    assert fs.anchor("/") is not told  # which is why the anchor has to be older than the write
    fs.sync_all("/")


def test_an_anchor_hears_of_a_failed_write_whoever_else_was_told() -> None:
    fs = SimFs()
    fs.anchor("/")
    put(fs, "/f", b"data").close()
    fs.fail_writeback(told=True)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            fs.sync_all("/")
    fs.release_anchors()
    fs.anchor("/")
    fs.sync_all("/")


@pytest.mark.parametrize("told", [False, True])
def test_the_next_process_knows_of_a_failed_write_unless_somebody_was_told(told: bool) -> None:
    fs = SimFs()
    put(fs, "/f", b"data")
    fs.fail_writeback(told=told)
    again = fs.after_process_kill()
    assert again.anchor("/") is not told
    assert again.anchor("/") is not told
    again.release_anchors()
    assert not again.anchor("/")


def test_a_remount_in_the_same_boot_loses_the_page_cache() -> None:
    fs = SimFs()
    put(fs, "/f", b"old", sync=True).pwrite(b"new", 0)
    fs.sync_dir("/")
    again = fs.after_remount("drop", 0)
    assert again.read("/f") == b"old"
    assert again.boot_id() == fs.boot_id() == fs.after_process_kill().boot_id()
    assert again.identity("/") == fs.identity("/")
    assert fs.after_process_kill().mount("/") == fs.mount("/") != again.mount("/")


def test_files_beyond_the_inodes_do_not_fit_and_their_number_is_told() -> None:
    fs = SimFs(inodes=2)
    fs.mkdir("/d")
    assert fs.free_inodes("/") == 1
    put(fs, "/d/f", b"data")
    with pytest.raises(OSError, match="No space left"):
        fs.open("/g", create=True)
    with pytest.raises(OSError, match="No space left"):
        fs.mkdir("/e")
    fs.open("/d/f", create=True).close()
    fs.unlink("/d/f")
    fs.open("/g", create=True)
    assert SimFs().free_inodes("/") is None


def test_faults_are_matched_by_operation_path_count_and_predicate() -> None:
    fs = SimFs()
    by_index = fs.inject(Fault(at=0, error=errno.EACCES))
    with pytest.raises(PermissionError):
        fs.exists("/")
    by_path = fs.inject(Fault(name="create", path="*/b*", nth=1, times=2, error=errno.EIO))
    fs.mkdir("/d")
    for name, fails in (("a", False), ("b1", False), ("b2", True), ("c", False), ("b3", True), ("b4", False)):
        if fails:
            with pytest.raises(OSError, match="Input/output error"):
                fs.open(f"/d/{name}", create=True)
        else:
            fs.open(f"/d/{name}", create=True)
    always = fs.inject(Fault(when=lambda op: op.detail == "0+3", times=None, error=errno.EIO))
    file = fs.open("/d/a")
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            file.pwrite(b"abc", 0)
    assert (by_index.hits, by_path.hits, always.hits) == (1, 2, 3)
    assert file.size() == 0


def test_an_error_of_a_change_says_that_it_did_not_happen_unless_it_is_applied() -> None:
    fs = SimFs()
    put(fs, "/a", b"")
    fs.inject(Fault(name="rename", error=errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        fs.rename("/a", "/b")
    assert fs.listdir("/") == ["a"]
    fs.inject(Fault(name="rename", error=errno.EIO, applied=True))
    with pytest.raises(OSError, match="Input/output error"):
        fs.rename("/a", "/b")
    assert fs.listdir("/") == ["b"]


def test_a_short_write_takes_a_part_with_or_without_an_error() -> None:
    fs = SimFs(faults=[Fault(name="pwrite", short=2), Fault(name="pwrite", short=3, error=errno.EIO)])
    file = fs.open("/f", create=True)
    assert file.pwrite(b"abcdef", 0) == 2
    with pytest.raises(OSError, match="Input/output error"):
        file.pwrite(b"ABCDEF", 0)
    assert fs.read("/f") == b"ABC"


def test_a_hook_is_called_before_the_operation_takes_effect() -> None:
    fs = SimFs()
    sizes: list[int] = []
    fs.inject(Fault(name="pwrite", times=None, hook=lambda op: sizes.append(len(fs.tree()[op.path] or b""))))
    put(fs, "/f", b"data").pwrite(b"more", 4)
    assert sizes == [0, 4]


def test_a_full_disk_takes_what_fits_and_then_nothing() -> None:
    fs = SimFs(capacity=10)
    file = put(fs, "/f", b"12345678")
    assert fs.free_bytes("/") == 2
    assert file.pwrite(b"abcd", 8) == 2
    for use in (
        lambda: file.pwrite(b"x", 10),
        lambda: file.pwrite(b"x", 20),
        lambda: file.preallocate(11),
        lambda: file.truncate(11),
    ):
        with pytest.raises(OSError, match="No space left"):
            use()
    assert file.pwrite(b"over", 0) == 4
    file.truncate(4)
    assert fs.free_bytes("/") == 6
    file.preallocate(10)
    put(fs, "/g", b"")
    fs.unlink("/f")
    assert fs.free_bytes("/") == 10
    assert fs.after_process_kill().capacity == 10


# ----------------------------------------------------------------- helpers of tests


def test_a_flipped_bit_is_there_before_and_after_a_crash() -> None:
    fs = SimFs()
    put(fs, "/f", b"\x00\x00", sync=True)
    fs.flip_bit("/f", 1, 3)
    assert fs.read("/f") == b"\x00\x08"
    assert outcomes(fs, "drop") == {b"\x00\x08"}
    with pytest.raises(AssertionError):
        fs.flip_bit("/f", 2, 0)


def test_what_is_durable_can_be_asked_byte_by_byte() -> None:
    fs = SimFs()
    file = put(fs, "/f", b"0123456789", sync=True)
    file.pwrite(b"ab", 4)
    file.pwrite(b"more", 10)
    assert fs.content_durable("/f", 0, 4)
    assert fs.content_durable("/f", 6, 10)
    assert not fs.content_durable("/f", 3, 5)
    assert not fs.content_durable("/f", 6, 11)
    assert not fs.content_durable("/f")
    file.fdatasync()
    assert fs.content_durable("/f")
    with pytest.raises(FileNotFoundError):
        fs.entry_durable("/missing")


def test_one_seed_and_one_order_of_calls_give_one_outcome() -> None:
    def life(seed: int) -> tuple[object, ...]:
        fs = SimFs(seed, faults=[Fault(name="fdatasync", nth=1, error=errno.EIO, keep_some=True)])
        fs.mkdir("/d")
        file = put(fs, "/d/f", b"a" * 2000, sync=True)
        file.pwrite(b"b" * 3000, 500)
        with pytest.raises(OSError, match="Input/output error"):
            file.fdatasync()
        put(fs, "/g", b"c" * 1000)
        file.pwrite(b"d" * 3000, 700)
        return fs.boot_id(), fs.ops, [fs.after_machine_crash(kind, seed).tree() for kind in CRASH_KINDS]

    assert life(7) == life(7)
    assert life(7) != life(8)
