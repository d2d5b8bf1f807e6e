"""The steps of a start before there is a daemon, and the reasons to refuse a start.

The lock of the data directory, the listener, the audit log, the store of segments that are in a bucket, the directory
of a standby, and the claim to the bucket. `topics.daemon` says in which order.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from topics.auth.served_names import ServedNames
from topics.config import Settings
from topics.engine.engine import Engine
from topics.errors import ApiError, not_owner
from topics.http.connections.server import open_listener
from topics.runtime.offload import ThreadOffload
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.files.fs import OsFs
from topics.telemetry.audit_log import AuditLog
from topics.telemetry.logs import get_logger

if TYPE_CHECKING:
    from topics.bucket.archive import Archive
    from topics.bucket.bounded_objects import BoundedObjects
    from topics.bucket.bucket_segments import BucketSegments
    from topics.bucket.local_note import BucketNote
    from topics.bucket.ownership.lease import Lease
    from topics.bucket.ownership.start_claim import StartClaim
    from topics.bucket.repair.bucket_home import BucketHome
    from topics.bucket.restored.restore_completion import RestoreCompletion

log = get_logger(__name__)


class StartRefusal(Exception):
    """The daemon refuses to start: something must be mended first. The message is for the operator."""


class StartFailure(Exception):
    """The start has failed for a reason that may pass, such as a full disk; the message is for the operator."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """While nothing is served, as when a standby makes its directory or waits for its bucket, SIGTERM and SIGINT end
    the process with exit code 0, and SIGHUP does nothing. Nothing is open then that a kill could harm. Without handlers
    the first process of a container ignores SIGTERM, and SIGHUP ends any process."""

    def end(number: int, frame: object) -> None:
        os._exit(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def prepared_standby(settings: Settings, offload: ThreadOffload) -> BucketNote | None:
    """Have the directory of a standby; None if it is the owner's. Raises StartRefusal, StartFailure."""
    from topics.standby import BucketRefused, StandbyRefused, prepare  # noqa: PLC0415

    try:
        return await prepare(settings, offload)
    except (StandbyRefused, BucketRefused) as error:
        raise StartRefusal(str(error)) from error
    except OSError as error:
        raise StartFailure(f"the directory of the standby cannot be made now: {error}") from error


def leave_bucket(engine: Engine) -> None:
    """Have the directory of a standby go on without its bucket, since this daemon is none: with the seqs of a copy.
    Nothing is asked of any bucket before that. Blocking. Raises StartRefusal, StartFailure."""
    settings, datadir = engine.settings, engine.store.datadir
    if not os.path.exists(datadir.standby_path):
        return
    from topics.bucket.standby import directory  # noqa: PLC0415

    is_meant = not settings.bucket or settings.bucket_take
    try:
        directory.leave_bucket(engine.fs, datadir, is_meant=is_meant, salvages=settings.recovery == "salvage")
    except directory.StandbyRefused as error:
        raise StartRefusal(str(error)) from error
    except OSError as error:
        raise StartFailure(f"the directory of a standby cannot be changed now: {error}") from error


def lock(engine: Engine) -> None:
    """Lock the data directory. Raises StartRefusal."""
    try:
        engine.store.lock(f"pid {os.getpid()}")
    except DataDirError as error:
        raise StartRefusal(str(error)) from error


def is_empty(root: str) -> bool:
    """Return True if there is no data directory, nothing in it but what a file system makes, or a restore that was
    interrupted."""
    from topics.bucket.offline.bucket_restore import UNFINISHED  # noqa: PLC0415

    try:
        names = set(os.listdir(root)) - {"lost+found"}
    except FileNotFoundError:
        return True
    return not names or UNFINISHED in names


def is_new(datadir: DataDir) -> bool:
    """Return True if nothing is in a data directory but what a file system makes, and what opening it makes. It has to
    be locked: until then another daemon may have lived in it."""
    own = [datadir.meta_dir, datadir.wal_dir, datadir.topics_dir]
    made = {os.path.basename(path) for path in (*own, datadir.format_path, datadir.lock_path)}
    return set(os.listdir(datadir.root)) <= {"lost+found", *made} and not any(map(os.listdir, own))


def remove_made(engine: Engine) -> None:
    """Remove what a start that was refused has made in a directory in which there was nothing: a standby, or a restore,
    makes its own there. Nothing is removed if it has topics, or a bucket that it has taken names it. The directory is
    locked until `LOCK` has gone. Blocking."""
    from topics.bucket.local_note import BadNote, read_note  # noqa: PLC0415

    datadir = engine.store.datadir
    try:
        note = read_note(engine.fs, datadir)
        if engine.registry.by_id or (note is not None and note.bucket):
            return
        for directory in (datadir.topics_dir, datadir.wal_dir, datadir.meta_dir):
            shutil.rmtree(directory)
        for path in (datadir.format_path, datadir.lock_path):
            os.unlink(path)
    except (OSError, BadNote) as error:
        log.debug("directory_not_emptied", problem=str(error))


def is_mount_point(root: str) -> bool:
    """Return True if a disk is mounted at the directory."""
    return os.path.ismount(root)


def bucket_segments(settings: Settings) -> BucketSegments | None:
    """Return the store of segments that are in a bucket; None if there can be none. Raises StartRefusal."""
    datadir = DataDir(str(settings.data_dir))
    is_restored = os.path.exists(datadir.restore_path)
    if settings.cold_dir is not None:
        if is_restored:
            raise StartRefusal(
                f"{datadir.restore_path} says that segments of this directory are in the bucket that it was restored "
                "from, and with TOPICS_COLD_DIR they cannot be read. Unset TOPICS_COLD_DIR until they have been copied "
                "home: then the file is gone"
            )
        return None
    if not settings.bucket and not is_restored and not os.path.exists(datadir.bucket_path):
        return None
    from topics.bucket.bucket_segments import BucketSegments, opener  # noqa: PLC0415

    return BucketSegments(OsFs(), datadir.root, opener(os.environ, settings.cold_timeout_ms / 1000))


