"""The frames that the firing of a schedule adds to an append."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from topics.engine.topic import Topic
from topics.storage.wal.frames import FrameType


class AppendAttachment(Protocol):
    """Control frames in the batch of an append, and the steps of that append. An append with an attachment is synced in
    every class of topics."""

    @property
    def frames(self) -> Sequence[tuple[FrameType, dict[str, Any]]]:
        """The control frames, which stand behind the records of the append."""
        ...

    def decide(self, topic: Topic) -> None:
        """The append gets its seqs in this step, unless this raises."""
        ...

    def publish(self) -> None:
        """The append is published."""
        ...

    def fail(self) -> None:
        """The append has its seqs, and will not be published. Its frames may be on disk all the same."""
        ...
