"""Reading a bucket: its `FORMAT`, its owner, rounds, bases, and blobs out of packs (`docs/design/bucket.md`). Nothing
is written.

Every object is checked as it is read, and an error names the object that is missing or wrong. The bytes are taken as
those of an adversary: a name is made from numbers that were checked, and nothing is read or inflated beyond a bound.

Methods block. They may be called from several threads at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import cbor2
import msgspec

from topics.bucket.base_format import (
    MAX_BASE_BYTES,
    PAGE_TOPICS,
    Base,
    BlobRef,
    TopicEntry,
    check_ref,
    decode_base,
    decode_page,
    open_blob,
)
from topics.bucket.container import MAGIC_BYTES, MAX_HEADER_BYTES, BadObject
from topics.bucket.object_names import (
    BASES,
    FORMAT,
    OWNER,
    PINS,
    ROUNDS,
    STANDBYS,
    base_name,
    number_of,
    pack_name,
    round_name,
)
from topics.bucket.object_store import (
    MAX_PAGE,
    ObjectFacts,
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
    StoreError,
)
from topics.bucket.ownership.owner_format import MAX_OWNER_BYTES, BucketFormat, Owner, decode_format, decode_owner
from topics.bucket.pin_format import MAX_PIN_BYTES, Pin, decode_pin
from topics.bucket.round_format import MAGIC, MAX_OBJECT_BYTES, Round, RoundHead, decode_round
from topics.bucket.standby.announcement import MAX_ANNOUNCEMENT_BYTES, Announcement, decode_announcement

T = TypeVar("T")

ATTEMPTS: Final = 6
"""How often a read is made if the store says that it cannot answer now."""

FIRST_PAUSE_S: Final = 0.5
"""The pause after the first attempt (s). Each further one is twice as long."""

READ_BYTES: Final = 16 << 20
"""Blobs that lie side by side are read in one call of at most so many bytes, unless one of them is larger."""

READ_GAP: Final = 64 << 10
"""Bytes between two blobs that are read along with them, because another call costs more."""

PEEK_BYTES: Final = 16 << 10
"""How much of a round is read first when only its header is wanted."""

WINDOW_ROUNDS: Final = 16
"""How many rounds are looked at for a reading of the clock of windows: those that begin an epoch may have none."""

_MOST_IDS: Final = 1 << 64


NO_FORMAT: Final = "it is missing: no daemon has archived to this URL. Is its prefix the one of TOPICS_BUCKET?"


class BucketDamaged(Exception):
    """An object is missing, or not what it should be. The message names it."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


class NumberedObject(NamedTuple):
    """A round or a base in a listing."""

    number: int
    facts: ObjectFacts


class ToldStandby(NamedTuple):
    """What the standby of a directory has told of itself, and when by the store's clock."""

    dir: str
    modified_ms: int
    told: Announcement


