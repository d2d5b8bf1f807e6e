"""Raw bytes as the data of a record (`docs/spec/consumers.md` section 7, `docs/design/raw_bytes.md`).

Data is JSON. Raw bytes are one JSON object, written in exactly one way:

    {"$bytes":"BASE64","$content_type":"TYPE"}

BASE64 has the alphabet of RFC 4648 section 4, with padding, and no bits that mean nothing. TYPE is what `normal_type`
returns. Any other JSON is JSON, also if it differs by a blank. So the bytes and the type determine the data, and the
data determines them.

Pure: no event loop, no I/O. Functions that take long for large values have a version that yields between steps.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Generator
from typing import Final

RAW_TYPES: Final = (
    "application/octet-stream",
    "application/cbor",
    "application/protobuf",
    "image/*",
    "audio/*",
    "video/*",
)
"""The types of raw bytes, as media ranges."""

MAX_TYPE: Final = 255
"""Characters of a type with its parameters, in its normal form."""

STEP: Final = 192 << 10
"""Bytes that are encoded in one step, and four thirds of it that are decoded: about half a millisecond."""

_MAX_HEADER: Final = 4 * MAX_TYPE
"""Bytes of a `Content-Type` that is looked at."""

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

_LAST_OF_PADDED: Final = {1: frozenset(_ALPHABET[::4]), 2: frozenset(_ALPHABET[::16])}
"""The characters in front of so much padding that have no bits that mean nothing."""

_BEGIN: Final = b'{"$bytes":"'

_BETWEEN: Final = b'","$content_type":"'

_END: Final = b'"}'

_MAX_TAIL: Final = len(_BETWEEN) + 2 * MAX_TYPE + len(_END)
"""Bytes behind the base64; in JSON a quote of a type has two."""

_NAME: Final = r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}"
_KIND: Final = rf"(?:application/(?:octet-stream|cbor|protobuf)|(?:image|audio|video)/{_NAME})"
# A value in quotes may have any visible character and blanks, but for quotes and backslashes.
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED: Final = r'"[ !#-\[\]-~]*"'

_kind: Final = re.compile(_KIND)

_parameter: Final = re.compile(rf"[ \t]*;[ \t]*(?:(?P<name>{_TOKEN})=(?P<value>{_TOKEN}|{_QUOTED}))?")

_normal: Final = re.compile(rf"{_KIND}(?:;[!#$%&'*+.^_`|~0-9a-z-]+=(?:{_TOKEN}|{_QUOTED}))*")


def is_raw_kind(header: str) -> bool:
    """Return True if a `Content-Type` names a type of raw bytes, with any parameters."""
    return _kind.fullmatch(header.partition(";")[0].strip(" \t").lower()) is not None


def normal_type(header: str) -> str | None:
    """Return the normal form of a `Content-Type`: names in lower case, no blanks around `;`, no empty parameters. None
    if it is no type of raw bytes, is malformed, or has more than `MAX_TYPE` characters.

    The returned text has only visible ASCII and blanks, so it can be sent as a header.
    """
    if len(header) > _MAX_HEADER or not is_raw_kind(header):
        return None
    text = header.strip(" \t")
    first, semicolon, _ = text.partition(";")
    parts = [first.rstrip(" \t").lower()]
    at = len(first) if semicolon else len(text)
    while at < len(text):
        found = _parameter.match(text, at)
        if found is None:
            return None
        if found["name"]:
            parts.append(f"{found['name'].lower()}={found['value']}")
        at = found.end()
    normal = ";".join(parts)
    return normal if len(normal) <= MAX_TYPE else None


def data_of_bytes(content: bytes, content_type: str) -> bytes:
    """Return the JSON of raw bytes. `content_type` is a normal type."""
    begin, end = _around(content_type)
    return b"%b%b%b" % (begin, b2a_base64(content, newline=False), end)


def data_in_steps(content: bytes, content_type: str) -> Generator[None, None, bytes]:
    """Like `data_of_bytes`. Yields after each step."""
    begin, end = _around(content_type)
    pieces = [begin]
    for at in range(0, len(content), STEP):
        pieces.append(b2a_base64(memoryview(content)[at : at + STEP], newline=False))
        yield
    pieces.append(end)
    return b"".join(pieces)


def room_for_bytes(size: int, content_type: str = "") -> int:
    """Return how many raw bytes fit into JSON of `size` bytes. May be negative."""
    return (size - sum(map(len, _around(content_type)))) // 4 * 3


def content_type_of(data: bytes) -> str | None:
    """Return the type of the raw bytes that valid JSON stands for; None if it is any other JSON.

    For JSON that does not begin like raw bytes this is one comparison, otherwise one pass over the JSON.
    """
    if data[: len(_BEGIN)] != _BEGIN:
        return None
    start = len(_BEGIN)
    end = data.rfind(_BETWEEN, max(start, len(data) - _MAX_TAIL))
    if end < 0 or not data.endswith(_END):
        return None
    written = data[end + len(_BETWEEN) : -len(_END)]
    text = written.replace(b'\\"', b'"').decode("latin-1")
    if len(text) > MAX_TYPE or _normal.fullmatch(text) is None or _quoted(text) != written:
        return None
    return text if _is_base64(data[start:end]) else None


def bytes_of_data(data: bytes) -> bytes:
    """Return the raw bytes of data that has a type (`content_type_of`)."""
    return a2b_base64(memoryview(data)[len(_BEGIN) : data.rindex(_BETWEEN)])


def bytes_in_steps(data: bytes) -> Generator[None, None, bytes]:
    """Like `bytes_of_data`. Yields after each step."""
    view = memoryview(data)[len(_BEGIN) : data.rindex(_BETWEEN)]
    size = STEP // 3 * 4
    pieces = []
    for at in range(0, len(view), size):
        pieces.append(a2b_base64(view[at : at + size]))
        yield
    return b"".join(pieces)


def _around(content_type: str) -> tuple[bytes, bytes]:
    """The JSON in front of the base64 and behind it."""
    return _BEGIN, b"%b%b%b" % (_BETWEEN, _quoted(content_type), _END)


def _quoted(content_type: str) -> bytes:
    """The text of a type within a string of JSON."""
    return content_type.replace('"', '\\"').encode()


def _is_base64(text: bytes) -> bool:
    """Return True if a text is the one way in which base64 writes some bytes."""
    letters = text.rstrip(b"=")
    padding = len(text) - len(letters)
    if len(text) % 4 or padding > 2 or (padding and (not letters or letters[-1] not in _LAST_OF_PADDED[padding])):
        return False
    return not letters.translate(None, _ALPHABET)
