"""`ObjectStore`: what the daemon needs of an object storage, as a protocol that tests and the simulation replace.

All methods block, for as long as the store likes, and are called in worker threads (`bounded_objects` gives them an
end). They may be called from several threads at once. A method that raises `StoreError` has not told whether it had an
effect: a put whose answer was lost may have been carried out, and may yet be (`settled_puts` decides).

Stores are strongly consistent: a get, a head or a list that begins after a put has returned sees that put.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

MAX_NAME: Final = 512
"""Characters of a name. With the prefix it stays below the 1,024 bytes that S3 and GCS allow."""

MAX_PAGE: Final = 1000
"""Objects in one page of a listing, as in S3."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*(/[A-Za-z0-9_][A-Za-z0-9_.=+-]*)*")
"""ASCII, and no part begins with a dot: such names are free for files that are not objects (`file_objects`)."""

_BEGINNING: Final = re.compile(r"([A-Za-z0-9_.=+-]+/)*[A-Za-z0-9_.=+-]*")


class ObjectData(NamedTuple):
    """A whole object. `etag` is for `put_if`."""

    data: bytes
    etag: str


class ObjectFacts(NamedTuple):
    """What a store says of an object. `modified_ms` is by the store's clock (epoch ms): compare it only with the time
    of another object of the same store. `etag` is for `put_if` if it comes from `head`; listings may have another."""

    name: str
    size: int
    etag: str
    modified_ms: int


class ObjectStore(Protocol):
    """The objects below one prefix of a bucket. Names are relative to it and are of the form that `check_name` checks.

    Besides the errors that are named below, each method raises `StoreError`.
    """

    def put_new(self, name: str, data: bytes) -> str:
        """Make an object, whole or not at all, and return its ETag. Raises ObjectExists if there is one already."""
        ...

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        """Replace an object, whole or not at all, and return its new ETag. Raises ObjectChanged if its ETag is not
        `etag`, or if there is no such object."""
        ...

    def get(self, name: str, max_bytes: int) -> ObjectData:
        """Read an object. Raises ObjectMissing, and ObjectTooLarge if it has more than `max_bytes`, which are then not
        read."""
        ...

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset` on; fewer where the object ends. Raises ObjectMissing."""
        ...

    def head(self, name: str) -> ObjectFacts:
        """What there is to say of an object. Raises ObjectMissing; also if there is no bucket, where the store does not
        say which of the two is missing."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Those that do not exist are no error. After an error any of them may be deleted."""
        ...

    def list(self, prefix: str, after: str = "", limit: int = MAX_PAGE) -> list[ObjectFacts]:
        """At most `limit` (1 to `MAX_PAGE`) objects whose name begins with `prefix` and is greater than `after`, in
        ascending order of the name. What has a name that no object can have is left out. If there are fewer than
        `limit`, the listing is at its end."""
        ...


class StoreErrorKind(Enum):
    """Why a store did not do what it was asked to, as far as that can be told."""

    DENIED = "denied"
    """The credentials are missing, not valid, or do not permit this."""
    NO_BUCKET = "no_bucket"
    THROTTLED = "throttled"
    FULL = "full"
    TIMEOUT = "timeout"
    """No answer within the deadline. The call may still have an effect later."""
    UNAVAILABLE = "unavailable"
    """No connection, or an answer that says that the store fails (5xx)."""
    BUSY = "busy"
    """Not asked: as many calls as there may be have not returned."""
    CONFLICT = "conflict"
    """Two changes of one object met (409); neither need have had an effect."""
    OTHER = "other"


_TRANSIENT: Final = frozenset(
    {
        StoreErrorKind.THROTTLED,
        StoreErrorKind.TIMEOUT,
        StoreErrorKind.UNAVAILABLE,
        StoreErrorKind.BUSY,
        StoreErrorKind.CONFLICT,
    }
)


class StoreError(Exception):
    """The store has not done it, or has not told. `sentence` is for an operator: it says what is wrong and what to do,
    and contains no credential."""

    def __init__(self, kind: StoreErrorKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence

    @property
    def is_transient(self) -> bool:
        """Return True if this passes without anybody doing something."""
        return self.kind in _TRANSIENT


class ObjectExists(Exception):
    """There is an object of this name already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the object {name} exists already")
        self.name = name


class ObjectChanged(Exception):
    """The object has another ETag, or does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the object {name} is not the one that was to be replaced")
        self.name = name


class ObjectMissing(Exception):
    """There is no such object."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no object {name}")
        self.name = name


class ObjectTooLarge(ValueError):
    """An object has more bytes than its reader expects: it is not what its name says."""

    def __init__(self, name: str, size: int, max_bytes: int) -> None:
        super().__init__(f"the object {name} has {size} bytes; at most {max_bytes} were expected")
        self.name = name


def check_name(name: str) -> str:
    """Return the name of an object. Raises ValueError unless it is ASCII letters, digits and `_.=+-` in parts that are
    separated by `/`, of which none is empty or begins with one of `.=+-`."""
    if not is_name(name):
        raise ValueError(f"{name!r} is no name of an object")
    return name


def is_name(name: str) -> bool:
    """Return True if an object can have this name. Others that a store has are somebody else's, and are not listed."""
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def check_page(prefix: str, after: str, limit: int) -> None:
    """Raises ValueError unless these are arguments of `ObjectStore.list`."""
    for text in (prefix, after):
        if len(text) > MAX_NAME or _BEGINNING.fullmatch(text) is None:
            raise ValueError(f"{text!r} is no beginning of a name of an object")
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit: {limit} is not 1 to {MAX_PAGE}")


def check_range(offset: int, length: int) -> None:
    """Raises ValueError unless these are arguments of `ObjectStore.get_range`."""
    if offset < 0 or length < 1:
        raise ValueError(f"{length} bytes from {offset} on are no range")
