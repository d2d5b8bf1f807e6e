"""`TopicsDataSource`, which is `format("topics")`: chooses who reads and who writes.

Spark makes one in a process of its own, pickles it with its options, and asks it for readers and writers in others. So
it does nothing but check the options, and what is not asked for is not imported.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from topics.spark.options import OptionError, ReadOptions, WriteOptions
from topics.spark.schema import columns_of, spark_schema

# Imported where they are needed: whoever writes needs no reader, and none of the two the files.
# ruff: noqa: PLC0415


class TopicsDataSource(DataSource):
    """Topics of a daemon (`url`), or what a directory of segment files holds of them (`path`). The options are those of
    `docs/pipeline.md`; each is checked as soon as Spark asks for anything."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        """What a read returns; raises OptionError. A write has the schema of what it is given."""
        return spark_schema(ReadOptions.parsed(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema)
        options.check_batch()
        if options.path is not None:
            from topics.spark.segments import segment_reader

            return segment_reader(options)
        from topics.spark.reading import rest_reader

        return rest_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._read_options(schema)
        options.check_streaming()
        from topics.spark.streaming import TopicsStreamReader

        return TopicsStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = WriteOptions.parsed(self.options)
        from topics.spark.writing import batch_writer

        return batch_writer(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = WriteOptions.parsed(self.options)
        from topics.spark.writing import stream_writer

        return stream_writer(options, schema, overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        """The options, for the schema that Spark wants: that of `schema()`, or one that the user gave, which narrows as
        `columns` does."""
        options = ReadOptions.parsed(self.options)
        try:
            columns = columns_of(schema)
        except ValueError as error:
            raise OptionError(str(error)) from None
        return options.narrowed(columns)
