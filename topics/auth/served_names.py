"""`ServedNames`: the names that this daemon serves, if others serve the rest (`TOPICS_NAMES`, `docs/replication.md`
section 6). Pure.

Several daemons share the topics by the beginnings of their names, and a proxy routes by the path. A name of another
daemon is `421 not_here`: the client or the proxy has come to the wrong one, and nothing was done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from topics.errors import ApiError


class ServedNames:
    """Names that begin with one of `prefixes`; every name without any."""

    __slots__ = ("prefixes",)

    def __init__(self, prefixes: Iterable[str] = ()) -> None:
        self.prefixes = tuple(prefixes)

    def __bool__(self) -> bool:
        """Return True if there are names that this daemon does not serve."""
        return bool(self.prefixes)

    def has(self, name: str) -> bool:
        """Return True if a topic, router or schedule of this name is served here."""
        return not self.prefixes or name.startswith(self.prefixes)

    def check(self, name: str, field: str = "topic") -> None:
        """Raise `421 not_here` for a name that is not served here. `field` is the field of the request that has it."""
        if not self.has(name):
            raise self._error(name, field)

    def check_prefix(self, prefix: str, field: str = "prefixes") -> None:
        """Raise `421 not_here` if no name that begins with `prefix` is served here. Where only some are, the call is
        about these."""
        if self.prefixes and not self.has(prefix) and not any(own.startswith(prefix) for own in self.prefixes):
            raise self._error(prefix, field)

    @staticmethod
    def _error(name: str, field: str) -> ApiError:
        return ApiError("not_here", f"{field}: this daemon does not serve {name!r}", detail={field: name})


EVERY_NAME: Final = ServedNames()
