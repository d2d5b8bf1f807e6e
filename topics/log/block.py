"""Blocks: the encoded JSON of a run of records, made once and sliced for every reader (`docs/design/architecture.md`
section 5).

A block covers `count` seqs from `first_seq`. `body` holds the records as a diff shows them by default (`$node` and
`meta`, no `$tag`), each followed by a comma, so that any run of records is one slice. Tags are in an array of bytes of
their own and are inserted for a reader that asks for them. `meta` is the last member of a record, so that it can be
left out by a cut. A block does not know which records are live: a missing seq takes no bytes, and readers ask only for
runs that the index calls live.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Final, NamedTuple

import msgspec

BLOCK_RECORDS: Final = 1000
"""Records of an open block; with so many it is closed. A diff of the largest limit then fits into one block."""

BLOCK_BYTES: Final = 256 << 10
"""Bytes of an open block's `body`; with so many it is closed. One watch frame of the default size."""

_json = msgspec.json.encode
_DATA_KEY: Final = b',"data":'
_META_KEY: Final = b',"meta":'
_TAG_KEY: Final = b'"$tag":'
_RECORD: Final = b'{"$seq":%d,"$ts":%d%b,"data":%b%b},'
_NODE_TEXT: Final = b',"$node":%b'
_META_TEXT: Final = b',"meta":%b'
_TAG_TEXT: Final = b'"$tag":%b,'


class Projection(NamedTuple):
    """Which members of a record a reader wants."""

    tags: bool = False
    meta: bool = True
    data: bool = True


_WHOLE: Final = Projection()


class RecordParts(NamedTuple):
    """The pieces of one record; empty bytes for a piece that it does not have."""

    node: bytes
    tag: bytes
    meta: bytes
    data: bytes


class RecordColumns(NamedTuple):
    """The pieces of several records, column by column; None for a column in which no record has anything."""

    nodes: list[str | None] | None
    tags: list[str | None] | None
    metas: list[bytes] | None
    datas: list[bytes]


