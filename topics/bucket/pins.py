"""Pins: objects that keep a base, and what it needs, from being removed while somebody reads it. Blocking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from uuid import uuid4

from topics.bucket.object_names import pin_name
from topics.bucket.object_store import (
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StoreError,
    StoreErrorKind,
)
from topics.bucket.pin_format import MAX_PIN_BYTES, Pin, encode_pin

PIN_MS: Final = 7 * 86_400_000
"""A pin that is not renewed for so long does not count any more (ms)."""


def renew_pin(objects: ObjectStore, uuid: str, base: int, now_ms: int) -> None:
    """Have a pin of a base that ends `PIN_MS` after `now_ms` (epoch ms). Raises StoreError, ObjectTooLarge."""
    name, data = pin_name(uuid), encode_pin(Pin(base=base, expires=now_ms + PIN_MS))
    try:
        found = objects.get(name, MAX_PIN_BYTES)
        objects.put_if(name, data, found.etag)
    except ObjectMissing:
        try:
            objects.put_new(name, data)
        except ObjectExists:
            pass  # an earlier attempt, whose answer was lost
    except ObjectChanged:
        pass  # the same, or a copy of the directory has just renewed it


@contextmanager
def pinned(objects: ObjectStore, base: int, now_ms: int) -> Iterator[str]:
    """Pin a base. Yields the id of the pin, which is removed after an exception. Raises StoreError; of the kind DENIED
    if objects may be read only."""
    uuid = uuid4().hex
    try:
        renew_pin(objects, uuid, base, now_ms)
    except StoreError as error:
        if error.kind is not StoreErrorKind.DENIED:
            raise
        raise StoreError(
            error.kind,
            f"{error.sentence}. A restore that leaves segments in the bucket puts an object `pins/...` there, so that "
            "they are kept. With --full everything is copied, and nothing is put there",
        ) from error
    try:
        yield uuid
    except BaseException:
        drop_pin(objects, uuid)
        raise


def drop_pin(objects: ObjectStore, uuid: str) -> None:
    """Remove a pin that has kept nothing, or keeps nothing any more. If the store does not do it, the pin ends by
    itself: what was made under it is good all the same."""
    with suppress(StoreError):
        remove_pin(objects, uuid)


def remove_pin(objects: ObjectStore, uuid: str) -> None:
    """Remove a pin, if it exists. Raises StoreError."""
    objects.delete([pin_name(uuid)])
