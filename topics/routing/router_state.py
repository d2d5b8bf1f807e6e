"""A router as its dest knows it: the durable part of it, which travels with the dest's log (`docs/spec/crash.md` 18 to
20).

What it is configured to is `router`'s business, which copies come of it is decided by whoever forwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from topics.log.dumped_values import whole
from topics.routing.origin_set import OriginSet
from topics.routing.router import RouterConfig, router_from_wire, router_to_wire


class Router:
    """One router between two topic instances. `cursor` and `forwarded` are as of what the dest has published."""

    __slots__ = ("config", "cursor", "forwarded", "name", "source_id")

    def __init__(self, name: str, source_id: int, cursor: int, forwarded: int, config: RouterConfig) -> None:
        self.name = name
        self.source_id = source_id
        self.cursor = cursor
        """The last seq of the source that it has dealt with."""
        self.forwarded = forwarded
        """Copies made."""
        self.config = config

    def dump(self) -> list[Any]:
        """As parts and RouterCreate frames have it."""
        return [self.name, self.source_id, self.cursor, self.forwarded, router_to_wire(self.config)]

    @classmethod
    def load(cls, value: Sequence[Any]) -> Router:
        """The inverse. Raises ValueError."""
        name, source_id, cursor, forwarded, config = value
        return cls(str(name), whole(source_id), whole(cursor), whole(forwarded), router_from_wire(config))


def kept_origins(known: OriginSet | None, routers: Iterable[Router]) -> OriginSet | None:
    """What a dest remembers of origins, given the routers that feed it: something as long as one of them brings each
    record only once."""
    if not any(router.config.guarantee == "exactly_once" for router in routers):
        return None
    return known if known is not None else OriginSet()
