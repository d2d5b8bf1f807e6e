"""The table: every operation that writes, of all features.

The rows are next to the scripts they run, by what they are about; this is where they come together. A new operation of
the product is a new row in one of these modules, and `test_table` fails until it is there.
"""

from __future__ import annotations

from typing import Final

from tests.crash.completion_operations import COMPLETION_OPERATIONS
from tests.crash.condition_operations import CONDITION_OPERATIONS
from tests.crash.consumer_operations import CONSUMER_OPERATIONS
from tests.crash.copy_operations import COPY_OPERATIONS
from tests.crash.evidence_operations import EVIDENCE_OPERATIONS
from tests.crash.group_operations import GROUP_OPERATIONS
from tests.crash.job_operations import JOB_OPERATIONS
from tests.crash.redrive_operations import REDRIVE_OPERATIONS
from tests.crash.rows import Operation
from tests.crash.salvage_operations import SALVAGE_OPERATIONS
from tests.crash.schedule_operations import SCHEDULE_OPERATIONS
from tests.crash.segment_operations import FILE_OPERATIONS
from tests.crash.stage_operations import STAGE_OPERATIONS
from tests.crash.table_operations import TABLE_OPERATIONS
from tests.crash.topic_operations import LOG_OPERATIONS
from tests.crash.transaction_operations import TRANSACTION_OPERATIONS

OPERATIONS: Final[tuple[Operation, ...]] = (
    *LOG_OPERATIONS,
    *FILE_OPERATIONS,
    *COPY_OPERATIONS,
    *JOB_OPERATIONS,
    *COMPLETION_OPERATIONS,
    *STAGE_OPERATIONS,
    *CONDITION_OPERATIONS,
    *CONSUMER_OPERATIONS,
    *GROUP_OPERATIONS,
    *TRANSACTION_OPERATIONS,
    *REDRIVE_OPERATIONS,
    *SCHEDULE_OPERATIONS,
    *EVIDENCE_OPERATIONS,
    *TABLE_OPERATIONS,
    *SALVAGE_OPERATIONS,
)