def opened_audit_log(settings: Settings) -> AuditLog | None:
    if settings.audit_log is None:
        return None
    audit = AuditLog(settings.audit_log)
    try:
        audit.open()
    except OSError as error:
        raise StartRefusal(f"TOPICS_AUDIT_LOG={settings.audit_log}: {error.strerror or error}") from error
    return audit


def listening_sockets(settings: Settings) -> list[socket.socket]:
    try:
        return open_listener(settings.host, settings.port)
    except OSError as error:
        raise StartRefusal(f"cannot listen on {settings.host}:{settings.port}: {error}") from error


async def claimed(
    engine: Engine, objects: BoundedObjects, url: str, on_owner: Callable[[str], None], *, is_empty: bool
) -> StartClaim:
    """Take the prefix, and return the claim. Meanwhile all calls are refused, and `on_owner` is told of whom it waits
    for. Raises StartRefusal, StartFailure."""
    from topics.bucket.archive import lease_terms  # noqa: PLC0415
    from topics.bucket.object_store import StoreError  # noqa: PLC0415
    from topics.bucket.offline.bucket_reader import BucketDamaged  # noqa: PLC0415
    from topics.bucket.ownership.owner_object import BucketRefused  # noqa: PLC0415
    from topics.bucket.ownership.start_claim import StartClaim  # noqa: PLC0415
    from topics.bucket.settled_puts import PutGivenUp  # noqa: PLC0415

    settings, datadir = engine.settings, engine.store.datadir

    def show(problem: str, owner: str) -> None:
        engine.status.not_owner = not_owner(f"this daemon waits for the bucket: {problem}", owner)
        on_owner(owner)

    try:
        claim = StartClaim(
            objects,
            lease_terms(settings, os.environ, engine.offload, engine.clock),
            engine.fs,
            datadir,
            clock=engine.clock,
            offload=engine.offload,
            url=url,
            bucket_url=settings.bucket,
            take=settings.bucket_take,
            show=show,
            copies_all=settings.cold_dir is not None,
            in_place=is_mount_point(datadir.root),
            yields=settings.role == "standby",
        )
        await claim.run(is_empty=is_empty)
    except (BucketRefused, BucketDamaged) as error:
        raise StartRefusal(str(error)) from error
    except (StoreError, PutGivenUp, OSError, ApiError) as error:
        raise StartFailure(f"the bucket cannot be taken now: {error}") from error
    engine.status.not_owner = None
    return claim


def write_port_file(settings: Settings, port: int) -> None:
    """Write the port to `TOPICS_PORT_FILE`, if that is set. The file is renamed into place, so that a reader never sees
    it empty."""
    if settings.port_file is None:
        return
    path = Path(settings.port_file)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(f"{port}\n")
    temporary.replace(path)


async def settle_bucket(archive: Archive, lease: Lease | None) -> None:
    """Give the bucket some time to refuse the start. Raises StartRefusal; but not if the lease is lost: another daemon
    owns the bucket now, or may, and the daemon ends with the exit code for that."""
    from topics.bucket.ownership.owner_object import BucketRefused  # noqa: PLC0415

    try:
        await archive.settle_start()
    except BucketRefused as error:
        if lease is None or lease.is_held:
            raise StartRefusal(str(error)) from error


def tell_of_names_elsewhere(engine: Engine) -> None:
    """Warn of topics that this daemon has and does not serve, because `TOPICS_NAMES` was changed."""
    served = ServedNames(engine.settings.names)
    elsewhere = sum(not served.has(name) for name in engine.registry.topics) if served else 0
    if elsewhere:
        consequence = "they stay, and calls for them are refused"
        log.warning("topics_not_here", topics=elsewhere, names=served.prefixes, consequence=consequence)


def mend_pointers(engine: Engine, segments: BucketSegments | None, home: BucketHome | None) -> None:
    """Have pointers to segments in a bucket that are damaged made anew. `home` is the daemon's own bucket."""
    if segments is None:
        return
    from topics.bucket.repair.pointer_home import PointerHome  # noqa: PLC0415

    found = PointerHome(engine.fs, engine.store.datadir, home, engine.settings.bucket, segments.store_at)
    segments.remake = found.pointer


def made_completion(engine: Engine, segments: BucketSegments, has_base: Callable[[], bool]) -> RestoreCompletion | None:
    """Make what completes a restore, if segments are still in the bucket that the directory was restored from.
    Raises StartRefusal."""
    from topics.bucket.restored.restore_completion import RestoreCompletion  # noqa: PLC0415
    from topics.bucket.restored.restore_note import BadRestoreNote, read_restore_note  # noqa: PLC0415

    try:
        note = read_restore_note(engine.fs, engine.store.datadir)
    except (BadRestoreNote, OSError) as error:
        raise StartRefusal(f"{engine.store.datadir.restore_path} cannot be read: {error}") from error
    if note is None:
        return None
    return RestoreCompletion(
        note,
        engine.registry.by_id,
        engine.home_moves,
        segments,
        fs=engine.fs,
        datadir=engine.store.datadir,
        clock=engine.clock,
        offload=engine.offload,
        has_base=has_base,
        has_room=lambda: engine.store.space.shortage is None,
    )
