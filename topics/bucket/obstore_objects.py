"""`ObstoreObjects`: an `ObjectStore` in S3, GCS or Azure, by the library `obstore`.

The library repeats nothing (`max_retries` is 0): whether a put is repeated is decided in `settled_puts`, which knows
that the answer before may have been lost. Objects are put in one request, never in parts: a put in parts has conditions
that stores honour differently, and leaves parts behind.

S3 and Azure compare ETags. GCS compares generations, so there the generation is the ETag.

The library is imported with this module, and starts threads of its own. So nobody imports this module before a bucket
is used (`open_objects`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, cast

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from topics.bucket.bucket_location import BucketLocation
from topics.bucket.object_store import (
    MAX_PAGE,
    ObjectChanged,
    ObjectData,
    ObjectExists,
    ObjectFacts,
    ObjectMissing,
    ObjectTooLarge,
    StoreError,
    StoreErrorKind,
    check_name,
    check_page,
    check_range,
    is_name,
)
from topics.bucket.obstore_errors import Refusal, meaning

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

T = TypeVar("T")

CONNECT_S: Final = 5.0
"""How long the library waits for a connection (s)."""

WHOLE_S: Final = 600.0
"""How long a whole request may take in the library (s). A call that its caller has given up ends then at the latest."""


class ObstoreObjects:
    """The objects below the prefix of a location. `timeout_s` is how long the library waits for each sign of life of
    the store. Raises StoreError if the variables of the provider do not make sense."""

    def __init__(self, location: BucketLocation, timeout_s: float) -> None:
        self._url = str(location)
        self._before = f"{location.prefix}/" if location.prefix else ""
        self._has_generations = location.scheme == "gs"
        self._deletes_in_bulk = location.scheme == "s3"
        self._store = self._done(lambda: _open(location, timeout_s), "")

    def __repr__(self) -> str:
        return f"<ObstoreObjects {self._url}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store holds credentials, and is not pickled: pickle its location")

    def put_new(self, name: str, data: bytes) -> str:
        return self._put(name, data, "create")

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        version = {"version": etag} if self._has_generations else {"e_tag": etag}
        return self._put(name, data, cast("PutMode", version))

    def get(self, name: str, max_bytes: int) -> ObjectData:
        path = self._path(name)

        def call() -> ObjectData | int:
            result = obstore.get(self._store, path)
            if result.meta["size"] > max_bytes:
                return result.meta["size"]
            return ObjectData(bytes(result.bytes()), self._etag(result.meta))

        got = self._done(call, name)
        if isinstance(got, int):
            raise ObjectTooLarge(name, got, max_bytes)
        return got

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        path = self._path(name)

        def call() -> bytes:
            return bytes(obstore.get_range(self._store, path, start=offset, length=length))

        return self._done(call, name, beyond_end=b"")

    def head(self, name: str) -> ObjectFacts:
        path = self._path(name)
        return self._facts(self._done(lambda: obstore.head(self._store, path), name))

    def delete(self, names: Sequence[str]) -> None:
        paths = [self._path(name) for name in names]
        size = MAX_PAGE if self._deletes_in_bulk else 1
        for at in range(0, len(paths), size):
            some = paths[at : at + size]
            try:
                self._done(lambda some=some: obstore.delete(self._store, some), names[at])  # type: ignore[misc]
            except ObjectMissing:
                continue

    def list(self, prefix: str, after: str = "", limit: int = MAX_PAGE) -> list[ObjectFacts]:
        check_page(prefix, after, limit)
        found = self._done(lambda: self._page(prefix, after, limit), "")
        facts = [self._facts(meta) for meta in found]
        for one, other in pairwise(facts):
            if one.name >= other.name:
                raise StoreError(
                    StoreErrorKind.OTHER, f"the store of {self._url} does not list names in order; it cannot be used"
                )
        return facts

    # -- the library ---------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return self._before + check_name(name)

    def _put(self, name: str, data: bytes, mode: PutMode) -> str:
        path = self._path(name)

        def call() -> str:
            result = obstore.put(self._store, path, data, mode=mode, use_multipart=False)
            return (result["version"] if self._has_generations else result["e_tag"]) or ""

        try:
            return self._done(call, name)
        except ObjectMissing:
            # There is nothing that a put may miss but the bucket, and what it was to replace.
            if mode != "create":
                raise ObjectChanged(name) from None
        raise StoreError(StoreErrorKind.NO_BUCKET, f"there is no bucket for {self._url}: make it, or correct the URL")

    def _page(self, prefix: str, after: str, limit: int) -> Sequence[ObjectMeta]:
        """The library lists whole parts of names; of a part that is given in part it lists from a name on that is not
        greater than the first one that is wanted."""
        directory = prefix[: prefix.rfind("/") + 1]
        start = max(after, _just_before(prefix)) if prefix != directory else after
        found = []
        stream = obstore.list(
            self._store, self._before + directory or None, offset=self._before + start if start else None,
            chunk_size=limit,
        )  # fmt: skip
        for chunk in stream:
            for meta in chunk:
                name = meta["path"][len(self._before) :]
                if name > after and name.startswith(prefix) and is_name(name):
                    found.append(meta)
                    if len(found) == limit:
                        return found
                elif name > prefix and not name.startswith(prefix):
                    return found
        return found

    def _etag(self, meta: ObjectMeta) -> str:
        return (meta["version"] if self._has_generations else meta["e_tag"]) or meta["e_tag"] or ""

    def _facts(self, meta: ObjectMeta) -> ObjectFacts:
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectFacts(meta["path"][len(self._before) :], meta["size"], self._etag(meta), modified_ms)

    def _done(self, call: Callable[[], T], name: str, beyond_end: T | None = None) -> T:
        """Make a call of the library, and return its result, or `beyond_end` for a range beyond the end. Raises the
        errors of `ObjectStore`, with nothing of the library's exceptions in them."""
        try:
            return call()
        except Exception as error:
            what = meaning(error, self._url)
        if isinstance(what, StoreError):
            raise what
        if what is Refusal.EXISTS:
            raise ObjectExists(name)
        if what is Refusal.CHANGED:
            raise ObjectChanged(name)
        if what is Refusal.BEYOND_END and beyond_end is not None:
            return beyond_end
        raise ObjectMissing(name)


