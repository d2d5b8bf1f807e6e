"""Which records filters let through: each is decoded and looked at by itself (`tests.filters.oracle`)."""

from __future__ import annotations

import msgspec

from tests.filters import oracle
from tests.filters.oracle import Written
from tests.simulation.model import Record

Filters = tuple[str, ...]
"""JSON of filters, all of which have to match."""


def lets_through(filters: Filters, record: Written) -> bool:
    """Whether all of them match a record."""
    return all(oracle.matches(oracle.decoded(text), record) for text in filters)


def written(record: Record) -> Written:
    """A record as a reader got it."""
    row = msgspec.json.decode(record.body, type=dict[str, msgspec.Raw])
    tag, node = (msgspec.json.decode(row[key]) if key in row else None for key in ("$tag", "$node"))
    return Written(bytes(row["data"]), tag, node, bytes(row["meta"]) if "meta" in row else None)
