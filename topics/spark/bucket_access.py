"""A bucket that is open in this process: which base a query reads, and the pin that keeps it (`docs/pipeline.md`).

A query travels from process to process by the URL of the bucket alone. Endpoint, region and credentials are looked up
in the environment of the process that opens it, and the store that has them is never pickled. Messages name the object
and say what is wrong; they contain no credential, as those of `topics.bucket` do not.

**Pins.** The driver writes `pins/<uuid>` when it plans: the base, and until when it is needed. Spark does not tell a
source when a query ends, and the process that plans is gone before the query begins. So nobody removes the pin of a
query that has been planned: it ends by its time, and the owner of the bucket removes it. A task renews it when half of
that time is over. Only a query with nothing to read removes its pin itself.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from topics.bucket.base_format import Base
from topics.bucket.bucket_location import BucketLocationError, open_objects, parse_location
from topics.bucket.container import BadObject
from topics.bucket.object_names import base_name, pin_name
from topics.bucket.object_store import (
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
    StoreError,
    StoreErrorKind,
)
from topics.bucket.offline.bucket_reader import ATTEMPTS, FIRST_PAUSE_S, BucketDamaged, BucketReader
from topics.bucket.pin_format import MAX_PIN_BYTES, Pin, decode_pin, encode_pin
from topics.spark.errors import FilesError
from topics.spark.options import PIN_MS, AsOf

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
"""How long the store may give no sign of life (s)."""


class PlannedBase(NamedTuple):
    """The base that a query reads, and its pin: the uuid, empty for none, and when it ends (epoch ms)."""

    number: int
    pin: str = ""
    expires: int = 0


class OpenBucket:
    """A bucket. Methods raise FilesError, which names the object. They may be called from several threads at once."""

    def __init__(
        self,
        url: str,
        objects: ObjectStore,
        pin_ms: int | None = None,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self.reader = BucketReader(objects, sleep)
        self._objects = objects
        self._pin_ms = PIN_MS if pin_ms is None else pin_ms
        self._now_ms = now_ms
        self._sleep = sleep

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what `topics.bucket` raises into FilesError. The causes are dropped: only messages were checked for
        credentials."""
        try:
            yield
        except BucketDamaged as error:
            raise FilesError(f"{self.url}/{error}") from None
        except StoreError as error:
            raise FilesError(error.sentence) from None

    # ----------------------------------------------------------------- bases

    def choose(self, as_of: AsOf | None) -> int:
        """The number of the base to read: the newest, or the newest that is not beyond `as_of`."""
        with self.errors():
            self.reader.format()
            bases = [base.number for base in self.reader.bases()]
            if not bases:
                raise FilesError(f"{self.url}: there is no base yet, so there is nothing to read")
            if as_of is None:
                return bases[-1]
            if as_of.kind == "round":
                at = bisect_right(bases, as_of.value)
            else:
                at = bisect_right(bases, as_of.value, key=lambda number: self.reader.base(number).head.wall_ms)
            if not at:
                oldest = datetime.fromtimestamp(self.reader.base(bases[0]).head.wall_ms / 1000, UTC)
                raise FilesError(
                    f"asOf: the oldest base in {self.url} is for round {bases[0]}, of {oldest:%Y-%m-%dT%H:%M:%S.%fZ}"
                )
            return bases[at - 1]

    def base(self, number: int) -> Base:
        """Read a base."""
        with self.errors():
            return self.reader.base(number)

    # ----------------------------------------------------------------- pins

    def pinned(self, number: int) -> PlannedBase:
        """Pin a base, unless `pinMs` is 0."""
        if not self._pin_ms:
            return PlannedBase(number)
        planned = PlannedBase(number, str(uuid.uuid4()), self._now_ms() + self._pin_ms)
        try:
            self._put_new(planned)
        except StoreError as error:
            hint = ""
            if error.kind is StoreErrorKind.DENIED:
                hint = ". A query needs the right to write below pins/; with pinMs=0 it reads without a pin"
            raise FilesError(f"the pin cannot be written: {error.sentence}{hint}") from None
        return planned

    def renewed(self, planned: PlannedBase) -> PlannedBase:
        """Renew a pin of which less than half of its time is left. If that fails, a warning is logged and the query
        goes on: should the base be removed, the object that is then missing is named."""
        now = self._now_ms()
        if not planned.pin or planned.expires - now > self._pin_ms // 2:
            return planned
        longer = planned._replace(expires=now + self._pin_ms)
        try:
            return self._extended(planned, longer, now)
        except (StoreError, BadObject, ObjectTooLarge) as error:
            log.warning("the pin of %s/%s cannot be renewed: %s", self.url, base_name(planned.number), error)
        return longer

    def _extended(self, planned: PlannedBase, longer: PlannedBase, now: int) -> PlannedBase:
        name = pin_name(planned.pin)
        try:
            found = self._repeated(lambda: self._objects.get(name, MAX_PIN_BYTES))
            expires = decode_pin(found.data).expires
            if expires - now > self._pin_ms // 2:
                return planned._replace(expires=expires)  # another task was faster
            self._repeated(lambda: self._objects.put_if(name, _encoded(longer), found.etag))
        except ObjectMissing:
            log.warning("the pin of %s/%s had ended, and is made again", self.url, base_name(planned.number))
            self._put_new(longer)
        except ObjectChanged:
            pass  # by another task, at the same moment, or by this one, whose first answer was lost
        return longer

    def unpin(self, planned: PlannedBase) -> None:
        """Remove a pin that nobody needs. If that fails, it ends by its time."""
        if planned.pin:
            try:
                self._objects.delete([pin_name(planned.pin)])
            except StoreError as error:
                log.warning("the pin of %s/%s cannot be removed: %s", self.url, base_name(planned.number), error)

    def _put_new(self, planned: PlannedBase) -> None:
        try:
            self._repeated(lambda: self._objects.put_new(pin_name(planned.pin), _encoded(planned)))
        except ObjectExists:
            pass  # nobody else has this uuid: the answer of an earlier attempt was lost, or another task was faster

    def _repeated(self, call: Callable[[], T]) -> T:
        for attempt in range(ATTEMPTS - 1):
            try:
                return call()
            except StoreError as error:
                if not error.is_transient:
                    raise
            self._sleep(FIRST_PAUSE_S * 2**attempt)
        return call()


def opened(url: str, pin_ms: int | None) -> OpenBucket:
    """Open the bucket at a URL with the variables of this process. Nothing is asked of it yet. Raises FilesError."""
    try:
        return OpenBucket(url, open_objects(parse_location(url, os.environ, "path"), TIMEOUT_S), pin_ms)
    except BucketLocationError as error:
        raise FilesError(str(error)) from None
    except StoreError as error:
        raise FilesError(error.sentence) from None


def _encoded(planned: PlannedBase) -> bytes:
    return encode_pin(Pin(base=planned.number, expires=planned.expires))
