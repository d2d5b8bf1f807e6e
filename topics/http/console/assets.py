"""The files of the console, and the headers that they are sent with (`docs/spec/console.md`).

The page runs only files that the daemon has sent: the policy allows no inline script, no inline style, no other host,
no frame around the page, and no text that is made into markup (trusted types). The files are read once, when a browser
first asks for one, and are sent as they are but for indentation, comments, and spaces in the style sheet. A browser
asks again before it uses a file that it has kept (`no-cache`, with an `ETag`), so that a new daemon never meets an old
page.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

Headers = list[tuple[bytes, bytes]]

ROOT: Final = Path(__file__).parent / "assets"
PAGE: Final = "index.html"

MOST_BYTES: Final = 200 << 10
"""Bytes of all files together at most, as they are sent without compression (`docs/spec/console.md`)."""

_VENDOR: Final = "vendor"
"""The folder of the files of others, which are sent byte for byte."""


_TYPES: Final[Mapping[str, bytes]] = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}

CONTENT_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The `Content-Security-Policy` of every file."""

_HEADERS: Final[Headers] = [
    (b"content-security-policy", CONTENT_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
]


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the console."""

    body: bytes
    content_type: bytes
    etag: bytes

    @property
    def headers(self) -> Headers:
        """The headers of an answer with this file, but for its type."""
        return [*_HEADERS, (b"etag", self.etag)]


def without_margins(body: bytes) -> bytes:
    """Return a script or a style sheet of the console without indentation and without lines that are only comments: a
    twelfth of it. Every other line keeps its number, so that an error in a browser leads to the file."""
    text = re.sub(rb"^[ \t]+", b"", body, flags=re.MULTILINE)
    text = re.sub(rb"^//[^\n]*", b"", text, flags=re.MULTILINE)
    return re.sub(rb"^/\*.*?\*/$", lambda found: b"\n" * found[0].count(b"\n"), text, flags=re.MULTILINE | re.DOTALL)


def without_spaces(body: bytes) -> bytes:
    """Return a style sheet without the spaces around its punctuation, which mean nothing: a twelfth of it."""
    return re.sub(rb" *([{};]) *|(?<=[:,]) ", rb"\1", body)


@cache
def assets() -> Mapping[str, Asset]:
    """Blocking: all files by their paths below the console, such as `views/topics.js`."""
    found = {}
    for path in sorted(ROOT.rglob("*")):
        kind = _TYPES.get(path.suffix)
        if kind is not None and path.is_file():
            body = path.read_bytes()
            if path.suffix in (".js", ".css") and path.parent.name != _VENDOR:
                body = without_margins(body)
            if path.suffix == ".css":
                body = without_spaces(body)
            etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
            found[path.relative_to(ROOT).as_posix()] = Asset(body, kind, etag)
    return found
