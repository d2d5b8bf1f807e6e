"""Spark reads and writes topics (`docs/pipeline.md`): a data source for batches and streams, and jobs made of it.

    source            `format("topics")`: who reads and who writes
    options, schema   its options; the rows that a topic is to Spark
    plan              partitions, offsets, and losses
    pushdown          filters that an export can apply
    batch_reader      batches over REST
    stream_reader     streams over REST
    partition_fetch   one partition over REST
    segments          the reader of files
    segment_columns   one segment as Arrow columns
    bucket_access     a bucket that is open: which base, and its pin
    bucket_segments   the reader of buckets
    column_filter     which rows of columns a filter matches
    writers           batches and streams into topics; `records` encodes the rows
    records           rows to lines
    session, secrets, needs   shared by jobs: Spark, the key, required packages
    errors            how a query fails
    jobs/             archive, restore, load, rollup, audit

It stands on `topics.client`, `topics.filters` and the readers of segment files and buckets, never on the daemon. What
is named here is what may be relied on; each is loaded when it is first used, so that a missing pyspark is one sentence
(`topics.spark.needs`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.spark.errors import DaemonError as DaemonError
    from topics.spark.errors import DataLoss as DataLoss
    from topics.spark.options import OptionError as OptionError
    from topics.spark.schema import SCHEMA as SCHEMA
    from topics.spark.source import TopicsDataSource as TopicsDataSource

_PLACE_OF = {
    "DaemonError": "errors",
    "DataLoss": "errors",
    "OptionError": "options",
    "SCHEMA": "schema",
    "TopicsDataSource": "source",
}

__all__ = list(_PLACE_OF)


def __getattr__(name: str) -> Any:
    place = _PLACE_OF.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from topics.spark import needs  # noqa: PLC0415 - every module of this package loads this one

    needs.check_packages()
    value = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    globals()[name] = value
    return value
