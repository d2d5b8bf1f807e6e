"""`LeaseKeeper`: the thread that renews the lease of an owner (`docs/design/replication.md` section 3).

It is a thread of its own, with store calls of its own, so that neither a loop that is busy nor rounds and bases that
wait for the store delay a renewal. While it runs nobody else changes `owner`: the round that `owner` names goes with
the next renewal.

A renewal is decided as every put is (`settled_puts`): the same bytes are put until they are there, or other bytes are.
It counts from when these bytes were sent first, because any of the attempts may be the one that has had effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec.structs import replace

from topics.bucket.container import BadObject
from topics.bucket.object_names import OWNER
from topics.bucket.object_store import ObjectChanged, ObjectMissing, ObjectStore, ObjectTooLarge, StoreError
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.owner_format import MAX_OWNER_BYTES, Owner, SeenOwner, decode_owner, encode_owner
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

RETRY_SHARE: Final = 20
"""A renewal that is not decided is sent again after this part of the lease."""


class _Renewal(NamedTuple):
    """A renewal that is not decided yet. `sent_ms` is when it was sent first (CLOCK_BOOTTIME)."""

    owner: Owner
    data: bytes
    sent_ms: int


class LeaseKeeper:
    """Renews one lease until `end`, or until it is lost."""

    def __init__(self, objects: ObjectStore, lease: Lease, held: SeenOwner, boottime_ms: Callable[[], int]) -> None:
        """`held` is `owner` as this process has put it. The calls of `objects` block for a bounded time."""
        self.lease = lease
        self.round = held.owner.round
        """The round that the next renewal names."""
        self._objects = objects
        self._held = held
        self._boottime_ms = boottime_ms
        self._renewal: _Renewal | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to renew, in a thread."""
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Renew no more. Never waits: a call that is under way may still have its effect."""
        self._ending.set()

    def join(self, seconds: float) -> SeenOwner | None:
        """Wait for the end of the thread. Return `owner` as this process has put it last; None if that is not known:
        the thread has not ended, or a renewal is not decided. Blocking."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return None
        return self._held if self._renewal is None else None

    def _run(self) -> None:
        pause_ms = self.lease.renew_every_ms
        while not self._ending.wait(pause_ms / 1000) and self.lease.is_held:
            pause_ms = self.step()

    def step(self) -> int:
        """Send a renewal, or the one that is not decided again. Return how long to wait before the next step (ms).
        Blocking, for a bounded time."""
        renewal = self._renewal
        if renewal is None:
            owner = replace(self._held.owner, round=self.round, renewals=self._held.owner.renewals + 1)
            renewal = self._renewal = _Renewal(owner, encode_owner(owner), self._boottime_ms())
        try:
            etag = self._objects.put_if(OWNER, renewal.data, self._held.etag)
        except (ObjectChanged, StoreError):
            etag = self._read_back(renewal)
        if not etag:
            return self.lease.lease_ms // RETRY_SHARE
        self._held, self._renewal = SeenOwner(renewal.owner, etag), None
        self.lease.renewed(renewal.sent_ms)
        return max(self.lease.renew_every_ms - (self._boottime_ms() - renewal.sent_ms), 0)

    def _read_back(self, renewal: _Renewal) -> str:
        """Look what is there. Return the ETag if it is the renewal, empty if nothing is decided or the lease is
        lost."""
        try:
            found = self._objects.get(OWNER, MAX_OWNER_BYTES)
        except ObjectMissing:
            self.lease.lose("somebody has deleted the object owner of the bucket")
            return ""
        except StoreError:
            return ""
        except ObjectTooLarge:
            self.lease.lose("somebody has replaced the object owner of the bucket")
            return ""
        if found.data == renewal.data:
            return found.etag
        if found.etag != self._held.etag:
            self._note_successor(found.data)
        return ""

    def _note_successor(self, data: bytes) -> None:
        try:
            other = decode_owner(data)
        except BadObject as error:
            self.lease.lose(f"somebody has replaced the object owner of the bucket: {error}")
            return
        log.warning("lease_taken", epoch=other.epoch, node=other.node, directory=other.dir)
        self.lease.lose(f"node {other.node} has taken the bucket (epoch {other.epoch})", other.url)
