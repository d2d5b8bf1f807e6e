"""Judging the records of an append by the schema of their topic (`docs/spec/consumers.md` section 6).

The library holds the interpreter while it judges. So large batches, and batches whose bound of work is high, are judged
in pieces, each in its own turn (`docs/design/turns.md`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from topics.errors import ApiError, schema_violation
from topics.runtime.turns import TURN_BYTES, Turns
from topics.schemas.record_schema import RecordSchema, ready
from topics.schemas.schema_walk import BadSchema


def usable(schema: msgspec.Raw) -> RecordSchema:
    """Return a topic's schema, ready for use. Raises `422 schema_violation` if this version no longer accepts it: then
    no record can be judged."""
    try:
        return ready(bytes(schema))
    except BadSchema as error:
        raise ApiError("schema_violation", f"the schema of the topic cannot be used: {error}") from None


async def check_records(
    schema: msgspec.Raw, datas: Sequence[bytes], turns: Turns, *, shares_step: bool = False
) -> bool:
    """Check the data of all records. Return True if other tasks have run meanwhile; then the caller has to repeat its
    other checks. `shares_step`: the caller checks other batches in the same step, so each of them takes a turn. Raises
    `422 schema_violation` about the first record that breaks the schema."""
    checker = usable(schema)
    end, share = checker.piece(datas, 0)
    waits = shares_step or end < len(datas)
    start = 0
    while start < len(datas):
        if waits:
            await turns.take(int(share * TURN_BYTES) + 1)
        found = checker.first_violation(datas, start, end)
        if found is not None:
            record, (path, message) = found
            raise schema_violation(record, path, message)
        start = end
        end, share = checker.piece(datas, end)
    return waits
