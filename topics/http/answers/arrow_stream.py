"""Encoding exports as Arrow streams (`docs/spec/pipeline.md` section 1): runs of records become record batches. Gaps
and the end of the export are batches without rows, with metadata.

This is the only module of the daemon that needs pyarrow, which is an optional dependency. `topics.http.handlers.bulk`
imports it in a thread, because that takes most of a second (`load`), and handles its absence.

Columns are made without looking at single records: Arrow cuts the JSON of a run at known places. The length of the head
of a record depends only on the digits of its seq and its time. Seqs ascend and times never decrease, so if the heads of
the first and the last record of a batch are equally long, all of them are. That is nearly always so.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate, chain
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.engine.operations.export import ExportEnd, ExportRequest, ExportSlice
from topics.engine.record_collector import BlockRun

CONTENT_TYPE: Final = b"application/vnd.apache.arrow.stream"

SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.map_(pa.string(), pa.string())),
        ("data", pa.string()),
    ]
)

_HEAD: Final = re.compile(rb'\{"\$seq":(\d+),"\$ts":(\d+)')
_HEAD_PATTERN: Final = r'^\{"\$seq":(?P<seq>\d+),"\$ts":(?P<ts>\d+)'
_SEQ_AT: Final = len(b'{"$seq":')
_TS_KEY: Final = len(b',"$ts":')
_DATA_KEY: Final = b',"data":'
_META_KEY: Final = len(b',"meta":')
_TAG_QUOTED: Final = len(b'"$tag":')
_RECORD_END: Final = len(b"},")
_METAS: Final = msgspec.json.Decoder(list[dict[str, str]])


def load() -> None:
    """Make pyarrow load the modules that it would load on first use (pandas, if it is installed)."""
    pa.array(["x"], pa.string())


class ArrowStream:
    """The encoder of one export (an `ExportFormat` of `topics.http.handlers.bulk`)."""

    content_type = CONTENT_TYPE

    def __init__(self, request: ExportRequest) -> None:
        self._request = request
        self._written = BytesIO()
        self._writer = pa.ipc.new_stream(self._written, SCHEMA)

    def piece(self, piece: ExportSlice) -> bytes:
        """The bytes of a slice; the first ones begin with the schema."""
        if piece.tombstone is not None:
            self._say("$tombstone", piece.tombstone)
        if piece.runs:
            self._writer.write_batch(record_batch(piece.runs, self._request))
        return self._taken()

    def end(self, end: ExportEnd) -> bytes:
        """The last batch, and the end of the stream."""
        self._say("$end", end._asdict())
        self._writer.close()
        return self._taken()

    def _say(self, name: str, value: Any) -> None:
        empty = pa.RecordBatch.from_pylist([], SCHEMA)
        self._writer.write_batch(empty, custom_metadata={name: msgspec.json.encode(value)})

    def _taken(self) -> bytes:
        written = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return written


def record_batch(runs: Sequence[BlockRun], request: ExportRequest) -> pa.RecordBatch:
    """The record batch of some runs. A column that the request leaves out has nulls."""
    columns = _ArrowColumns(runs)
    seq, ts = columns.numbers()
    arrays = [
        seq,
        ts.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
        columns.nodes(),
        columns.tags() if request.include_tags else None,
        columns.metas() if request.include_meta else None,
        columns.datas() if request.include_data else None,
    ]
    full = [
        pa.nulls(columns.count, field.type) if column is None else column
        for column, field in zip(arrays, SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(full, schema=SCHEMA)


class _ArrowColumns:
    """Makes the columns of some runs. A method returns None if no record has a value in its column."""

    def __init__(self, runs: Sequence[BlockRun]) -> None:
        self._runs = runs
        self._text = b",".join([*(run.text for run in runs), b""])
        self._offsets = _joined_offsets([run.starts for run in runs])
        self.count = len(self._offsets) - 1
        self._records = _binary(self._offsets, self._text)
        first, last = _HEAD.match(self._text), _HEAD.match(self._text, self._offsets[-2].as_py())
        assert first is not None
        assert last is not None
        widths = [len(first[1]), len(first[2])]
        self._widths = widths if widths == [len(last[1]), len(last[2])] else None
        """The number of digits of the seqs and of the times, if they are the same for all records; else None."""
        self._has_nodes = any(run.node_ids is not None for run in runs)
        self._meta_lens: array[int] | None = None
        if any(run.meta_lens is not None for run in runs):
            self._meta_lens = array("I")
            for run in runs:
                self._meta_lens.extend(run.meta_lens or array("I", bytes(4 * (len(run.starts) - 1))))

    def numbers(self) -> tuple[Any, Any]:
        """The columns of seqs and of times (ms since the epoch)."""
        if self._widths is None:
            heads = pc.extract_regex(self._records, _HEAD_PATTERN)
            seqs, times = (pc.struct_field(heads, name) for name in ("seq", "ts"))
        else:
            seq_end = _SEQ_AT + self._widths[0]
            ts_at = seq_end + _TS_KEY
            seqs = pc.binary_slice(self._records, _SEQ_AT, seq_end)
            times = pc.binary_slice(self._records, ts_at, ts_at + self._widths[1])
        return seqs.view(pa.string()).cast(pa.int64()), times.view(pa.string()).cast(pa.int64())

    def datas(self) -> Any:
        """The column of the JSON texts of `data`."""
        head: Any
        if self._widths is not None and not self._has_nodes:
            head = _SEQ_AT + _TS_KEY + sum(self._widths)
            if self._meta_lens is None:
                return pc.binary_slice(self._records, head + len(_DATA_KEY), -_RECORD_END).view(pa.string())
            head = pa.scalar(head, pa.int32())
        else:
            # A quote within `$node` is escaped, so the first text that looks like the key is the key.
            head = pc.find_substring(self._records, _DATA_KEY)
        begins = pc.add(pc.add(self._offsets[:-1], head), pa.scalar(len(_DATA_KEY), pa.int32()))
        ends = pc.subtract(self._offsets[1:], pa.scalar(_RECORD_END, pa.int32()))
        if self._meta_lens is not None:
            ends = pc.subtract(ends, _int32(self._meta_lens))
        # Begin and end of each value, in turn: cut there, every second piece is a value.
        places = array("i", bytes(8 * self.count))
        places[0::2], places[1::2] = _ints(begins), _ints(ends)
        pieces = _binary(_int32(places), self._text)
        return pieces.take(_int32(array("i", range(0, 2 * self.count, 2)))).view(pa.string())

    def nodes(self) -> Any | None:
        """The column of the nodes (writers)."""
        if not self._has_nodes:
            return None
        column: list[str | None] = []
        for run in self._runs:
            if run.node_ids is None:
                column += [None] * (len(run.starts) - 1)
            else:
                names = (None, *run.nodes)
                column += [names[number] for number in run.node_ids]
        return pa.array(column, pa.string())

    def tags(self) -> Any | None:
        """The column of the tags."""
        if all(run.tag_starts is None for run in self._runs):
            return None
        nothing = (array("I", bytes(4 * len(run.starts))) for run in self._runs)
        starts = [run.tag_starts or none for run, none in zip(self._runs, nothing, strict=True)]
        offsets, text = _joined_offsets(starts), b"".join([run.tags for run in self._runs])
        there = pc.not_equal(pc.subtract(offsets[1:], offsets[:-1]), 0).buffers()[1]
        whole = _binary(offsets, text)
        if b"\\" not in text:
            bare = pc.binary_slice(whole, _TAG_QUOTED + 1, -2)
            return pa.Array.from_buffers(pa.string(), self.count, [there, *bare.buffers()[1:]])
        known = pc.binary_slice(whole, _TAG_QUOTED, -1).dictionary_encode()
        distinct = [msgspec.json.decode(tag, type=str) if tag else None for tag in known.dictionary.to_pylist()]
        return pa.array(distinct, pa.string()).take(known.indices)

    def metas(self) -> Any | None:
        """The column of the `meta` maps."""
        if self._meta_lens is None:
            return None
        text, end_of = self._text, _ints(self._offsets[1:])
        texts = [
            text[end - _RECORD_END - size + _META_KEY : end - _RECORD_END]
            for end, size in zip(end_of, self._meta_lens, strict=True)
            if size
        ]
        metas = _METAS.decode(b"[%b]" % b",".join(texts))
        counts = iter(map(len, metas))
        counts_of_all = counts if len(metas) == self.count else (next(counts) if n else 0 for n in self._meta_lens)
        offsets = _int32(array("i", accumulate(counts_of_all, initial=0)))
        keys = pa.array(list(chain.from_iterable(metas)), pa.string())
        values = pa.array(list(chain.from_iterable(map(dict.values, metas))), pa.string())
        kind = SCHEMA.field("meta").type
        entries = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
        there = pc.not_equal(_int32(self._meta_lens), 0).buffers()[1]
        return pa.Array.from_buffers(kind, self.count, [there, offsets.buffers()[1]], children=[entries])


def _joined_offsets(runs: Sequence[array[int]]) -> Any:
    """The offsets of the items, and the end of the last one, in the joined texts of some runs."""
    begins, ends = array("I"), array("I")
    for starts in runs:
        begins += starts[:-1]
        ends += starts[1:]
    lengths = pc.subtract(_int32(ends), _int32(begins))
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _binary(offsets: Any, text: bytes) -> Any:
    """The pieces of a text between consecutive offsets."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, offsets.buffers()[1], pa.py_buffer(text)])


def _int32(values: array[int]) -> Any:
    """A column of numbers that fit into 31 bits, without a copy."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])


def _ints(column: Any) -> array[int]:
    """The numbers in a column of int32 without nulls."""
    values = array("i")
    values.frombytes(memoryview(column.buffers()[1])[4 * column.offset : 4 * (column.offset + len(column))])
    return values
