"""JSON of request bodies: decoding with errors that name the field, and the limits that hold for every body."""

from __future__ import annotations

import codecs
import re
from itertools import accumulate
from typing import Final, TypeVar

import msgspec

from topics.errors import MAX_SHOWN, ApiError, invalid

MAX_DEPTH: Final = 512


# A value cannot nest more than MAX_DEPTH levels in fewer bytes, since each level opens and closes.
DEEP_BYTES: Final = 2 * (MAX_DEPTH + 1)


T = TypeVar("T")


_AT: Final = " - at `$"


_MOST_PATH: Final = 1000
"""Characters of the end of a message in which its path is looked for; what a client has sent stands before it."""


_UTF8_STEP: Final = 1 << 20


_utf8: Final = codecs.getincrementaldecoder("utf-8")


_MISSING: Final = re.compile(r"missing required field `(?P<name>[^`]*)`")


_UNKNOWN: Final = re.compile(r"contains unknown field `(?P<name>.*)`", re.DOTALL)


_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


LEVELS: Final = bytes(1 if c in b"[{" else 255 if c in b"]}" else 0 for c in range(256))


NOT_STRUCTURE: Final = bytes(c for c in range(256) if c not in b'[]{}"')


def check_utf8(raw: bytes) -> None:
    """400 unless `raw` is UTF-8. Once for each body, because msgspec looks into no string that it does not decode.

    In pieces, because one character beyond the first 65,536 makes four bytes of each of a text.
    """
    if raw.isascii():
        return
    decoder = _utf8()
    view = memoryview(raw)
    for start in range(0, len(raw), _UTF8_STEP):
        left = len(decoder.getstate()[0])  # of a character that began in the piece before
        try:
            decoder.decode(view[start : start + _UTF8_STEP], final=start + _UTF8_STEP >= len(raw))
        except UnicodeDecodeError as error:
            raise invalid("body", f"is not valid UTF-8 (byte {start - left + error.start})") from None


def depth_of(raw: bytes) -> int:
    """How deep a valid JSON text nests. Takes about 40 ms for each MiB of nothing but brackets, less for any other."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes next to each other change nothing for what is around them, so strings without brackets go at once.
    rest = raw.translate(None, NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in rest:
        rest = b"".join(rest.split(b'"')[::2])
    return max(accumulate(memoryview(rest.translate(LEVELS)).cast("b")), default=0)


def check_depth(raw: bytes, field: str) -> None:
    if len(raw) >= DEEP_BYTES and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and depth_of(raw) > MAX_DEPTH:
        raise too_deep(field)


def too_deep(field: str) -> ApiError:
    return invalid(field, f"nesting is deeper than {MAX_DEPTH} levels", max=MAX_DEPTH)


def decode_json(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode, with every failure as a 400 that names the field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _wrong_value(str(error)) from None
    except msgspec.DecodeError as error:
        raise malformed(str(error), raw) from None
    except RecursionError:
        raise too_deep("body") from None


def _wrong_value(text: str) -> ApiError:
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
    """A message of msgspec without its path, and the path without `$`. Of a long one only the beginning is looked at:
    it may repeat a key of 60 MB."""
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
    # msgspec calls a string that ends in half a surrogate pair "truncated", too.
    if "truncated" in text or "surrogate" in text:
        text = "malformed JSON: it ends too soon"
        if _SURROGATE.search(raw) is not None:
            text += ", or a \\u escape is half a surrogate pair"
    else:
        text = text.replace("JSON is malformed", "malformed JSON")
    return invalid("body", text)


def check_text(field: str, value: str, maximum: int) -> None:
    if not value:
        raise invalid(field, "must not be empty")
    size = len(value.encode())
    if size > maximum:
        raise invalid(field, f"is {size} bytes long, at most {maximum} are allowed", max=maximum)


def not_u64(field: str) -> ApiError:
    return invalid(field, "must be an integer from 0 to 2^64 - 1")
