"""The rows that a topic is to Spark: the schema, as Spark and as Arrow has it, narrowed to what is asked for.

Responsible for names and types only. All columns may be null as far as Spark knows; a row of a gap has a topic and the
columns of gaps, and nothing else.
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
"""Of a record, in the order of the schema."""

GAP_COLUMNS: Final = tuple(name for name, _, _ in _GAP)
"""What `tombstones=true` adds."""

_SPARK: Final = {name: spark for name, spark, _ in _RECORD + _GAP}
_ARROW: Final = {name: arrow for name, _, arrow in _RECORD + _GAP}


def spark_schema(columns: Iterable[str]) -> StructType:
    """The schema of these columns, in this order."""
    return StructType([StructField(name, _SPARK[name]) for name in columns])


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """The same as Arrow has it, exactly as Spark compares it with what a reader returns."""
    return pa.schema([(name, _ARROW[name]) for name in columns])


SCHEMA: Final = spark_schema(COLUMNS)
"""Of a read without the options `columns` and `tombstones`."""


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that somebody gave to `spark.read.schema`. Raises ValueError for one that is not there,
    or is of another type."""
    for column in schema:
        kind = _SPARK.get(column.name)
        if kind is None:
            raise ValueError(f"schema: there is no column {column.name!r}; there are {', '.join(_SPARK)}")
        if column.dataType.simpleString() != kind.simpleString():
            raise ValueError(
                f"schema: the column {column.name!r} is {kind.simpleString()}, not {column.dataType.simpleString()}"
            )
    return tuple(schema.names)
