"""Reading Accept and Accept-Encoding headers (RFC 9110, 12.4 and 12.5)."""

from __future__ import annotations

from typing import Final

MOST_ITEMS: Final = 200
"""A header with more items and parameters is ignored."""


def prefers_html(header: bytes) -> bool:
    """Return True if an Accept asks for `text/html` by name, and does not prefer JSON: browsers do so."""
    found = qualities(header)
    return found.get(b"text/html", 0.0) > found.get(b"application/json", 0.0)


def qualities(header: bytes) -> dict[bytes, float]:
    """The quality (`q`) of each item of a header, by its name in lower case.

    A quality that cannot be read is 0. If an item is there twice, the better quality counts. A header with more than
    `MOST_ITEMS` yields nothing: over HTTP/2 a reference of one byte may stand for a header of thousands of items.
    """
    found: dict[bytes, float] = {}
    if header.count(b",") + header.count(b";") >= MOST_ITEMS:
        return found
    for item in header.lower().split(b","):
        name, *parameters = (part.strip() for part in item.split(b";"))
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition(b"=")
            if key.strip() == b"q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        found[name] = max(quality, found.get(name, 0.0))
    return found
