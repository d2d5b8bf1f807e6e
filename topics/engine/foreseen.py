"""The effects of a pending commit on the tags of its topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Foreseen:
    """The effects of a pending commit on the tags of its topic: conditions are judged as if it were published."""

    __slots__ = ("floor", "newest", "removes", "tags")

    def __init__(
        self,
        tags: Sequence[str | None] | None = None,
        floor: int = 0,
        removes: Callable[[int], bool] | None = None,
    ) -> None:
        self.tags = tags
        """The tags of its records; None if no record has one."""
        self.floor = floor
        """Records below it are evicted."""
        self.removes = removes
        """Returns True if it deletes a published record, by seq; None if it deletes none."""
        self.newest: dict[str | None, int] | None = None
        """The newest record with each tag, of this commit and those before it; published ones may be among them. Made
        when conditions are judged, and then kept with the newest commit that has tags; None for others."""