class BucketReader:
    """Reads the bucket behind an `ObjectStore`. Methods raise BucketDamaged, and StoreError if the store does not
    answer, or refuses."""

    def __init__(self, objects: ObjectStore, sleep: Callable[[float], None] = time.sleep) -> None:
        self._objects = objects
        self._sleep = sleep
        self._id: str | None = None

    @property
    def bucket_id(self) -> str:
        """The id of the bucket."""
        return self._id if self._id is not None else self.format().id

    # -- what there is -------------------------------------------------------------------------------------------------

    def format(self) -> BucketFormat:
        """Return `FORMAT`."""
        form = self._decoded(FORMAT, MAX_OWNER_BYTES, decode_format)
        self._id = form.id
        return form

    def owner(self) -> Owner | None:
        """Return `owner`; None if nobody has written to the prefix yet."""
        try:
            data = self._call(partial(self._objects.get, OWNER, MAX_OWNER_BYTES)).data
        except ObjectMissing:
            return None
        except ObjectTooLarge:
            raise BucketDamaged(OWNER, f"it has more than the {MAX_OWNER_BYTES} bytes that it can have") from None
        return _checked(OWNER, decode_owner, data)

    def listed(self, prefix: str, after: str = "") -> Iterator[ObjectFacts]:
        """Yield the objects below a prefix, in the order of their names."""
        while True:
            page = self._call(partial(self._objects.list, prefix, after, MAX_PAGE))
            yield from page
            if len(page) < MAX_PAGE:
                return
            after = page[-1].name

    def bases(self) -> list[NumberedObject]:
        """Return the bases, ascending."""
        return list(self._numbered(BASES, ""))

    def pins(self) -> list[tuple[str, Pin]]:
        """Return the pins by name, without those that are removed meanwhile."""
        found = []
        for facts in self.listed(PINS):
            try:
                data = self._call(partial(self._objects.get, facts.name, MAX_PIN_BYTES)).data
            except ObjectMissing:
                continue
            except ObjectTooLarge:
                raise BucketDamaged(
                    facts.name, f"it has more than the {MAX_PIN_BYTES} bytes that it can have"
                ) from None
            found.append((facts.name, _checked(facts.name, decode_pin, data)))
        return found

    def standbys(self) -> list[ToldStandby]:
        """Return what standbys tell of themselves, by directory, without what is malformed."""
        found = []
        for facts in self.listed(STANDBYS):
            with suppress(ObjectMissing, BadObject, ObjectTooLarge):
                blob = self._call(partial(self._objects.get, facts.name, MAX_ANNOUNCEMENT_BYTES)).data
                directory = facts.name.removeprefix(STANDBYS)
                found.append(ToldStandby(directory, facts.modified_ms, decode_announcement(blob)))
        return found

    def rounds(self, first: int = 0) -> Iterator[NumberedObject]:
        """Yield the rounds from number `first` on, ascending."""
        return self._numbered(ROUNDS, round_name(first - 1) if first > 0 else "")

    def _numbered(self, prefix: str, after: str) -> Iterator[NumberedObject]:
        for facts in self.listed(prefix, after):
            number = number_of(facts.name)
            if number is not None:
                yield NumberedObject(number, facts)

    # -- rounds and bases ----------------------------------------------------------------------------------------------

    def round(self, number: int) -> Round:
        """Return a round."""
        name = round_name(number)
        found: Round = self._decoded(name, MAX_OBJECT_BYTES, decode_round)
        self._check_head(name, number, found.head.number, found.head.bucket)
        return found

    def round_head(self, number: int) -> RoundHead:
        """Return the header of a round. It is not verified: a caller that relies on it must read the round."""
        name = round_name(number)
        data = self.range(name, 0, PEEK_BYTES)
        end = MAGIC_BYTES + 4 + int.from_bytes(data[MAGIC_BYTES : MAGIC_BYTES + 4], "little")
        if data[:MAGIC_BYTES] != MAGIC or end > MAX_HEADER_BYTES:
            raise BucketDamaged(name, "it does not begin as a round")
        if end > len(data):
            data = self.range(name, 0, end)
        try:
            head = msgspec.convert(cbor2.loads(data[MAGIC_BYTES + 4 : end]), RoundHead)
        except Exception as error:  # malformed CBOR may raise anything
            raise BucketDamaged(name, f"its header does not decode: {error}") from error
        self._check_head(name, number, head.number, head.bucket)
        return head

    def window_ms(self, number: int) -> int:
        """Return what the owner's clock of windows read at a round, or at one of the few before it; 0 if that is not
        known."""
        for one in range(number, max(number - WINDOW_ROUNDS, 0), -1):
            with suppress(BucketDamaged):
                if found := self.round_head(one).window_ms:
                    return found
        return 0

    def chain(self, first: int, last: int, rounds: Iterable[Round] | None = None) -> Iterator[Round]:
        """Yield the rounds `first` to `last` (inclusive), each of which has the hash of the one before it. `rounds` are
        these rounds, if they are read by somebody else."""
        before: Round | None = None
        for found in rounds if rounds is not None else map(self.round, range(first, last + 1)):
            if before is not None:
                check_follows(before, found)
            yield found
            before = found

    def base(self, number: int) -> Base:
        """Return a base."""
        name = base_name(number)
        found: Base = self._decoded(name, MAX_BASE_BYTES, decode_base)
        self._check_head(name, number, found.head.number, found.head.bucket)
        if found.head.first_round < 0:
            raise BucketDamaged(name, "its first round is negative")
        return found

    def page(self, base: int, page: int, ref: BlobRef) -> list[TopicEntry]:
        """Return the topics of a page that a base names."""
        for _, content in self.blobs([ref], base_name(base)):
            topics = _checked(pack_name(ref.pack_name), decode_page, content)
        ids = [topic.id for topic in topics]
        if any(not 0 < topic_id < _MOST_IDS or topic_id // PAGE_TOPICS != page for topic_id in ids) or ids != sorted(
            set(ids)
        ):
            raise BucketDamaged(base_name(base), f"its page {page} has topics that do not belong there")
        return topics

    # -- blobs and files -----------------------------------------------------------------------------------------------

    def blobs(self, refs: Iterable[BlobRef], where: str) -> Iterator[tuple[BlobRef, bytes]]:
        """Yield some blobs with their content, each once, in the order of their places. `where` is the object that
        names them."""
        for group in _groups(sorted(set(refs)), where):
            name = pack_name(group[0].pack_name)
            start = group[0].offset
            stored = self.range(name, start, group[-1].offset + group[-1].length - start)
            for ref in group:
                at = ref.offset - start
                yield ref, _checked(name, partial(open_blob, ref), stored[at : at + ref.length])

    def range(self, name: str, offset: int, length: int) -> bytes:
        """Return bytes of an object; fewer where it ends."""
        try:
            return self._call(partial(self._objects.get_range, name, offset, length))
        except ObjectMissing:
            raise BucketDamaged(name, "it is missing") from None

    def head(self, name: str) -> ObjectFacts:
        """Return what the store says of an object."""
        try:
            return self._call(partial(self._objects.head, name))
        except ObjectMissing:
            raise BucketDamaged(name, "it is missing") from None

    def whole(self, name: str, max_bytes: int) -> bytes:
        """Return the bytes of an object."""
        try:
            return self._call(partial(self._objects.get, name, max_bytes)).data
        except ObjectMissing:
            raise BucketDamaged(name, NO_FORMAT if name == FORMAT else "it is missing") from None
        except ObjectTooLarge:
            raise BucketDamaged(name, f"it has more than the {max_bytes} bytes that it can have") from None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _decoded(self, name: str, max_bytes: int, decode: Callable[[bytes], T]) -> T:
        return _checked(name, decode, self.whole(name, max_bytes))

    def _check_head(self, name: str, number: int, found: int, bucket: str) -> None:
        if self._id is None:
            self.format()
        if bucket != self._id:
            raise BucketDamaged(name, f"it belongs to the bucket {bucket}, and FORMAT says {self._id}")
        if found != number:
            raise BucketDamaged(name, f"it says that its number is {found}")

    def _call(self, call: Callable[[], T]) -> T:
        """Make a call, and make it again while the store cannot answer."""
        for attempt in range(ATTEMPTS - 1):
            try:
                return call()
            except StoreError as error:
                if not error.is_transient:
                    raise
            self._sleep(FIRST_PAUSE_S * 2**attempt)
        return call()


