"""Decoding the JSON of request bodies with errors that name the field, and checking the limits of every body."""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator
from itertools import accumulate
from typing import Final, TypeVar

import msgspec

from topics.errors import MAX_SHOWN, ApiError, invalid

MAX_DEPTH: Final = 512
"""The deepest nesting of a value, levels."""

# A value of fewer bytes cannot nest deeper than MAX_DEPTH, because each level has two brackets.
DEEP_BYTES: Final = 2 * (MAX_DEPTH + 1)

MALFORMED: Final = "malformed JSON"
"""How the message of an error begins that is about text that is no JSON."""

T = TypeVar("T")

_AT: Final = " - at `$"

_MOST_PATH: Final = 1000
"""Characters at the end of a message of msgspec in which the path is looked for. In front of them the message may
repeat what a client has sent."""

_DEPTH_STEP: Final = 128 << 10
"""Bytes of which brackets are counted in one step, at most 5 ms."""

_UTF8_STEP: Final = 1 << 20


_utf8: Final = codecs.getincrementaldecoder("utf-8")

_MISSING: Final = re.compile(r"missing required field `(?P<name>[^`]*)`")

_UNKNOWN: Final = re.compile(r"contains unknown field `(?P<name>.*)`", re.DOTALL)

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE_BYTES: Final = 4
_SURROGATE_STEP: Final = 256 << 10
"""Bytes that are searched in one step, at most 3 ms."""

LEVELS: Final = bytes(1 if c in b"[{" else 255 if c in b"]}" else 0 for c in range(256))

NOT_STRUCTURE: Final = bytes(c for c in range(256) if c not in b'[]{}"')


def check_utf8(raw: bytes) -> None:
    """Raise `400 invalid_request` if `raw` is not UTF-8. Called once for each body, because msgspec does not check
    strings that it does not decode.

    Decodes in pieces: a single character above U+FFFF makes each character of a Python string take four bytes.
    """
    if raw.isascii():
        return
    for _ in check_utf8_in_steps(raw):
        pass


def check_utf8_in_steps(raw: bytes) -> Generator[None, None, None]:
    """Like `check_utf8`. Yields after each step."""
    if raw.isascii():
        return
    decoder = _utf8()
    view = memoryview(raw)
    for start in range(0, len(raw), _UTF8_STEP):
        left = len(decoder.getstate()[0])  # bytes of a character that began in the piece before
        try:
            decoder.decode(view[start : start + _UTF8_STEP], final=start + _UTF8_STEP >= len(raw))
        except UnicodeDecodeError as error:
            raise invalid("body", f"is not valid UTF-8 (byte {start - left + error.start})") from None
        yield


