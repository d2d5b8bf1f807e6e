"""Spark looks for modules whose names begin with `pyspark_` and registers what they call `DefaultSource`: with this one
installed, `format("topics")` needs no `spark.dataSource.register`."""

from topics.spark.source import TopicsDataSource as DefaultSource

__all__ = ["DefaultSource"]
