"""The schema of a topic's rows, for Spark and for Arrow, narrowed to the columns that are asked for.

Responsible for names and types only. For Spark all columns are nullable; the row of a gap has only the topic and the
columns of gaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType, TimestampType

_RECORD: Final = (
    ("topic", StringType(), pa.string()),
    ("seq", LongType(), pa.int64()),
    ("ts", TimestampType(), pa.timestamp("us", "UTC")),
    ("node", StringType(), pa.string()),
    ("tag", StringType(), pa.string()),
    ("meta", MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    ("data", StringType(), pa.string()),
)
_GAP: Final = (
    ("gap_from", LongType(), pa.int64()),
    ("gap_to", LongType(), pa.int64()),
    ("reason", StringType(), pa.string()),
)

COLUMNS: Final = tuple(name for name, _, _ in _RECORD)
"""The columns of a record, in the order of the schema."""

GAP_COLUMNS: Final = tuple(name for name, _, _ in _GAP)
"""The columns that `tombstones=true` adds."""

_SPARK: Final = {name: spark for name, spark, _ in _RECORD + _GAP}
_ARROW: Final = {name: arrow for name, _, arrow in _RECORD + _GAP}


def spark_schema(columns: Iterable[str]) -> StructType:
    """The schema of these columns for Spark, in this order."""
    return StructType([StructField(name, _SPARK[name]) for name in columns])


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """The schema of these columns for Arrow, with which Spark compares the batches of a reader."""
    return pa.schema([(name, _ARROW[name]) for name in columns])


SCHEMA: Final = spark_schema(COLUMNS)
"""The schema of a read without the options `columns` and `tombstones`."""


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a user has given to `spark.read.schema`. Raises ValueError for a column that does
    not exist or has another type."""
    for column in schema:
        kind = _SPARK.get(column.name)
        if kind is None:
            raise ValueError(f"schema: there is no column {column.name!r}; there are {', '.join(_SPARK)}")
        if column.dataType.simpleString() != kind.simpleString():
            raise ValueError(
                f"schema: the column {column.name!r} is {kind.simpleString()}, not {column.dataType.simpleString()}"
            )
    return tuple(schema.names)
