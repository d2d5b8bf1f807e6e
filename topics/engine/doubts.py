"""`Doubts`: names whose last change has failed on its way to the disk, so that only a restart tells whether it
happened.

Memory and disk may differ for such a name. A change that writes to the log again is refused by the failed shard
(`docs/spec/crash.md` 27), or goes to another shard and is the last word from then on. But an answer that needs no log
("there is none", "it is so already") could be wrong after a restart, so the code that gives one asks here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topics.errors import ApiError


class Doubts:
    """The names in doubt, with the error of each. One for topics and one for routers; it holds at most as many names as
    changes were in flight when a shard failed."""

    def __init__(self) -> None:
        self._errors: dict[str, ApiError] = {}

    def check(self, name: str) -> None:
        """Raise the `ApiError` with which a change of `name` has failed, unless a later change has succeeded."""
        error = self._errors.get(name)
        if error is not None:
            raise error

    @contextmanager
    def deciding(self, name: str) -> Iterator[None]:
        """Run a body that waits for a change of `name` to be synced. An ApiError puts the name in doubt, success ends
        the doubt. Cancelling changes nothing."""
        try:
            yield
        except ApiError as error:
            self._errors[name] = error
            raise
        self._errors.pop(name, None)
