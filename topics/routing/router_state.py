"""A router as its dest knows it: the durable part of it, which is logged with the dest (`docs/spec/crash.md` 18 to 20).

Its configuration is in `router`; the forwarder decides which copies it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from topics.log.dumped_values import whole
from topics.routing.origin_set import OriginSet
from topics.routing.router import RouterConfig, router_from_wire, router_to_wire


class Router:
    """One router between two topic instances. `cursor` and `forwarded` are as of the last commit that the dest
    published."""

    __slots__ = ("config", "cursor", "forwarded", "name", "source_id")

    def __init__(self, name: str, source_id: int, cursor: int, forwarded: int, config: RouterConfig) -> None:
        self.name = name
        self.source_id = source_id
        self.cursor = cursor
        """The last seq of the source that it has copied or skipped."""
        self.forwarded = forwarded
        """How many copies it has made."""
        self.config = config

    def dump(self) -> list[Any]:
        """Return the form that parts and RouterCreate frames have."""
        return [self.name, self.source_id, self.cursor, self.forwarded, router_to_wire(self.config)]

    @classmethod
    def load(cls, value: Sequence[Any]) -> Router:
        """Rebuild a router from what `dump` returned. Raises ValueError."""
        name, source_id, cursor, forwarded, config = value
        return cls(str(name), whole(source_id), whole(cursor), whole(forwarded), router_from_wire(config))


def kept_origins(known: OriginSet | None, routers: Iterable[Router]) -> OriginSet | None:
    """Return the origins that a dest must remember, given the routers that lead into it: None unless one is
    `exactly_once`."""
    if not any(router.config.guarantee == "exactly_once" for router in routers):
        return None
    return known if known is not None else OriginSet()
