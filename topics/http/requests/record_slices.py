"""Decoding the records of a large append in slices, between which the loop can do something else.

msgspec decodes a body in one call, which holds the interpreter: 60 MB for 0.2 to 1.5 s. So the text of the `records` is
cut into slices of about `SLICE` bytes, and each is decoded by itself.

Theory of operation. Where a slice may end is guessed: in front of a text that looks like the beginning of another
record. The decoder proves the guess. A parser of JSON reads from left to right, and what it does depends only on what
it has read. So if it accepts `[[SLICE]]` as one list of records, it would have been between two records at the end of
that slice of the body as well. A wrong guess is never accepted, because a string or a bracket would be left open. If no
guess is right, the brackets of the slice are counted.

An error is found by decoding the members in front of the records and the slice up to a `}`, without an end. The parser
would have raised the same error in the body, unless the error is a missing end. Only the index of the record and the
number of the byte have to be counted from the beginning of the body.

If that leads nowhere, because an unknown member looks like the records or there is much in front of them, the outline
of the body says where each record is (`body_outline`), and slices end there.

A single record that is longer than a slice is decoded in one call, and so is everything beside the records. A large
body in which one of these is longer than `Bounds` allows is refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator
from itertools import accumulate, takewhile
from typing import Any, Final, NamedTuple

import msgspec

from topics.errors import ApiError, invalid
from topics.http.requests.body_outline import (
    MOST_ITEMS,
    BodyOutline,
    TooManyItems,
    TooMuchBesideItems,
    outline_in_steps,
)
from topics.http.requests.json_checks import LEVELS

SLICE: Final = 64 << 10
"""Bytes of records that are decoded in one step. It takes at most about 4 ms."""

MOST_BEFORE: Final = 64 << 10
"""Bytes of other members in front of the records. With more, a body is decoded in one step."""

LONGEST: Final = 2 << 20
"""Bytes of a slice that holds a single record longer than `SLICE`."""

STEP: Final = 1 << 20
"""Bytes of a body that are searched in one step, at most about 2 ms."""

MOST_BESIDE: Final = 1 << 20
"""Bytes beside the records of a large body that can always be decoded, in one step of some 20 ms at most."""

Take = Callable[[list[Any], int], list[Any]]

_NAME: Final = b'"records"'

_BLANKS: Final = b" \t\r\n"

_RECORDS: Final = re.compile(rb'"records"[ \t\r\n]{0,1000}:[ \t\r\n]{0,1000}\[')

_RECORD: Final = b'{"data":0},'

_BEFORE_SEAM: Final = 2

_BEHIND_SEAM: Final = 13

_FIRST_KEY: Final = re.compile(rb'[ \t\r\n]{0,1000}(\{[ \t\r\n]{0,1000}"[a-z]{1,16}")')

_AFTER: Final = re.compile(rb"[ \t\r\n]{0,1000}([,\]])")

_MEMBER: Final = re.compile(rb"\][ \t\r\n]*,")

_INDEX: Final = re.compile(r"(?<= - at `\$\.records\[)\d+(?=\][^`]*`\Z)")

_BYTE: Final = re.compile(r"(?<=\(byte )\d+(?=\)\Z)")

_values: Final = msgspec.json.Decoder(list[list[msgspec.Raw]])


class Bounds(NamedTuple):
    """The bounds of a large append."""

    beside: int
    """Bytes beside its records."""
    record: int
    """Bytes of the text of a record."""
    max_record: int
    """`TOPICS_MAX_RECORD_BYTES`, for the message."""
    max_records: int
    """`TOPICS_MAX_BATCH_RECORDS`."""


class _RecordPlaces(msgspec.Struct):
    records: list[msgspec.Raw]


_places: Final = msgspec.json.Decoder(_RecordPlaces)


class RecordSlices:
    """The records of one append, of which slices are decoded one after the other.

    `before(count)` is called before a decoder is, with how many records the slices in front of it have.
    """

    def __init__(self, raw: bytes, before: Callable[[int], None], bounds: Bounds) -> None:
        self._raw = raw
        self._before = before
        self._bounds = bounds
        self._is_outlined = False
        found = _RECORDS.search(raw, 0, MOST_BEFORE)
        self._head = raw[: found.end()] if found is not None else b""
        self._ends: dict[int, int] = {}
        """The ends of slices that are known to be right, by their beginnings."""
        self._seam = b""
        """The text around the end of the last slice for which brackets had to be counted: others may look like it."""
        self._tail = len(raw)
        """Where the text behind the records begins, if all slices have been decoded."""

    def decode(
        self,
        body: msgspec.json.Decoder[Any],
        slices: msgspec.json.Decoder[list[list[Any]]],
        take: Take,
    ) -> Generator[None, None, Any]:
        """Return what `body` would decode, or raise what it would raise. `slices` decodes lists of lists of its
        records. `take` gets the records of each slice and the index of the first, and returns the values that are kept
        of them. If it gets an index for the second time, the records that it got from there on do not count. Yields
        after each step."""
        if not self._is_head(body):
            yield from self._outline()
        if self._is_head(body):
            try:
                return (yield from self._in_slices(body, slices, take))
            except _NoSliceError:
                pass
            if not self._is_outlined:
                yield from self._outline()
            try:
                return (yield from self._in_slices(body, slices, take))
            except _NoSliceError as no_slice:
                start, count = no_slice.args
                # What follows is tried alone, because that is mostly where a mistake is.
                with contextlib.suppress(msgspec.ValidationError):  # which may be about a member behind the records
                    self._exactly(body, start, len(self._raw), count)
                yield
        self._before(0)
        request = body.decode(self._raw)
        request.records = take(request.records, 0)
        return request

    def _in_slices(
        self,
        body: msgspec.json.Decoder[Any],
        slices: msgspec.json.Decoder[list[list[Any]]],
        take: Take,
    ) -> Generator[None, None, Any]:
        """Like `decode`. Raises `_NoSliceError` if no slice begins where one should."""
        kept: list[Any] = []
        count, start = 0, len(self._head)
        while True:
            found = None
            for end in self._guesses(start):
                found = self._slice(body, slices, start, end, count)
                yield
                if found is not None:
                    break
            after = None if found is None else _AFTER.match(self._raw, self._ends[start])
            if not found or after is None:
                raise _NoSliceError(start, count)
            kept += take(found, count)
            count += len(found)
            if after[1] == b"]":
                break
            start = after.end()
        self._tail = after.end() - 1
        if len(self._raw) - self._tail > self._bounds.beside:
            raise _too_much_beside(self._bounds)
        request = self._exactly(body, self._tail, len(self._raw), 0)
        if self._names_records_again(body):
            request.records = take(request.records, 0)
        else:
            request.records = kept
        return request

    def _outline(self) -> Generator[None, None, None]:
        """Find out where the records are, however the body looks. Raises 400 if it cannot be decoded in steps."""
        if self._is_outlined:
            return
        self._is_outlined = True
        raw, most = self._raw, self._bounds.beside
        outline = yield from outline_of_append(raw, self._bounds)
        yield
        try:
            places = (yield from outline.decode(_places)).records
        except ApiError:
            if len(raw) > most:
                raise
            return  # decoding the body says what is wrong
        items = list(takewhile(lambda item: item is not None, map(outline.item_of, places)))
        records = [outline.items[item] for item in items if item is not None]
        if len(raw) - sum(end - start for start, end in records) > most:
            raise _too_much_beside(self._bounds)
        for i, (start, end) in enumerate(records):
            if end - start > self._bounds.record:
                raise record_too_large(i, end - start, self._bounds.max_record)
        if records:
            self._head, self._ends = raw[: records[0][0]], _slices_of(raw, records)

    def without_records(self) -> bytes:
        """The body that was decoded, without its records if they were decoded in slices."""
        return self._head + self._raw[self._tail :] if self._tail < len(self._raw) else self._raw

    def _is_head(self, body: msgspec.json.Decoder[Any]) -> bool:
        """Return True if the text in front of the first record is what it looks like, and `body` accepts it."""
        if not self._head:
            return False
        try:
            self._before(0)
            body.decode(self._head + b"]}")
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _guesses(self, start: int) -> Iterator[int]:
        """Where the slice that begins at `start` may end, behind a `}`; the likeliest first."""
        known = self._ends.get(start)
        if known is not None:
            yield known
            return
        raw, limit = self._raw, start + SLICE
        if limit >= len(raw):
            yield self._end_before(raw.rfind(b"]", start), start, b"")
        if self._seam:
            yield raw.rfind(self._seam, start, limit) + _BEFORE_SEAM
        key = _FIRST_KEY.match(raw, start)
        if key is not None:
            at = raw.rfind(key[1], key.end(), limit)
            if at < 0:
                at = raw.find(key[1], max(key.end(), limit - len(key[1])), start + LONGEST)
            yield self._end_before(at, start, b",")
        if limit < len(raw) <= start + LONGEST:
            yield self._end_before(raw.rfind(b"]", start), start, b"")
        yield raw.rfind(b"},", start, limit) + 1
        end = start + _end_of_records(raw[start:limit])
        self._seam = raw[end - _BEFORE_SEAM : end + _BEHIND_SEAM]
        yield end

    def _end_before(self, at: int, start: int, between: bytes) -> int:
        """Where the record in front of `at` ends if `between` and blanks separate them, else 0."""
        if at < 0:
            return 0
        window = max(start, at - 1000)
        text = self._raw[window:at].rstrip(_BLANKS)
        if not text.endswith(between):
            return 0
        return window + len(text[: len(text) - len(between)].rstrip(_BLANKS))

    def _slice(
        self,
        body: msgspec.json.Decoder[Any],
        slices: msgspec.json.Decoder[list[list[Any]]],
        start: int,
        end: int,
        count: int,
    ) -> list[Any] | None:
        """The records from `start` to `end`; None if that is no slice. Raises what `body` raises if they are wrong."""
        if end <= start or self._raw[end - 1 : end] != b"}":
            return None
        try:
            self._before(count)
            lists = slices.decode(b"[[%b]]" % self._raw[start:end])
            if len(lists) == 1:
                self._ends[start] = end
                return lists[0]
        except Exception:  # of the decoder, or of what counts its records: it is raised again below, if it is right
            pass
        try:
            self._exactly(body, start, end, count)
        except msgspec.ValidationError:
            if not _leaves_the_records(self._raw[start:end]):
                raise
        except msgspec.DecodeError as error:
            if "truncated" not in str(error):
                raise
        return None

    def _exactly(self, body: msgspec.json.Decoder[Any], start: int, end: int, count: int) -> Any:
        """Decode the head and what is between `start` and `end`, in front of which are `count` records. Raises what
        `body` raises for the whole body."""
        in_front = _RECORD if count else b""  # because a comma is in front of `start`
        count = max(0, count - 1)
        before = start - len(self._head) - len(in_front)
        self._before(count)
        try:
            return body.decode(b"%b%b%b" % (self._head, in_front, self._raw[start:end]))
        except msgspec.ValidationError as error:
            what = _INDEX.sub(lambda found: str(int(found[0]) + count), str(error))
            raise msgspec.ValidationError(what) from None
        except msgspec.DecodeError as error:
            raise msgspec.DecodeError(_BYTE.sub(lambda found: str(int(found[0]) + before), str(error))) from None

    def _names_records_again(self, body: msgspec.json.Decoder[Any]) -> bool:
        """Return True if the text behind the records has the key `records` once more, so that it replaces them. The
        text is valid."""
        raw, tail = self._raw, self._tail
        if raw.find(_NAME, tail) < 0 and raw.find(b"\\", tail) < 0:
            return False
        member = _MEMBER.match(raw, tail)
        if member is None:
            return False
        try:
            self._before(0)
            body.decode(b"{" + raw[member.end() :])
        except msgspec.ValidationError:  # `records` is missing
            return False
        return True


class _NoSliceError(Exception):
    """No slice begins at a place, in front of which are so many records."""


def outline_of_append(raw: bytes, bounds: Bounds) -> Generator[None, None, BodyOutline]:
    """Return the outline of an append, whose items are its records. Yields after each step. Raises 400 if it has far
    too many of them, or too much beside them."""
    try:
        return (yield from outline_in_steps(raw, max(MOST_ITEMS, 2 * bounds.max_records), bounds.beside))
    except TooManyItems:
        raise too_many_records("far too many", bounds.max_records) from None
    except TooMuchBesideItems:
        raise _too_much_beside(bounds) from None


def _too_much_beside(bounds: Bounds) -> ApiError:
    return invalid("body", f"has more than {bounds.beside} bytes beside its records", max=bounds.beside)


def too_many_records(what: str, maximum: int, **detail: int) -> ApiError:
    """400 for an append of more records than are allowed."""
    return ApiError(
        "batch_too_large",
        f"records: {what}, at most {maximum} are allowed in one append",
        detail={"field": "records", **detail, "max": maximum},
    )


def record_too_large(i: int, size: int, maximum: int) -> ApiError:
    """400 for a record of more bytes than are allowed."""
    return ApiError(
        "record_too_large",
        f"records[{i}]: data and meta are {size} bytes, at most {maximum} are allowed",
        detail={"field": f"records[{i}]", "size": size, "max": maximum},
    )


def _slices_of(raw: bytes, records: list[tuple[int, int]]) -> dict[int, int]:
    """The ends of slices, by their beginnings, as far as the records follow each other."""
    ends: dict[int, int] = {}
    begin, before = records[0][0], records[0][1]
    for _, end in records[1:]:
        if end - begin > SLICE:
            ends[begin] = before
            after = _AFTER.match(raw, before)
            if after is None or after[1] != b",":
                return ends
            begin = after.end()
        before = end
    ends[begin] = before
    return ends


def _leaves_the_records(text: bytes) -> bool:
    """Return True if the array of the records ends in `text`, and another member follows. `text` begins in front of a
    record."""
    try:
        _values.decode(b"[[" + text)
    except msgspec.ValidationError:  # behind the first list is the key of the member
        return True
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _end_of_records(text: bytes) -> int:
    """Where the last complete value of an array ends; `text` begins in front of a value. 0 if there is none."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    if b'"' in text:
        parts = text.split(b'"')
        parts[1::2] = [bytes(len(part)) for part in parts[1::2]]
        text = b" ".join(parts)
    levels = list(accumulate(memoryview(text.translate(LEVELS)).cast("b")))
    if -1 in levels:
        return text.rfind(b"}", 0, levels.index(-1)) + 1
    if 0 not in levels:
        return 0
    last = len(levels) - levels[::-1].index(0)
    return text.rfind(b"}", 0, last) + 1


def count_in_steps(raw: bytes, text: bytes, most: int) -> Generator[None, None, bool]:
    """Return True if a single byte is in `raw` more than `most` times. Yields after each step."""
    count = 0
    for start in range(0, len(raw), STEP):
        count += raw.count(text, start, start + STEP)
        if count > most:
            return True
        yield
    return False


def find_in_steps(raw: bytes, text: bytes) -> Generator[None, None, bool]:
    """Return True if a text is in `raw`. Yields after each step."""
    for start in range(0, len(raw), STEP):
        if raw.find(text, start, start + STEP + len(text) - 1) >= 0:
            return True
        yield
    return False