def depth_of(raw: bytes) -> int:
    """How many levels a valid JSON text nests. Takes at most 40 ms for each MiB, if the text is nothing but
    brackets."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Only brackets and quotes are left. Two quotes side by side are a string without brackets, and are removed.
    rest = raw.translate(None, NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in rest:
        rest = b"".join(rest.split(b'"')[::2])
    return max(accumulate(memoryview(rest.translate(LEVELS)).cast("b")), default=0)


def depth_in_steps(raw: bytes) -> Generator[None, None, int]:
    """Like `depth_of`. Yields after each step."""
    deepest = level = at = 0
    in_string = False
    while at < len(raw):
        text = raw[at : at + _DEPTH_STEP]
        if (len(text) - len(text.rstrip(b"\\"))) % 2:
            text = raw[at : at + len(text) + 1]  # with the character that the last backslash escapes
        at += len(text)
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        if in_string:
            text = b'"' + text
        rest = text.translate(None, NOT_STRUCTURE).replace(b'""', b"")
        in_string = rest.count(b'"') % 2 == 1
        if b'"' in rest:
            rest = b"".join(rest.split(b'"')[::2])
        levels = list(accumulate(memoryview(rest.translate(LEVELS)).cast("b"), initial=level))
        highest, level = max(levels), levels[-1]
        deepest = max(deepest, highest)
        yield
    return deepest


def check_depth(raw: bytes, field: str) -> None:
    """Raise `400 invalid_request` about `field` if valid JSON nests deeper than `MAX_DEPTH`."""
    if len(raw) >= DEEP_BYTES and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and depth_of(raw) > MAX_DEPTH:
        raise too_deep(field)


def too_deep(field: str) -> ApiError:
    """The `400 invalid_request` for a field that nests deeper than `MAX_DEPTH`."""
    return invalid(field, f"nesting is deeper than {MAX_DEPTH} levels", max=MAX_DEPTH)


def decode_json(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode JSON. Raises `400 invalid_request`, which names the wrong field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise wrong_value(str(error)) from None
    except msgspec.DecodeError as error:
        raise malformed(str(error), raw) from None
    except RecursionError:
        raise too_deep("body") from None


def wrong_value(text: str) -> ApiError:
    """msgspec's "Expected `str`, got `int` - at `$.records[0].tag`" as an error about `records[0].tag`."""
    what, path = _split_path(text)
    # `[...]` is a value of an object whose key msgspec does not tell.
    path = path.removesuffix("[...]").removeprefix("[...].")
    for pattern, message in ((_MISSING, "is required"), (_UNKNOWN, "there is no such field")):
        found = pattern.search(what)
        if found is not None:
            name = found["name"] or '""'
            return invalid(f"{path}.{name}" if path else name, message)
    return invalid(path or "body", what[:1].lower() + what[1:])


def _split_path(text: str) -> tuple[str, str]:
    """Split a message of msgspec into its text and its path without `$`. A long text is cut: it may repeat a key of 60
    MB."""
    end = text[-_MOST_PATH:]
    at = end.rfind(_AT)
    if at >= 0 and end.endswith("`") and "`" not in end[at + len(_AT) : -1]:
        what = text[: len(text) - len(end) + at]
        path = end[at + len(_AT) : -1].removeprefix(".")
    else:
        what, path = text, ""
    if len(what) > _MOST_PATH:
        what = what[:MAX_SHOWN] + "...`"
    return what, path


def malformed(text: str, raw: bytes) -> ApiError:
    """The `400 invalid_request` for malformed JSON. `text` is the message of msgspec."""
    return _malformed(text, has_surrogate=_ends_too_soon(text) and _SURROGATE.search(raw) is not None)


def malformed_in_steps(text: str, raw: bytes) -> Generator[None, None, ApiError]:
    """Like `malformed`. Yields after each step."""
    if _ends_too_soon(text):
        for start in range(0, len(raw), _SURROGATE_STEP):
            if _SURROGATE.search(raw, start, start + _SURROGATE_STEP + _SURROGATE_BYTES - 1) is not None:
                return _malformed(text, has_surrogate=True)
            yield
    return _malformed(text, has_surrogate=False)


def _ends_too_soon(text: str) -> bool:
    """Return True if a message of msgspec says that JSON ends too soon. It also says so of a string that ends in half a
    surrogate pair."""
    return "truncated" in text or "surrogate" in text


def _malformed(text: str, *, has_surrogate: bool) -> ApiError:
    if _ends_too_soon(text):
        text = f"{MALFORMED}: it ends too soon"
        if has_surrogate:
            text += ", or a \\u escape is half a surrogate pair"
    else:
        text = text.replace("JSON is malformed", MALFORMED)
    return invalid("body", text)


def check_text(field: str, value: str, maximum: int) -> None:
    """Raise `400 invalid_request` if `value` is empty or longer than `maximum` bytes in UTF-8."""
    if not value:
        raise invalid(field, "must not be empty")
    size = len(value.encode())
    if size > maximum:
        raise invalid(field, f"is {size} bytes long, at most {maximum} are allowed", max=maximum)


def not_u64(field: str) -> ApiError:
    """The `400 invalid_request` for a number outside of 0 to 2^64 - 1."""
    return invalid(field, "must be an integer from 0 to 2^64 - 1")
