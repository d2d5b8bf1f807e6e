"""`TopicsDataSource`, which is `format("topics")`: chooses the reader or writer for the options.

Spark makes one in a process of its own, pickles it with its options, and asks it for readers and writers in other
processes. So it only checks the options, and imports a reader or writer when it is asked for one.
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

# Imported where they are needed: a writer needs no reader, and neither needs the reader of files.
# ruff: noqa: PLC0415


class TopicsDataSource(DataSource):
    """The topics of a daemon (`url`), or of a directory of segment files or a bucket (`path`). The options are those of
    `docs/pipeline.md`; all of them are checked when Spark first asks for anything."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType:
        """The schema of a read. Raises OptionError. A write has the schema of its rows."""
        return spark_schema(ReadOptions.parsed(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema)
        options.check_batch()
        if options.path is not None:
            from topics.spark.bucket_segments import reader_of_path

            return reader_of_path(options)
        from topics.spark.batch_reader import rest_reader

        return rest_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._read_options(schema)
        options.check_streaming()
        from topics.spark.stream_reader import TopicsStreamReader

        return TopicsStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = WriteOptions.parsed(self.options)
        from topics.spark.writers import batch_writer

        return batch_writer(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = WriteOptions.parsed(self.options)
        from topics.spark.writers import stream_writer

        return stream_writer(options, schema, overwrite)

    def _read_options(self, schema: StructType) -> ReadOptions:
        """The options for the schema that Spark asks for: that of `schema()`, or one that the user has given, which
        narrows the columns as `columns` does."""
        options = ReadOptions.parsed(self.options)
        try:
            columns = columns_of(schema)
        except ValueError as error:
            raise OptionError(str(error)) from None
        return options.narrowed(columns)