class Block:
    """An encoded run of records, which every reader and the payload cache share.

    `body` is a bytearray while the block is open (records may be added), bytes once it is closed. `starts` has the
    offset of each record in `body`, and its end. `tags`, `meta_lens` and `nodes` are None while no record has one.
    `views` are projections that were asked for; `pinned` blocks are not evicted by the cache.
    """

    __slots__ = (
        "body",
        "count",
        "first_seq",
        "meta_lens",
        "node_ids",
        "nodes",
        "pinned",
        "starts",
        "tag_starts",
        "tags",
        "views",
    )

    def __init__(self, first_seq: int, count: int, body: bytes | bytearray, starts: array[int]) -> None:
        self.first_seq = first_seq
        self.count = count
        self.body = body
        self.starts = starts
        self.tags: bytes | bytearray | None = None
        self.tag_starts: array[int] | None = None
        self.meta_lens: array[int] | None = None
        self.nodes: list[str] | None = None
        """Distinct nodes. `node_ids` has for each record the index of its node among them + 1, 0 for no node."""
        self.node_ids: array[int] | None = None
        self.views: dict[Projection, tuple[bytes, array[int]]] | None = None
        self.pinned = False

    @property
    def last_seq(self) -> int:
        """The last seq covered."""
        return self.first_seq + self.count - 1

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, views included (counted against `TOPICS_CACHE_BYTES`)."""
        total = len(self.body) + 4 * len(self.starts) + 400
        if self.tags is not None and self.tag_starts is not None:
            total += len(self.tags) + 4 * len(self.tag_starts)
        if self.meta_lens is not None:
            total += 4 * self.count
        if self.node_ids is not None:
            total += 2 * self.count
        if self.views:
            total += sum(len(body) + 4 * len(starts) for body, starts in self.views.values())
        return total

    @property
    def full(self) -> bool:
        """Return True if an open block should be closed."""
        return self.count >= BLOCK_RECORDS or len(self.body) >= BLOCK_BYTES

    def close(self) -> None:
        """Close the block: no records can be added any more."""
        self.body = bytes(self.body)
        if self.tags is not None:
            self.tags = bytes(self.tags)

    def extend(self, other: Block) -> None:
        """Append the records of `other`, which must follow directly."""
        assert other.first_seq == self.first_seq + self.count, "blocks are contiguous"
        if not isinstance(self.body, bytearray):
            self.body = bytearray(self.body)
        shift = len(self.body)
        self.body += other.body
        self.starts.pop()
        self.starts.extend([start + shift for start in other.starts] if shift else other.starts)
        self._extend_tags(other)
        if self.meta_lens is not None or other.meta_lens is not None:
            if self.meta_lens is None:
                self.meta_lens = array("I", bytes(4 * self.count))
            self.meta_lens.extend(other.meta_lens or array("I", bytes(4 * other.count)))
        self._extend_nodes(other)
        self.views = None
        self.count += other.count

    def _extend_tags(self, other: Block) -> None:
        if self.tags is None and other.tags is None:
            return
        if self.tags is None or self.tag_starts is None:
            self.tags, self.tag_starts = bytearray(), array("I", bytes(4 * (self.count + 1)))
        if not isinstance(self.tags, bytearray):
            self.tags = bytearray(self.tags)
        shift = len(self.tags)
        if other.tags is None or other.tag_starts is None:
            self.tag_starts.extend([shift] * other.count)
            return
        self.tags += other.tags
        self.tag_starts.pop()
        self.tag_starts.extend([start + shift for start in other.tag_starts])

    def _extend_nodes(self, other: Block) -> None:
        if self.nodes is None and other.nodes is None:
            return
        if self.nodes is None or self.node_ids is None:
            self.nodes, self.node_ids = [], array("H", bytes(2 * self.count))
        if other.nodes is None or other.node_ids is None:
            self.node_ids.extend(array("H", bytes(2 * other.count)))
            return
        known = {node: i for i, node in enumerate(self.nodes, 1)}
        renumber = [0]
        for node in other.nodes:
            if node not in known:
                self.nodes.append(node)
                known[node] = len(self.nodes)
            renumber.append(known[node])
        self.node_ids.extend([renumber[i] for i in other.node_ids])

    def view(self, projection: Projection) -> tuple[bytes | bytearray, array[int]]:
        """Return body and starts of this block in a projection. It is made at the first call and kept."""
        with_tags = projection.tags and self.tags is not None
        without_meta = not projection.meta and self.meta_lens is not None
        wanted = Projection(with_tags, not without_meta, projection.data)
        if wanted == _WHOLE:
            return self.body, self.starts
        if self.views is None:
            self.views = {}
        made = self.views.get(wanted)
        if made is None:
            made = self.views[wanted] = self._project(wanted)
        return made

    def _project(self, wanted: Projection) -> tuple[bytes, array[int]]:
        body, starts = bytes(self.body), self.starts
        pieces = []
        for i in range(self.count):
            start, end = starts[i], starts[i + 1]
            if start == end:
                pieces.append(b"")
                continue
            meta_at = end - 2 - (self.meta_lens[i] if self.meta_lens is not None else 0)
            # Quotes inside `$node` are escaped, so the first match of the key is the key itself.
            head = body[start + 1 : meta_at if wanted.data else body.index(_DATA_KEY, start)]
            meta = body[meta_at : end - 2] if wanted.meta else b""
            tag = b""
            if wanted.tags and self.tags is not None and self.tag_starts is not None:
                tag = bytes(self.tags[self.tag_starts[i] : self.tag_starts[i + 1]])
            pieces.append(b"{%b%b%b}," % (tag, head, meta))
        return b"".join(pieces), array("I", accumulate(map(len, pieces), initial=0))

    def cut(
        self, first: int, last: int, budget: int, projection: Projection, *, at_least_one: bool
    ) -> tuple[bytes, int]:
        """Return records `first` to `last` (all present) joined by commas, as many as fit into `budget` bytes, and the
        last seq taken.

        If the first does not fit, it is taken all the same with `at_least_one`; otherwise the last seq is `first - 1`.
        """
        body, starts = self.view(projection)
        i, j = first - self.first_seq, last - self.first_seq + 1
        if starts[j] - starts[i] - 1 > budget:
            j = bisect_right(starts, starts[i] + budget + 1, i, j + 1) - 1
            if j <= i:
                if not at_least_one:
                    return b"", first - 1
                j = i + 1
        return bytes(body[starts[i] : starts[j] - 1]), self.first_seq + j - 1

    def record_of(self, seq: int) -> bytes:
        """Return the JSON of a present record with its tag, but without the opening brace."""
        i = seq - self.first_seq
        record = bytes(self.body[self.starts[i] + 1 : self.starts[i + 1] - 1])
        if self.tags is None or self.tag_starts is None:
            return record
        return bytes(self.tags[self.tag_starts[i] : self.tag_starts[i + 1]]) + record

    def node_of(self, seq: int) -> str | None:
        """Return the node of a record, None if it has none."""
        if self.nodes is None or self.node_ids is None:
            return None
        i = self.node_ids[seq - self.first_seq]
        return self.nodes[i - 1] if i else None

    def tag_of(self, seq: int) -> str | None:
        """Return the tag of a record, None if it has none."""
        if self.tags is None or self.tag_starts is None:
            return None
        i = seq - self.first_seq
        start, end = self.tag_starts[i] + len(_TAG_KEY), self.tag_starts[i + 1] - 1
        if end < start:
            return None
        quoted = bytes(self.tags[start:end])
        return msgspec.json.decode(quoted, type=str) if b"\\" in quoted else quoted[1:-1].decode()

    def meta_of(self, seq: int) -> bytes | None:
        """Return the JSON of the meta of a present record, None if it has none."""
        i = seq - self.first_seq
        if self.meta_lens is None or not self.meta_lens[i]:
            return None
        end = self.starts[i + 1] - 2
        return bytes(self.body[end - self.meta_lens[i] + len(_META_KEY) : end])

    def data_of(self, seq: int) -> bytes:
        """Return the JSON of the data of a present record."""
        i = seq - self.first_seq
        end = self.starts[i + 1] - 2 - (self.meta_lens[i] if self.meta_lens is not None else 0)
        return bytes(self.body[self.body.index(_DATA_KEY, self.starts[i]) + len(_DATA_KEY) : end])

    def parts_of(self, seq: int) -> RecordParts:
        """Return the pieces of a present record as they were appended (`node` and `tag` as UTF-8, not as JSON)."""
        i = seq - self.first_seq
        start, end = self.starts[i], self.starts[i + 1] - 2
        body = bytes(self.body[start:end])
        meta_len = self.meta_lens[i] if self.meta_lens is not None else 0
        data_at = body.index(_DATA_KEY) + len(_DATA_KEY)
        data_end = len(body) - meta_len
        meta = body[data_end + len(_META_KEY) :] if meta_len else b""
        tag = b""
        if self.tags is not None and self.tag_starts is not None:
            tag_start, tag_end = self.tag_starts[i], self.tag_starts[i + 1]
            if tag_start < tag_end:
                quoted = bytes(self.tags[tag_start + len(_TAG_KEY) : tag_end - 1])
                tag = msgspec.json.decode(quoted, type=str).encode()
        return RecordParts((self.node_of(seq) or "").encode(), tag, meta, body[data_at:data_end])

    def columns(self, first: int, last: int) -> RecordColumns:
        """Return the pieces of records `first` to `last`, all present, column by column."""
        i, j = first - self.first_seq, last - self.first_seq + 1
        base = self.starts[i]
        body = bytes(self.body[base : self.starts[j]])
        datas: list[bytes] = []
        metas: list[bytes] | None = [] if self.meta_lens is not None else None
        for k in range(i, j):
            start, end = self.starts[k] - base, self.starts[k + 1] - base - 2
            if self.meta_lens is not None and metas is not None:
                meta_at = end - self.meta_lens[k]
                metas.append(body[meta_at + len(_META_KEY) : end])
                end = meta_at
            datas.append(body[body.index(_DATA_KEY, start) + len(_DATA_KEY) : end])
        nodes: list[str | None] | None = None
        if self.nodes is not None and self.node_ids is not None:
            names = [None, *self.nodes]
            nodes = [names[number] for number in self.node_ids[i:j]]
        return RecordColumns(nodes, self._tag_column(i, j), metas, datas)

    def _tag_column(self, i: int, j: int) -> list[str | None] | None:
        if self.tags is None or self.tag_starts is None:
            return None
        known: dict[bytes, str | None] = {b"": None}
        tags = []
        for k in range(i, j):
            piece = bytes(self.tags[self.tag_starts[k] : self.tag_starts[k + 1]])
            if piece not in known:
                known[piece] = msgspec.json.decode(piece[len(_TAG_KEY) : -1], type=str)
            tags.append(known[piece])
        return tags

    def without(self, gone: Sequence[int]) -> Block:
        """Return a copy in which the records `gone` (seqs) take no bytes."""
        missing = {seq - self.first_seq for seq in gone}
        body, starts = bytes(self.body), self.starts
        pieces = [b"" if i in missing else body[starts[i] : starts[i + 1]] for i in range(self.count)]
        copy = Block(self.first_seq, self.count, b"".join(pieces), array("I", accumulate(map(len, pieces), initial=0)))
        if self.tags is not None and self.tag_starts is not None:
            tags, at = bytes(self.tags), self.tag_starts
            kept = [b"" if i in missing else tags[at[i] : at[i + 1]] for i in range(self.count)]
            copy.tags, copy.tag_starts = b"".join(kept), array("I", accumulate(map(len, kept), initial=0))
        copy.meta_lens, copy.nodes, copy.node_ids, copy.pinned = self.meta_lens, self.nodes, self.node_ids, self.pinned
        return copy


def encode_block(
    first_seq: int,
    ts: int | Sequence[int],
    datas: Sequence[bytes],
    *,
    nodes: Sequence[str | None] | None = None,
    tags: Sequence[str | None] | None = None,
    metas: Sequence[bytes] | None = None,
) -> Block:
    """Encode records with contiguous seqs.

    `nodes`, `tags` and `metas` are None when no record has one, and have an empty item for a record without one. `ts`
    is one time (epoch ms) for all records, or one for each.
    """
    count = len(datas)
    if count == 1:
        return _encode_one(
            first_seq,
            ts if isinstance(ts, int) else ts[0],
            datas[0],
            nodes[0] if nodes else None,
            tags[0] if tags else None,
            metas[0] if metas else b"",
        )
    seqs = range(first_seq, first_seq + count)
    if nodes is None and metas is None and isinstance(ts, int):
        template = b'{"$seq":%%d,"$ts":%d,"data":%%b},' % ts
        arguments: list[object] = [None] * (2 * count)
        arguments[0::2] = seqs
        arguments[1::2] = datas
        body = (template * count) % tuple(arguments)
        fixed = len(template) - 4
        lengths = [fixed + digits + len(data) for digits, data in zip(_digits(seqs), datas, strict=True)]
        starts = array("I", accumulate(lengths, initial=0))
        block = Block(first_seq, count, body, starts)
    else:
        block = _encode_full(first_seq, [ts] * count if isinstance(ts, int) else ts, datas, nodes, metas)
    if tags is not None:
        texts = {tag: _TAG_TEXT % _json(tag) if tag else b"" for tag in set(tags)}
        pieces = [texts[tag] for tag in tags]
        block.tags, block.tag_starts = b"".join(pieces), array("I", accumulate(map(len, pieces), initial=0))
    return block


def _encode_one(seq: int, ts: int, data: bytes, node: str | None, tag: str | None, meta: bytes) -> Block:
    """Encode one record by itself, at half of the cost by columns."""
    node_text = _NODE_TEXT % _json(node) if node else b""
    meta_text = _META_TEXT % meta if meta else b""
    body = _RECORD % (seq, ts, node_text, data, meta_text)
    block = Block(seq, 1, body, array("I", (0, len(body))))
    if meta:
        block.meta_lens = array("I", (len(meta_text),))
    if node:
        block.nodes, block.node_ids = [node], array("H", (1,))
    if tag:
        block.tags = _TAG_TEXT % _json(tag)
        block.tag_starts = array("I", (0, len(block.tags)))
    return block


def _digits(ascending: Sequence[int]) -> Iterable[int]:
    """Return the number of digits of each number. They ascend, so nearly always all have the same number of digits."""
    if len(str(ascending[0])) == len(str(ascending[-1])):
        return repeat(len(str(ascending[0])), len(ascending))
    return map(len, map(str, ascending))


def _encode_full(
    first_seq: int,
    times: Sequence[int],
    datas: Sequence[bytes],
    nodes: Sequence[str | None] | None,
    metas: Sequence[bytes] | None,
) -> Block:
    count = len(datas)
    seqs = range(first_seq, first_seq + count)
    known: list[str] = []
    node_ids = None
    node_texts: Sequence[bytes] = (b"",) * count
    if nodes is not None:
        known = sorted(node for node in set(nodes) if node)
        number: dict[str | None, int] = {None: 0, "": 0, **{node: i for i, node in enumerate(known, 1)}}
        texts = [b"", *(_NODE_TEXT % _json(node) for node in known)]
        node_ids = array("H", [number[node] for node in nodes])
        node_texts = [texts[i] for i in node_ids]
    meta_texts: Sequence[bytes] = (b"",) * count
    if metas is not None:
        meta_texts = [_META_TEXT % meta if meta else b"" for meta in metas]
    # One format over the whole batch costs less than half as much as one for each record.
    arguments: list[object] = [None] * (5 * count)
    arguments[0::5], arguments[1::5], arguments[2::5] = seqs, times, node_texts
    arguments[3::5], arguments[4::5] = datas, meta_texts
    body = (_RECORD * count) % tuple(arguments)
    fixed = len(_RECORD) - 10
    numbers = map(add, _digits(seqs), _digits(times))
    texts_of = zip(numbers, map(len, node_texts), map(len, datas), map(len, meta_texts), strict=False)
    lengths = [fixed + a + b + c + d for a, b, c, d in texts_of]
    block = Block(first_seq, count, body, array("I", accumulate(lengths, initial=0)))
    if metas is not None:
        block.meta_lens = array("I", list(map(len, meta_texts)))
    if known:
        block.nodes, block.node_ids = known, node_ids
    return block


def block_with(blocks: Sequence[Block], seq: int) -> Block | None:
    """Return the one of `blocks` that covers `seq`, None for none. For blocks that a reader has loaded and the cache
    may have evicted."""
    for block in blocks:
        if block.first_seq <= seq <= block.last_seq:
            return block
    return None
