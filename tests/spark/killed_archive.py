"""A run of `archive` that ends by SIGKILL: as soon as Spark has begun a file (`writes`), after the first of the files
of its round was moved to its place (`moved`), or before anything is deleted (`deletes`).

The first is a driver with a JVM of its own, which goes with it. For the others a JVM that is there will do (see
`attached`): nothing that Spark does at that moment matters, and starting one takes longer than the test.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from topics.client import Client
from topics.spark.jobs import archive
from topics.spark.jobs.archive_files import ArchiveFiles
from topics.spark.session import DaemonAddress, register, spark_session

CHEAP_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def kill_myself(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_when_a_file_is_begun(root: Path) -> None:
    def watch() -> None:
        while not any((root / "_archive" / "work").rglob("*.parquet")):
            time.sleep(0.001)
        kill_myself()

    threading.Thread(target=watch, daemon=True).start()


def kill_after_the_first_move() -> None:
    move = ArchiveFiles._move

    def last_move(files: ArchiveFiles, source: Path, target: Path) -> None:
        move(files, source, target)
        kill_myself()

    ArchiveFiles._move = last_move  # type: ignore[method-assign, assignment]


@contextmanager
def attached() -> Iterator[SparkSession]:
    """A session of its own in the JVM that PYSPARK_GATEWAY_PORT names, where another one runs and shall not notice."""
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    sessions = gateway.jvm.org.apache.spark.sql.classic.SparkSession
    first = sessions.getDefaultSession().get()
    python = SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf()))
    spark = SparkSession(python, first.newSession())
    sessions.setDefaultSession(first)
    register(spark)
    yield spark


def main(moment: str, root: str, url: str, topic: str) -> None:
    if moment == "writes":
        kill_when_a_file_is_begun(Path(root))
    elif moment == "moved":
        kill_after_the_first_move()
    else:
        Client.delete_records = kill_myself  # type: ignore[assignment]
    session = (
        attached()
        if "PYSPARK_GATEWAY_PORT" in os.environ
        else spark_session("killed", master="local[2]", conf=CHEAP_JVM)
    )
    with session as spark:
        archive.run(spark, root, address=DaemonAddress(url), topics=[topic], delete=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
