"""The frames and blocks of a large batch, encoded in pieces. Between the pieces other tasks run.

A batch of 60 MB takes 80 ms to encode. Frames and blocks contain seqs and times, so they can be encoded ahead only for
the seqs that come next. Meanwhile a barrier keeps other changes from the topic. The step in which the batch gets its
seqs checks whether the pieces fit. So if a change passed the barrier, the only loss would be time.
"""

from __future__ import annotations

from array import array
from typing import Final

from topics.engine.record_columns import RECORD_BYTES, AppendColumns, encode_blocks, utf8
from topics.engine.topic import CommitPoint, Topic
from topics.log.block import Block
from topics.storage.wal import frames
from topics.storage.wal.frames import AppendFrames, joined

LARGE_BATCH_BYTES: Final = 4 << 20
"""Batches with at least this cost (`AppendColumns.cost`) are encoded in pieces. A smaller batch takes at most 6 ms."""

PIECE_BYTES: Final = 1 << 20
PIECE_RECORDS: Final = 1000
"""Bounds of a piece, which takes at most 2 ms; a longer record is a piece of its own."""


class LargeBatch:
    """A batch that is about to be committed to a topic. Encodes all of it but the last piece ahead, piece by piece.

    In a transaction the last piece is encoded ahead, too: control frames always follow it. And the batch is synced in
    every class of topics.
    """

    def __init__(self, topic: Topic, batch: AppendColumns, now_ms: int, *, in_transaction: bool = False) -> None:
        self.first_seq = topic.assigned + 1
        self.ts = max(now_ms, topic.last_ts)
        self._topic = topic
        self._batch = batch
        self._commit_point = topic.commit_point
        self._ephemeral = topic.ephemeral
        self._durable = in_transaction or topic.commit_point is CommitPoint.SYNCED
        self._pieces = _pieces_of(batch)
        self._ahead = len(self._pieces) - (not in_transaction)
        self._encoded = 0
        """How many pieces are encoded."""
        self._frames: list[AppendFrames] = []
        self._blocks: list[Block] = []

    @property
    def is_ready(self) -> bool:
        """Return True if all pieces that can be encoded ahead are encoded."""
        return self._encoded == self._ahead

    def fits(self, topic: Topic) -> bool:
        """Return True if the batch would get the seqs that it was encoded for, if it were committed now."""
        return (
            self.is_ready
            and topic is self._topic
            and (self.first_seq, self._commit_point, self._ephemeral)
            == (topic.assigned + 1, topic.commit_point, topic.ephemeral)
            and self.ts >= topic.last_ts
        )

    def encode_piece(self) -> None:
        """Encode the next piece. Must not be called for the last piece if its frames depend on the frames behind
        them."""
        assert not self.is_ready
        piece = self._pieces[self._encoded]
        if not self._ephemeral:
            self._frames.append(self._frames_of(piece, closes_batch=False))
        self._blocks += self._blocks_of(piece)
        self._encoded += 1

    def frames(self, *, closes_batch: bool) -> AppendFrames:
        """Return the frames of the whole batch. Encodes those of the piece that is left. `closes_batch` is False if
        control frames of the same batch follow."""
        left = self._pieces[self._ahead :]
        parts = [*self._frames, *(self._frames_of(piece, closes_batch=closes_batch) for piece in left)]
        lens, sizes = array("I"), array("I")
        for part in parts:
            lens.extend(part.frame_lens)
            sizes.extend(part.sizes)
        data = joined([part.data for part in parts])
        return AppendFrames(data, lens, sizes, b"".join([part.flags for part in parts]))

    def blocks(self) -> list[Block]:
        """Return the blocks of the whole batch. Encodes those of the piece that is left."""
        return [*self._blocks, *(block for piece in self._pieces[self._ahead :] for block in self._blocks_of(piece))]

    def _frames_of(self, piece: slice, *, closes_batch: bool) -> AppendFrames:
        part = self._batch.part(piece)
        return frames.encode_appends(
            self._topic.id,
            self.first_seq + piece.start,
            self.ts,
            part.datas,
            nodes=utf8(part.nodes),
            tags=utf8(part.tags),
            metas=part.metas,
            durable=self._durable,
            closes_batch=closes_batch,
            opens_batch=piece.start == 0,
        )

    def _blocks_of(self, piece: slice) -> list[Block]:
        part = self._batch.part(piece)
        names = part.nodes, part.tags
        first_seq = self.first_seq + piece.start
        return encode_blocks(first_seq, self.ts, part.datas, *names, part.metas, pinned=self._ephemeral)


def _pieces_of(batch: AppendColumns) -> list[slice]:
    pieces: list[slice] = []
    first = cost = 0
    for i, size in enumerate(batch.sizes):
        if i > first and (cost + size + RECORD_BYTES > PIECE_BYTES or i - first == PIECE_RECORDS):
            pieces.append(slice(first, i))
            first, cost = i, 0
        cost += size + RECORD_BYTES
    pieces.append(slice(first, len(batch.sizes)))
    return pieces
