"""Objects that the bucket should have and has not: somebody has removed them, or the store has lost them, or has said
that it had taken them.

Rounds are looked for when a base is made that needs them, by names alone: one list for each thousand. Without one of
them no restore from this base is possible, so a history begins. Packs and segments are looked for by the collector,
which lists them anyway.
"""

from __future__ import annotations

from functools import partial

from topics.bucket.object_names import ROUNDS, number_of, round_name
from topics.bucket.object_store import MAX_PAGE, ObjectStore
from topics.runtime.offload import Offload, Pool


async def missing_round(objects: ObjectStore, offload: Offload, first: int, last: int) -> int | None:
    """Return the number of the first round among these that is missing, None if all are there. Raises StoreError."""
    wanted, after = first, round_name(first - 1) if first else ROUNDS
    while wanted <= last:
        page = await offload.run(Pool.BUCKET_READ, partial(objects.list, ROUNDS, after))
        for facts in page:
            number = number_of(facts.name)
            if number is None or number < wanted:
                continue
            if number > wanted:
                return wanted
            wanted += 1
        if len(page) < MAX_PAGE:
            break
        after = page[-1].name
    return wanted if wanted <= last else None
