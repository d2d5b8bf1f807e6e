"""Retrying dead jobs of a queue or group: those of its letters that are given by their seqs, or that match a filter, go
back (`docs/spec/consumers.md` section 5). A call moves them piece by piece, each as a redrive does (`letter_moves`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from topics.config import Settings
from topics.engine.loader import Loader
from topics.engine.queues.job_lists import letters_of
from topics.engine.queues.looks import SeqCollector
from topics.engine.record_collector import RecordRequest
from topics.engine.redrives.letter_moves import PIECE_LETTERS, LetterMoves
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import topic_not_found
from topics.filters.record_filter import Filter
from topics.job_model import JobsChanged, JobSelection
from topics.model import Performance


class DeadJobs:
    """Retries dead jobs. Made once by the engine."""

    def __init__(self, settings: Settings, registry: Registry, *, moves: LetterMoves, loader: Loader) -> None:
        self._settings = settings
        self._registry = registry
        self._moves = moves
        self._loader = loader

    async def retry(
        self,
        name: str,
        dead: str,
        selection: JobSelection,
        perf: Performance,
        group: str | None,
        may: Callable[[str], bool],
    ) -> JobsChanged:
        """Move letters that the topic `dead` has of a queue or group back there: those of its `seqs`, or that match.
        `may` tells whether the caller may write to a topic. Synced.

        Raises `409 topic_exists_incompatible` for the class of `dead`, and 503; then a part may be done. Cancelling
        leaves the piece on its way to be moved.
        """
        topic = self._registry.topics.get(dead)
        matched = done = 0
        if topic is not None:
            wanted = letters_of(name, group, selection.filter)
            async for seqs in self._letters(topic, wanted, selection.seqs, perf):
                matched += len(seqs)
                done += len((await self._moves.move(topic, seqs, may=may)).moved)
        asked = matched if selection.seqs is None else len(selection.seqs)
        return JobsChanged(matched, done, asked - done)

    async def _letters(
        self, topic: Topic, wanted: Filter | None, seqs: Sequence[int] | None, perf: Performance
    ) -> AsyncIterator[Sequence[int]]:
        """Yield the letters, up to the head as it is now, in pieces."""
        if seqs is None:
            position, up_to = 0, topic.log.head_seq
            while position < up_to:
                found = await self._look(topic, wanted, position, up_to, perf)
                if found.seqs:
                    yield found.seqs
                elif found.position <= position:
                    return
                position = found.position
            return
        for at in range(0, len(seqs), PIECE_LETTERS):
            piece: list[int] = []
            for seq in seqs[at : at + PIECE_LETTERS]:
                if 0 < seq <= topic.log.head_seq:
                    piece += (await self._look(topic, wanted, seq - 1, seq, perf)).seqs
            if piece:
                yield piece

    async def _look(
        self, topic: Topic, wanted: Filter | None, position: int, up_to: int, perf: Performance
    ) -> SeqCollector:
        if topic.deleted:
            raise topic_not_found(topic.name)
        wish = RecordRequest(PIECE_LETTERS, 1 << 62, filter=wanted)
        scan = self._settings.max_scan
        found = SeqCollector(self._registry, topic, wish, position, most_scanned=scan, up_to=up_to)
        while (need := found.advance()) is not None:
            await self._loader.provide(found, need, perf)
        perf.records_scanned = (perf.records_scanned or 0) + found.scanned
        return found
