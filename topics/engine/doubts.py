"""`Doubts`: names whose last change has failed on its way to the disk, so that only a restart tells what is there.

What is in memory may be what is on the disk, or may not. A change that logs anew is refused by the failed shard itself
(`docs/spec/crash.md` 27), or goes to another shard and counts from then on. An answer that needs no log ("there is
none", "it is so already") would promise what nobody knows: whoever gives one asks here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topics.errors import ApiError


class Doubts:
    """See the module. There are no more of them than changes that were on their way when a shard failed."""

    def __init__(self) -> None:
        self._errors: dict[str, ApiError] = {}

    def check(self, name: str) -> None:
        """Raises the `ApiError` that a change of `name` has failed with, if nothing has been decided since."""
        error = self._errors.get(name)
        if error is not None:
            raise error

    @contextmanager
    def deciding(self, name: str) -> Iterator[None]:
        """The body waits for a change of `name` to be synced. An ApiError leaves the name in doubt, success ends all
        doubt about it. Cancelling changes nothing."""
        try:
            yield
        except ApiError as error:
            self._errors[name] = error
            raise
        self._errors.pop(name, None)
