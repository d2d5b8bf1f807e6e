"""The mutations that `scripts/mutate` tries, subsystem by subsystem. See `mutation` for what one is.

Each breaks a promise: a change that nobody could ever notice is not in here. Where code that is mutated changes, so
does its entry; a test sees to it that all of them still fit.

log_writes   the log and the writing of it
directories  the data directory, and the reserves of seqs
snapshots    checkpoints, and what a start makes of them and of the log
segments     segments: how they are written, rewritten, moved, and what is evicted
packing      packed segments
evidence     Merkle trees
routers      routers
groups       groups of a log
queues       queues and what makes their jobs
appends      stages, keys of appends, classes of durability
conditions   conditions, fences, transactions, consumers
schedules    schedules
tables       the newest records of each tag
reading      reads, filters, raw bytes
delivery     watchers, streams and sockets
pressure     what bounds the load, and turns
takeover     owners of a bucket, takeover, standbys
"""

from __future__ import annotations

from typing import Final

from mutating.table.appends import CLASSES, IDEMPOTENCY, STAGING
from mutating.table.conditions import CONDITIONS
from mutating.table.delivery import DELIVERY, SOCKETS
from mutating.table.directories import CEILINGS, DIRECTORIES
from mutating.table.evidence import EVIDENCE
from mutating.table.groups import GROUPS
from mutating.table.log_writes import WAL
from mutating.table.packing import PACKING
from mutating.table.pressure import PRESSURE, TURNS
from mutating.table.queues import QUEUES
from mutating.table.reading import FILTERS, RAW_BYTES, READING
from mutating.table.routers import ROUTERS
from mutating.table.schedules import SCHEDULES
from mutating.table.segments import EVICTION, RECLAIMER, RELOCATOR, SEGMENTS
from mutating.table.snapshots import CHECKPOINT, RECOVERY
from mutating.table.tables import TABLES
from mutating.table.takeover import TAKEOVER

MUTATIONS: Final = (
    *WAL,
    *DIRECTORIES,
    *CEILINGS,
    *EVICTION,
    *FILTERS,
    *RAW_BYTES,
    *CHECKPOINT,
    *RECOVERY,
    *RECLAIMER,
    *SEGMENTS,
    *RELOCATOR,
    *PACKING,
    *EVIDENCE,
    *ROUTERS,
    *QUEUES,
    *GROUPS,
    *STAGING,
    *CONDITIONS,
    *SCHEDULES,
    *TABLES,
    *IDEMPOTENCY,
    *CLASSES,
    *READING,
    *DELIVERY,
    *PRESSURE,
    *TURNS,
    *SOCKETS,
    *TAKEOVER,
)
"""All of them."""