def _checked(name: str, decode: Callable[[Any], T], data: bytes) -> T:
    """Return what the bytes of an object mean. Raises BucketDamaged."""
    try:
        return decode(data)
    except BadObject as error:
        raise BucketDamaged(name, str(error)) from error


def check_follows(before: Round, found: Round) -> None:
    """Check that a round is the one after `before`. Raises BucketDamaged."""
    name = round_name(found.head.number)
    if found.head.previous != before.hash:
        raise BucketDamaged(name, f"it does not follow {round_name(before.head.number)}: the hash in it is another one")
    if found.head.wall_ms < before.head.wall_ms or found.head.epoch < before.head.epoch:
        raise BucketDamaged(name, f"its time or its epoch is less than that of {round_name(before.head.number)}")


def check_blob(ref: BlobRef, where: str) -> None:
    """Raises BucketDamaged, for the object `where` that names a blob, if there can be no such blob."""
    try:
        check_ref(ref)
    except BadObject as error:
        raise BucketDamaged(where, str(error)) from error


def _groups(refs: Sequence[BlobRef], where: str) -> Iterator[list[BlobRef]]:
    """Yield the blobs that are read in one call. `refs` are in the order of their places."""
    group: list[BlobRef] = []
    for ref in refs:
        check_blob(ref, where)
        if group and (
            ref[:2] != group[0][:2]
            or ref.offset - (group[-1].offset + group[-1].length) > READ_GAP
            or ref.offset + ref.length - group[0].offset > READ_BYTES
        ):
            yield group
            group = []
        group.append(ref)
    if group:
        yield group
