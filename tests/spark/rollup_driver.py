"""A rollup in a process of its own, to be killed: a few batches and a trigger that does not end."""

from __future__ import annotations

import sys

import msgspec

from tests.spark.killed_archive import CHEAP_JVM
from topics.spark.jobs import rollup
from topics.spark.session import DaemonAddress, spark_session


def main(spec: str, checkpoint: str, url: str, topic: str, target: str, parquet: str) -> None:
    with spark_session("killed", master="local[2]", conf=CHEAP_JVM) as spark:
        rollup.run(
            spark,
            msgspec.json.decode(spec, type=rollup.Rollup),
            checkpoint,
            address=DaemonAddress(url),
            sinks=rollup.Sinks(topic=target, parquet=parquet),
            source={"topic": topic, "maxRecordsPerTrigger": "2000"},
            trigger_ms=1,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
