"""Accept headers: what a client would rather have (RFC 9110, 12.4 and 12.5), once for all of them."""

from __future__ import annotations

from typing import Final

MOST_ITEMS: Final = 200


def qualities(header: bytes) -> dict[bytes, float]:
    """The quality of each item of an Accept or Accept-Encoding header, 0 where it cannot be read; of an item that
    stands there twice, the better one. Names are in lower case. A header of more than `MOST_ITEMS` has none that count:
    over HTTP/2 a reference of a byte may stand for thousands."""
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