def _just_before(prefix: str) -> str:
    """A name that is less than every name that begins with `prefix`, and greater than most that do not and are less."""
    last = chr(ord(prefix[-1]) - 1)
    return f"{prefix[:-1]}{last}zzzz" if last.isalnum() else prefix[: prefix.rfind("/") + 1]


def _open(location: BucketLocation, timeout_s: float) -> S3Store | GCSStore | AzureStore:
    client: ClientConfig = {
        "allow_http": location.allows_http,
        "connect_timeout": timedelta(seconds=min(CONNECT_S, timeout_s)),
        "read_timeout": timedelta(seconds=timeout_s),
        "timeout": timedelta(seconds=max(WHOLE_S, timeout_s)),
    }
    retry: RetryConfig = {"max_retries": 0}
    # The endpoint that was checked is the one that is used. For GCS the library reads none by itself.
    if location.scheme == "gs":
        gcs: GCSConfig = {"base_url": location.endpoint} if location.endpoint else {}
        return GCSStore(location.bucket, config=gcs, client_options=client, retry_config=retry)
    if location.scheme == "az":
        azure: AzureConfig = {"endpoint": location.endpoint} if location.endpoint else {}
        return AzureStore(location.bucket, config=azure, client_options=client, retry_config=retry)
    # Conditions by ETag, whatever AWS_CONDITIONAL_PUT says.
    s3: S3Config = {"conditional_put": "etag"}
    if location.endpoint:
        s3["aws_endpoint_url_s3"] = location.endpoint
    return S3Store(location.bucket, config=s3, client_options=client, retry_config=retry)
