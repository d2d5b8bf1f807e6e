"""The daemon: the tree of nurseries, the order of starting and the order of stopping (`docs/spec/runtime.md` section
1). Read this first.

    daemon
     ├─ storage     shard writer x N · compactor · reclaimer · relocator · free-space watch · archive · bases
     ├─ delivery    worker x S · governor
     ├─ sessions    housekeeping (ceilings, idempotency windows, stages, idle watch sessions, slow connections)
     ├─ schedules   appends records that are due by the clock
     ├─ engine      commits that outlive the request that asked for them
     └─ http        hypercorn

What the failure of a task means is decided where it is started. A shard writer whose disk fails becomes read-only and
goes on. The compactor, the reclaimer, the relocator, the schedules and the governor are started again after a pause,
and counted. A request handler that fails is answered with 500. Any other failure stops the daemon in order.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

import trio

from topics import __version__
from topics.auth.key_file import KeysRefused, read_keys
from topics.bucket.bounded_objects import MOST_CHANGES, MOST_READS
from topics.config import Settings
from topics.daemon_start import (
    StartFailure,
    StartRefusal,
    bucket_segments,
    claimed,
    ended_by_signals,
    is_empty,
    is_new,
    leave_bucket,
    listening_sockets,
    lock,
    made_completion,
    mend_pointers,
    opened_audit_log,
    prepared_standby,
    remove_made,
    settle_bucket,
    tell_of_names_elsewhere,
    write_port_file,
)
from topics.engine.engine import Engine
from topics.engine.restored_topics import keep_only
from topics.errors import ApiError
from topics.http.app import make_app
from topics.http.connections.server import Server, port_of, serve
from topics.http.gate import Gate
from topics.http.handlers.control_plane import load_late
from topics.runtime.clock import SystemClock
from topics.runtime.garbage_collector import building
from topics.runtime.offload import Pool, ThreadOffload
from topics.runtime.process_limits import limit_arenas, raise_file_limit
from topics.storage.cold.cold_store import MOST_HANGING, MOST_HANGING_CHANGES
from topics.storage.files.datadir import DataDirError
from topics.storage.files.fs import OsFs
from topics.storage.files.mounts import kernel_warning
from topics.storage.recovery.damage import Damage
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal.frames import UnknownFrameType
from topics.telemetry.audit_log import AuditLog
from topics.telemetry.logs import flush, get_logger

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

    from topics.bucket.archive import Archive
    from topics.bucket.bases.base_writer import BaseWriter
    from topics.bucket.bounded_objects import BoundedObjects
    from topics.bucket.bucket_segments import BucketSegments
    from topics.bucket.local_note import BucketNote
    from topics.bucket.ownership.lease import Lease
    from topics.bucket.ownership.start_claim import StartClaim
    from topics.bucket.repair.bucket_home import BucketHome
    from topics.standby import Standby

log = get_logger(__name__)

GRACE_S: Final = 10.0
"""How long a daemon that has lost its lease goes on answering reads (s)."""

LEASE_LOOK_S: Final = 0.05
"""How often the daemon checks whether the lease is lost (s). Each call that changes something checks it besides."""

HOUSEKEEPING_MS: Final = 500
"""How often idle state is looked for: ceilings, idempotency keys, stages, sessions, slow connections."""

RESTART_BACKOFF_S: Final = (0.1, 1.0, 10.0)
"""Pauses before a failed background task is started again; the last one repeats."""

RELOAD_S: Final = 5.0
"""How long reading the file of keys again may take. It may be on a disk that does not answer."""

COLLECTOR_THRESHOLDS: Final = (10_000, 1, 300)
"""New objects (less those freed) before a young collection, and how many collections before one of the next
generation. Nearly all objects are freed by their reference count. With the defaults (700, 10, 10) the collector takes a
fifth of the time of a replay, and half of that of decoding a batch. A collection holds the loop for up to a millisecond
for each 1,000 objects that it visits. With 50,000 a flood of connections held it for 57 ms, with these values for at
most 20 ms, and batches cost the same."""

SWITCH_INTERVAL_S: Final = 0.0005
"""How long a worker thread that computes may keep the interpreter lock while the loop waits for it. With the default (5
ms) an append would wait that long at each of its system calls."""

ARENAS: Final = 2
"""Memory pools of the C library. By default each of some twenty threads has one, and memory that is freed in one is not
used by the others."""

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_REFUSED: Final = 2
EXIT_NOT_OWNER: Final = 3
EXIT_AT_ONCE: Final = 130

BEGIN_ANEW: Final = -1
BEGIN_AT_ONCE: Final = -2
"""Not exit codes: the process begins again, as a standby with another directory, or as the owner."""

ANEW_S: Final = 5.0
"""The wait before that (s), so that a failure that comes at each start does no harm."""


E = TypeVar("E", bound=Exception)


def run(settings: Settings, cold: SegmentStore | None = None) -> int:
    """Run the daemon until it stops. Returns the exit code of the process: 0 after a clean stop, 1 after a failure, 2
    if the start is refused, 3 if another daemon owns the bucket now, or may.

    `cold` is the store for old segments, in place of the directory that the settings name; tests use it.
    """
    port = settings.port
    with ended_by_signals():
        while True:
            code, port = _run_once(replace(settings, port=port), cold)
            if code not in (BEGIN_ANEW, BEGIN_AT_ONCE):
                return code
            if code == BEGIN_ANEW:
                time.sleep(ANEW_S)


def _run_once(settings: Settings, cold: SegmentStore | None) -> tuple[int, int]:
    """Return the exit code, and the port."""
    code, port = EXIT_FAILED, settings.port
    try:
        code, port = trio.run(partial(_main, settings, cold), strict_exception_groups=True)
    except* StartRefusal as group:
        for error in _leaves(group):
            log.error("start_refused", reason=str(error))
        code = EXIT_REFUSED
    except* StartFailure as failures:
        for failure in _leaves(failures):
            log.error("start_failed", reason=str(failure))
        code = EXIT_FAILED
    except* Exception as group:
        log.error("daemon_failed", exc_info=group)
        code = EXIT_FAILED
    return code, port


def _leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _main(settings: Settings, cold: SegmentStore | None) -> tuple[int, int]:
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    limit_arenas(ARENAS)
    for sentence in [*settings.warnings, raise_file_limit(), kernel_warning()]:
        if sentence is not None:
            log.warning("configuration", problem=sentence)
    clock = SystemClock()
    offload = ThreadOffload(
        {
            Pool.WAL: settings.wal_shards + 1,
            Pool.HOT_READ: 8,
            Pool.COLD_READ: MOST_HANGING,
            Pool.COLD_FILES: MOST_HANGING_CHANGES,
            Pool.CPU: 2,
            Pool.FILES: 4,
            Pool.BUCKET_READ: MOST_READS,
            Pool.BUCKET_CHANGE: MOST_CHANGES,
        }
    )
    try:
        keys = read_keys(settings.api_keys, settings.api_keys_file)
    except KeysRefused as error:
        raise StartRefusal(str(error)) from None
    audit = opened_audit_log(settings)
    note = await prepared_standby(settings, offload) if settings.role == "standby" else None
    segments = bucket_segments(settings) if cold is None else None
    engine = Engine(settings, fs=OsFs(), clock=clock, offload=offload, cold=cold or segments, objects=segments)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        comes_from_bucket = bool(settings.bucket) and settings.bucket_takeover and is_empty(str(settings.data_dir))
        if not comes_from_bucket:
            lock(engine)
        was_new = not comes_from_bucket and is_new(engine.store.datadir)
        try:
            if note is None and not comes_from_bucket:
                leave_bucket(engine)
            app, sockets = make_app(engine, keys, audit), listening_sockets(settings)
            daemon = Daemon(settings, engine, app, audit, sockets, segments, note)
            return await daemon.serve(signals), daemon.port
        except* StartRefusal:
            if was_new:
                remove_made(engine)
            raise
        finally:
            engine.store.unlock()


class Daemon:
    """One run of the daemon, from the open listener to the exit code."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        app: Gate,
        audit: AuditLog | None,
        sockets: list[socket.socket],
        segments: BucketSegments | None = None,
        note: BucketNote | None = None,
    ) -> None:
        """`segments` is the engine's cold store if that is a bucket; `note` says where a standby goes on."""
        self.settings = settings
        self.engine = engine
        self.app = app
        self.audit = audit
        engine.watch_sessions.places.share = app.access.share
        self.port = port_of(sockets)
        self._sockets = sockets
        self._objects: BoundedObjects | None = None
        self._home: BucketHome | None = None
        self._segments = segments
        self._archive: Archive | None = None
        self._bases: BaseWriter | None = None
        self._claim: StartClaim | None = None
        self._is_fenced = False
        self._note = note
        self._standby: Standby | None = None
        self._again: int | None = None
        self._failed = False
        self._draining = "requests"
        self._drain_began = self._stage_began = 0.0
        self._reloading = trio.Lock()
        self._stop = trio.Event()
        self._served = trio.Event()

    async def serve(self, signals: AsyncIterator[int]) -> int:
        """Listen, recover, serve until a signal, drain. Returns the exit code."""
        async with trio.open_nursery() as daemon:
            daemon.start_soon(self._watch_signals, signals)
            http = await daemon.start(_branch)
            server = await http.start(self._serve_http)
            self.app.figures.server = server
            write_port_file(self.settings, self.port)
            storage = await daemon.start(_branch)
            await storage.start(self.engine.run)
            if self._note is not None:
                self._standby = self._make_standby(self._note)
            else:
                self._make_home()
            claimed = await self._until_stopped(self._claim_bucket)
            if claimed and self._claim is not None:
                daemon.start_soon(self._watch_lease, self._claim.lease)
            if not claimed or not await self._recover():
                daemon.cancel_scope.cancel()
                return self._stop_code
            archive = await self._open_log(storage) if self._standby is None else None
            background = await daemon.start(_branch)
            background.start_soon(self._restarted, "compactor", self.engine.compactor.run)
            if archive is not None:
                self._start_bases(background, archive)
            if archive is not None and not await self._until_stopped(partial(self._archive_recovered, archive)):
                daemon.cancel_scope.cancel()
                return self._stop_code
            background.start_soon(self._restarted, "reclaimer", self.engine.reclaimer.run)
            if (
                self._segments is not None
                and (completion := made_completion(self.engine, self._segments, self._has_base)) is not None
            ):
                background.start_soon(self._restarted, "restore_completion", completion.run)
            background.start_soon(self._restarted, "length_check", self.engine.length_check.run)
            background.start_soon(self._restarted, "free_space", self.engine.store.space.watch)
            storage.start_soon(self._vital, "delivery", self.engine.delivery.scheduler.run)
            background.start_soon(self._restarted, "governor", self.engine.governor.run)
            if self._standby is None:
                self._start_owner(background)
            else:
                background.start_soon(self._follow, self._standby)
                background.start_soon(self._restarted, "announcer", self._standby.announcer.run)
                background.start_soon(self._restarted, "replicas", self._standby.replicas.run)
                background.start_soon(self._vital, "housekeeping", self._look_after_clients)
            if self.audit is not None:
                background.start_soon(self._restarted, "audit_summaries", self.audit.run)
            # The objects that imports and recovery have built stay; frozen, they are not visited by each collection.
            # They are not searched for garbage first: with 100,000 topics that takes 0.3 s, and finds hardly any.
            gc.freeze()
            await self.engine.store.space.look()
            self.engine.open_for_business()
            log.info("ready", version=__version__, port=self.port, topics=len(self.engine.registry.topics))
            background.start_soon(trio.to_thread.run_sync, load_late)
            await self._stop.wait()
            if self._is_fenced or self._again is not None:
                self.engine.start_draining()
                await self.engine.watch_sessions.say_farewell()
                daemon.cancel_scope.cancel()
                return self._stop_code
            with trio.move_on_after(self.settings.drain_ms / 1000) as limit:
                await self._drain(server, background.cancel_scope)
            if limit.cancelled_caught:
                log.warning("drain_timed_out", drain_ms=self.settings.drain_ms, waiting_for=self._draining)
            if self._objects is not None:
                self._objects.hurry()
            daemon.cancel_scope.cancel()
        if self.audit is not None:
            await self.audit.summarize()
        return EXIT_FAILED if self._failed else EXIT_OK

    async def _open_log(self, storage: trio.Nursery) -> Archive | None:
        """Start what writes the log, here and in the bucket. Raises StartRefusal, StartFailure."""
        archive = await self._make_archive()
        for writer in self.engine.store.writers:
            storage.start_soon(self._vital, f"wal shard {writer.shard}", writer.run)
        await self._keep_selected()
        if archive is not None:
            storage.start_soon(self._restarted, "archive", archive.run)
            await settle_bucket(archive, self._claim.lease if self._claim is not None else None)
        return archive

    def _start_owner(self, background: trio.Nursery) -> None:
        """Start what an owner alone does by itself."""
        if self.engine.store.tiers.cold is not None:
            background.start_soon(self._restarted, "relocator", self.engine.relocator.run)
            background.start_soon(self._restarted, "cold_directory", self.engine.store.cold_dir.watch)
        background.start_soon(self._vital, "housekeeping", self._housekeeping)
        background.start_soon(self._restarted, "schedules", self.engine.firings.run)

    def _make_standby(self, note: BucketNote) -> Standby:
        """Raises StartRefusal."""
        from topics.standby import BucketRefused, Standby  # noqa: PLC0415

        try:
            standby = Standby(self.settings, self.engine, note, self._url)
        except BucketRefused as error:
            raise StartRefusal(str(error)) from error
        self._objects = standby.objects
        return standby

    async def _follow(self, standby: Standby) -> None:
        """Follow the owner. If that ends, the process begins again."""
        await self._vital("standby", standby.run)
        if not self._failed:
            self._again = BEGIN_AT_ONCE if standby.has_taken else BEGIN_ANEW
        self._stop.set()

    async def _look_after_clients(self) -> None:
        """Do what is due by time alone on a standby."""
        while True:
            await trio.sleep(HOUSEKEEPING_MS / 1000)
            self.engine.watch_sessions.expire_idle()
            self.engine.watch_sessions.check_connections()
            self.app.load.sample()

    async def _vital(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task without which the daemon cannot work: an unexpected exception in it stops the daemon in order."""
        try:
            await task()
        except Exception:
            log.exception("vital_task_failed", task=name)
            self._failed = True
            self._stop.set()

    async def _serve_http(self, *, task_status: trio.TaskStatus[Server]) -> None:
        lane = self.app.handle if self.settings.http_lane else None
        await serve(cast("ASGIFramework", self.app), self._sockets, self.settings, lane, task_status=task_status)
        self._served.set()

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        """Handle signals. SIGHUP opens the audit log again and reads the keys again, each in a task of its own, because
        a disk that does not answer must not delay other signals. The first of the other signals stops the daemon in
        order, the second ends the process at once."""
        first = True
        async with trio.open_nursery() as nursery:
            async for number in signals:
                if number == signal.SIGHUP:
                    if self.audit is not None:
                        nursery.start_soon(self.audit.reopen)
                    nursery.start_soon(self._reload)
                    continue
                name = signal.Signals(number).name
                if not first:
                    log.warning("stopped_at_once", signal=name, waiting_for=self._draining)
                    flush()
                    os._exit(EXIT_AT_ONCE)
                first = False
                log.info("draining", signal=name, drain_ms=self.settings.drain_ms)
                self._stop.set()

    async def _reload(self) -> None:
        """Read the keys again. If they cannot be used, the present ones stay and an error is logged."""
        async with self._reloading:  # in the order of the signals, so that the latest content of the file counts
            try:
                with trio.fail_after(RELOAD_S):
                    keys = await trio.to_thread.run_sync(
                        read_keys, self.settings.api_keys, self.settings.api_keys_file, abandon_on_cancel=True
                    )
            except (KeysRefused, trio.TooSlowError) as error:
                log.error("keys_not_reloaded", reason=str(error) or "the file cannot be read in time")
                return
            ended = self.app.access.replace(keys)
            log.info("keys_reloaded", keys=len(keys), streams_ended=ended.streams, calls_ended=ended.calls)

    async def _recover(self) -> bool:
        """Rebuild the topics from the data directory. Return False if a signal to stop came meanwhile.

        Raises Refused if the directory is damaged, and Failed if it cannot be read now.
        """
        engine = self.engine
        engine.status.phase = "replaying"
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show_progress)
            try:
                with building():
                    if self._standby is None:
                        await engine.recover()
                    elif not await self._standby.recover():
                        self._again = BEGIN_ANEW
                        self._stop.set()
            except (Damage, DataDirError, UnknownFrameType) as error:
                raise StartRefusal(str(error)) from error
            except OSError as error:
                raise StartFailure(f"the data directory cannot be recovered now: {error}") from error
            nursery.cancel_scope.cancel()
        if self._again is not None:
            return False
        remote = [topic.name for topic in engine.registry.by_id.values() if topic.is_remote]
        if remote and not self.settings.bucket:
            raise StartRefusal(
                f"topics of this directory have the class remote, which needs a bucket, such as {remote[0]!r} (of "
                f"{len(remote)}): set TOPICS_BUCKET"
            )
        tell_of_names_elsewhere(engine)
        log.info(
            "recovered",
            topics=len(engine.registry.topics),
            records=engine.registry.total_records,
            ms=round((trio.current_time() - began) * 1000),
        )
        return not self._stop.is_set()

    async def _keep_selected(self) -> None:
        """Delete what a restore of some topics has left out, at its first start. Raises StartRefusal, StartFailure."""
        engine, datadir = self.engine, self.engine.store.datadir
        if not await engine.offload.run(Pool.FILES, partial(engine.fs.exists, datadir.selection_path)):
            return
        from topics.bucket.restored.topic_selection import BadSelection, read_selection, remove_selection  # noqa: PLC0415

        try:
            selection = await engine.offload.run(Pool.FILES, partial(read_selection, engine.fs, datadir))
            if selection is None:
                return
            kept = await keep_only(
                selection.matches,
                registry=engine.registry,
                topic_lifecycle=engine.topic_lifecycle,
                schedules=engine.schedules,
            )
            await engine.offload.run(Pool.FILES, partial(remove_selection, engine.fs, datadir))
        except BadSelection as error:
            raise StartRefusal(
                f"{datadir.selection_path} is damaged: {error}. Restore again; or remove it, and keep all topics"
            ) from error
        except (OSError, ApiError) as error:
            raise StartFailure(f"the topics that the restore leaves out cannot be deleted now: {error}") from error
        log.info("restored_topics_selected", patterns=list(selection.patterns), **kept._asdict())

    def _make_home(self) -> None:
        """Have damage repaired from the bucket, if there is one. Raises StartRefusal."""
        engine = self.engine
        if not self.settings.bucket:
            mend_pointers(engine, self._segments, self._home)
            return
        from topics.bucket.archive import make_objects  # noqa: PLC0415
        from topics.bucket.ownership.owner_object import BucketRefused  # noqa: PLC0415
        from topics.bucket.repair.bucket_home import BucketHome  # noqa: PLC0415

        try:
            self._objects = make_objects(self.settings, os.environ, engine.offload)
        except BucketRefused as error:
            raise StartRefusal(str(error)) from error
        store = engine.store
        self._home = BucketHome(self._objects, engine.fs, store.datadir, lambda: store.identity, engine.clock)
        store.home = engine.loader.spans.repairs.home = self._home
        mend_pointers(engine, self._segments, self._home)

    async def _claim_bucket(self) -> None:
        """With takeover: become the owner of the bucket before anything is recovered. Raises StartRefusal,
        StartFailure."""
        engine = self.engine
        if self._objects is None or not self.settings.bucket_takeover or self._standby is not None:
            return
        comes_from_bucket = is_empty(engine.store.datadir.root)
        call = partial(claimed, engine, self._objects, self._url, self._note_owner)
        claim = self._claim = await call(is_empty=comes_from_bucket)
        if comes_from_bucket:
            lock(engine)
        if self._home is not None:
            self._home.has_answered = True
        engine.store.right.lease = claim.lease

    def _note_owner(self, owner: str) -> None:
        """The claim waits for another owner. A daemon that may be a standby follows that owner instead."""
        if owner and self.settings.role == "standby":
            self._again = BEGIN_AT_ONCE
            self._stop.set()

    async def _watch_lease(self, lease: Lease) -> None:
        """When the lease is lost: change nothing any more, answer reads for a while, stop."""
        while True:
            if self._stop.is_set():
                return
            if not lease.is_held:
                break
            await trio.sleep(LEASE_LOOK_S)
        log.error("lease_lost", reason=lease.reason, owner=lease.successor, grace_s=GRACE_S)
        self.engine.fence(lease.refusal)
        self.engine.watch_sessions.send_elsewhere()
        self._is_fenced = True
        await trio.sleep(GRACE_S)
        self._stop.set()

    async def _until_stopped(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do a part of the start. Return False if a signal to stop came meanwhile: then it is cut short."""
        async with trio.open_nursery() as nursery:

            async def stopped() -> None:
                await self._stop.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(stopped)
            await work()
            nursery.cancel_scope.cancel()
        return not self._stop.is_set()

    @property
    def _stop_code(self) -> int:
        """The exit code of a stop that does not drain."""
        if self._again is not None:
            return self._again
        return EXIT_NOT_OWNER if self._is_fenced else EXIT_OK

    @property
    def _url(self) -> str:
        """Where clients reach this daemon."""
        return self.settings.advertised_url or f"http://{self.settings.host}:{self.port}"

    async def _make_archive(self) -> Archive | None:
        """Make the archive, if there is a bucket. Raises StartRefusal."""
        engine = self.engine
        if self._objects is None or self._home is None:
            return None
        from topics.bucket.archive import Archive  # noqa: PLC0415
        from topics.bucket.ownership.owner_object import BucketRefused  # noqa: PLC0415
        from topics.bucket.repair.bucket_home import LIVE_S  # noqa: PLC0415

        self._home.patience_s = LIVE_S
        try:
            archive = self._archive = Archive(
                self.settings,
                engine.store,
                engine.registry,
                engine.compactor,
                self._objects,
                fs=engine.fs,
                clock=engine.clock,
                offload=engine.offload,
                url=self._url,
                nonce=self._claim.nonce if self._claim is not None else None,
                dir_id=self._claim.dir_id if self._claim is not None else None,
                ownership=self._claim.ownership if self._claim is not None else None,
            )
            await archive.prepare()
        except BucketRefused as error:
            raise StartRefusal(str(error)) from error
        except OSError as error:
            raise StartFailure(f"the note about the bucket cannot be read or written: {error}") from error
        engine.compactor.keeper = archive
        engine.metrics.bucket = archive.look
        return archive

    def _start_bases(self, background: trio.Nursery, archive: Archive) -> None:
        """Have bases made, and what nobody needs removed from the bucket."""
        from topics.bucket.bases.base_writer import BaseWriter  # noqa: PLC0415
        from topics.bucket.bases.bucket_look import BucketLook  # noqa: PLC0415
        from topics.bucket.bases.collector import BucketCollector  # noqa: PLC0415
        from topics.bucket.bases.own_segments import OwnSegments  # noqa: PLC0415
        from topics.bucket.standby.replica_look import ReplicaLook  # noqa: PLC0415

        engine, settings = self.engine, self.settings
        bases = self._bases = BaseWriter(
            archive,
            engine.compactor,
            clock=engine.clock,
            offload=engine.offload,
            interval_ms=settings.bucket_base_ms,
            records=lambda: engine.registry.total_records,
        )
        collector = BucketCollector(
            archive, bases, clock=engine.clock, offload=engine.offload, retain_ms=settings.bucket_retain_ms
        )
        if self._segments is not None:
            self._segments.own = OwnSegments(archive, bases, settings.bucket).bucket
        repairs, at_start = engine.loader.spans.repairs, engine.store.repairs
        engine.metrics.bucket = BucketLook(
            archive, bases, collector, self._objects, repairs, at_start, self._segments
        ).figures
        background.start_soon(self._restarted, "bases", bases.run)
        background.start_soon(self._restarted, "collector", collector.run)
        replicas = ReplicaLook(archive.objects, dir_id=None, clock=engine.clock, offload=engine.offload)
        engine.metrics.replicas = replicas.look
        background.start_soon(self._restarted, "replicas", replicas.run)

    def _has_base(self) -> bool:
        return self._bases is not None and self._bases.has_base

    async def _archive_recovered(self, archive: Archive) -> None:
        """With takeover, or topics of the class `remote`: wait until all that was recovered is in the bucket. Before
        that nobody may see it. Raises StartFailure."""
        from topics.bucket.archive import ArchiveStopped  # noqa: PLC0415

        engine = self.engine
        if self._claim is None and not any(topic.is_remote for topic in engine.registry.by_id.values()):
            return
        engine.status.phase = "archiving"
        engine.ceilings.raise_at_start()
        with suppress(ApiError):  # a shard without room raises nothing, and has nothing that waits
            await engine.store.sync_shards()
        try:
            await archive.vouch_for([writer.synced_position()[0] for writer in engine.store.writers])
        except ArchiveStopped as error:
            raise StartFailure(f"the bucket cannot get what was recovered: {error}") from error

    async def _show_progress(self) -> None:
        while True:
            self.engine.status.replay_progress = self.engine.store.progress.share
            await trio.sleep(0.05)

    async def _housekeeping(self) -> None:
        """Do what is due by time alone, every `HOUSEKEEPING_MS`."""
        while True:
            await trio.sleep(HOUSEKEEPING_MS / 1000)
            self.engine.ceilings.lower_idle()
            await self.engine.keys.expire()
            await self.engine.unique_jobs.expire()
            self.engine.expire_unused()
            self.engine.watch_sessions.expire_idle()
            self.engine.watch_sessions.check_connections()
            self.app.load.sample()

    async def _restarted(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run a background task until it has done what it had to. If it fails, log and count that, and start it again
        after a pause."""
        failures = 0
        while True:
            try:
                return await task()
            except Exception:
                failures += 1
                self.engine.restarts[name] += 1
                log.exception("background_task_failed", task=name, failures=failures)
                await trio.sleep(RESTART_BACKOFF_S[min(failures, len(RESTART_BACKOFF_S)) - 1])

    async def _drain(self, server: Server, background: trio.CancelScope) -> None:
        """Stop in order: refuse new requests, finish those in progress, sync every shard, write the marks of a clean
        stop, and write a last snapshot."""
        self._drain_began = self._stage_began = trio.current_time()
        self.engine.start_draining()
        server.stop_accepting()
        background.cancel()
        await self.engine.watch_sessions.say_farewell()
        await self._served.wait()
        self._enter_stage("commits in flight")
        await self.engine.quiesce()
        if self._standby is None:
            self.engine.ceilings.lower_all()
            self.engine.ceilings.lower_bucket_ceilings()
        await self.engine.announce_last_checkpoint()
        for writer in self.engine.store.writers:
            self._enter_stage(f"wal shard {writer.shard}")
            await writer.stop()
        self._enter_stage("the last snapshot")
        clean = not any(writer.failed for writer in self.engine.store.writers)
        if clean:
            with building():  # all it makes of a topic stays until the topic is stored
                await self.engine.compactor.try_checkpoint(marks=False)
        if self._archive is not None:
            self._enter_stage("the bucket")
            await self._archive.finish()
        self._enter_stage("nothing")
        log.info("drained", clean=clean, ms=round((trio.current_time() - self._drain_began) * 1000))

    def _enter_stage(self, name: str) -> None:
        """Log that the present stage of the drain is done, and begin the stage `name`."""
        now = trio.current_time()
        log.info("drain_stage", done=self._draining, ms=round((now - self._stage_began) * 1000))
        self._draining, self._stage_began = name, now


async def _branch(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """A nursery that runs as a task of another one: a branch of the tree that can be cancelled by itself."""
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()
