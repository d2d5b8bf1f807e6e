"""What is in a bucket, for people: `topics bucket status` and `topics bucket ls`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import nlargest
from typing import Final, NamedTuple, TypeVar

import msgspec

from topics.bucket.object_names import BASES, OWNER, PACKS, PINS, ROUNDS, SEGMENTS, STANDBYS
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader, NumberedObject
from topics.bucket.ownership.owner_format import Owner

T = TypeVar("T")

KINDS: Final = (ROUNDS, BASES, PACKS, SEGMENTS, PINS, STANDBYS)


class KindFigures(msgspec.Struct):
    """The objects of one kind."""

    kind: str
    objects: int
    bytes: int


class PinFigures(msgspec.Struct):
    """A reader that needs a base."""

    name: str
    base: int
    expires_ms: int


class SeenStandby(msgspec.Struct):
    """A standby, by what it has told of itself (`topics.bucket.standby.announcement`)."""

    dir: str
    node: str
    url: str
    state: str
    epoch: int
    round: int
    rounds_behind: int
    """Rounds between the one that it has applied and the last one that is there now."""
    lag_ms: int
    """How old what it shows was when it told that."""
    told_ago_ms: int
    """How much newer the newest of `owner` and all standbys is, by the clock of the store."""


class BucketStatus(msgspec.Struct):
    """What a bucket is at the moment. Times are those of cuts (epoch ms)."""

    id: str
    owner: Owner | None
    last_round: int | None
    last_round_ms: int | None
    newest_base: int | None
    newest_base_ms: int | None
    rounds_since_base: int | None
    """What a restore of the newest state reads besides the base. None without a base or rounds."""
    base_lag_ms: int | None
    """From the newest base to the last round."""
    pins: list[PinFigures]
    kinds: list[KindFigures]
    standbys: list[SeenStandby] = []
    problems: list[str] = []
    """What could not be read, because an object is missing or damaged. The rest is as of the others."""


class ListedObject(msgspec.Struct):
    """A round or a base in a listing."""

    kind: str
    number: int
    wall_ms: int
    bytes: int
    about: str


class _Newest(NamedTuple):
    bases: list[NumberedObject]
    rounds: list[NumberedObject]


def status_of(reader: BucketReader) -> BucketStatus:
    """Return what a bucket is, as far as it can be read. Lists all of it. Raises BucketDamaged if FORMAT cannot be
    read, StoreError."""
    form, problems = reader.format(), list[str]()

    def known(call: Callable[[], T]) -> T | None:
        try:
            return call()
        except BucketDamaged as error:
            problems.append(str(error))
            return None

    owner = known(reader.owner)
    kinds = []
    for prefix in KINDS:
        figures = KindFigures(prefix.rstrip("/"), 0, 0)
        for facts in reader.listed(prefix):
            figures.objects += 1
            figures.bytes += facts.size
        kinds.append(figures)
    newest = _newest(reader, 1)
    round_ = newest.rounds[0].number if newest.rounds else None
    base = newest.bases[0].number if newest.bases else None
    head = known(partial(reader.round_head, round_)) if round_ is not None else None
    read_base = known(partial(reader.base, base)) if base is not None else None
    round_ms = head.wall_ms if head is not None else None
    base_ms = read_base.head.wall_ms if read_base is not None else None
    return BucketStatus(
        id=form.id,
        owner=owner,
        last_round=round_,
        last_round_ms=round_ms,
        newest_base=base,
        newest_base_ms=base_ms,
        rounds_since_base=max(round_ - base, 0) if round_ is not None and base is not None else None,
        base_lag_ms=max(round_ms - base_ms, 0) if round_ms is not None and base_ms is not None else None,
        pins=[PinFigures(name, pin.base, pin.expires) for name, pin in known(reader.pins) or ()],
        kinds=kinds,
        standbys=known(partial(_standbys, reader, owner, round_ or 0)) or [],
        problems=problems,
    )


def _standbys(reader: BucketReader, owner: Owner | None, last_round: int) -> list[SeenStandby]:
    """Return the standbys, without the one that owns the bucket now, by their directories."""
    told = reader.standbys()
    if not told:
        return []
    newest_ms = max(one.modified_ms for one in told)
    if owner is not None:
        newest_ms = max(newest_ms, reader.head(OWNER).modified_ms)
    return [
        SeenStandby(
            dir=one.dir,
            node=one.told.node,
            url=one.told.url,
            state=one.told.state,
            epoch=one.told.epoch,
            round=one.told.round,
            rounds_behind=max(last_round - one.told.round, 0),
            lag_ms=one.told.lag_ms,
            told_ago_ms=newest_ms - one.modified_ms,
        )
        for one in told
        if owner is None or one.dir != owner.dir
    ]


def listing_of(reader: BucketReader, limit: int) -> list[ListedObject]:
    """Return the newest bases and rounds, `limit` together, newest first; a base comes before the round that it is for.
    Raises BucketDamaged, StoreError."""
    reader.format()
    newest = _newest(reader, limit)
    found = [(one.number, 1, one) for one in newest.bases] + [(one.number, 0, one) for one in newest.rounds]
    listed = []
    for number, is_base, one in nlargest(limit, found, key=lambda item: item[:2]):
        if is_base:
            base = reader.base(number)
            about = f"from round {base.head.first_round} on, {base.body.records:,} records"
            listed.append(ListedObject("base", number, base.head.wall_ms, one.facts.size, about))
            continue
        head = reader.round_head(number)
        about = f"epoch {head.epoch}, {head.body_bytes:,} bytes of the log"
        about += ", begins a history" if head.begins_history else ""
        about += "" if head.ends_cut else ", its cut goes on"
        listed.append(ListedObject("round", number, head.wall_ms, one.facts.size, about))
    return listed


def _newest(reader: BucketReader, limit: int) -> _Newest:
    """Return the newest bases and rounds, newest first."""
    bases = reader.bases()
    rounds = nlargest(limit, reader.rounds(), key=lambda one: one.number)
    return _Newest(bases[-limit:][::-1], rounds)
