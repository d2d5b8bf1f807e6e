"""Asks a filter about records that are columns: which rows of a file match.

The filter is the daemon's own (`topics.filters`), so that files and REST agree. Each row is asked in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from topics.filters.record_filter import Filter
from topics.raw_bytes import content_type_of


def columns_asked(wanted: Filter) -> set[str]:
    """The columns that `matching` needs."""
    return {"tag", "node"} | ({"meta"} if wanted.uses_meta else set()) | ({"data"} if wanted.uses_data else set())


def matching(wanted: Filter, table: pa.Table) -> pa.Array:
    """Return for each row whether the filter matches it, as booleans. `table` has the columns of `columns_asked`."""
    row, matches = _Row(wanted, table), wanted.matches

    def is_match(place: int) -> bool:
        row.place = place
        return matches(row)

    return pa.array(map(is_match, range(table.num_rows)), pa.bool_(), size=table.num_rows)


class _Row:
    """The row that a filter is asked about; `place` moves."""

    __slots__ = ("_datas", "_metas", "_nodes", "_tags", "place")

    def __init__(self, wanted: Filter, table: pa.Table) -> None:
        self.place = 0
        self._tags: Sequence[str | None] = table.column("tag").to_pylist()
        self._nodes: Sequence[str | None] = table.column("node").to_pylist()
        self._metas = table.column("meta") if wanted.uses_meta else None
        self._datas = table.column("data").cast(pa.binary()) if wanted.uses_data else None

    @property
    def tag(self) -> str | None:
        return self._tags[self.place]

    @property
    def node(self) -> str | None:
        return self._nodes[self.place]

    @property
    def meta(self) -> bytes | None:
        assert self._metas is not None
        found = self._metas[self.place].as_py()
        return None if found is None else msgspec.json.encode(dict(found))

    @property
    def data(self) -> bytes | None:
        assert self._datas is not None
        found: bytes | None = self._datas[self.place].as_py()
        # Raw bytes have no JSON for filters, as in the daemon.
        return None if found is None or content_type_of(found) is not None else found
