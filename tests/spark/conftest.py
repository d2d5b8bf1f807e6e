"""One Spark session for all of these tests, and daemons for it to talk to.

A JVM takes seconds of processor time to start, so there is one, on `local[2]`, without a UI, started by the first test
that asks for it. It and everything that it writes is gone at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import SparkSession

from tests.client.ports import free_port
from tests.conformance.client import Client, Daemon, fresh_name
from tests.spark.cluster import cluster

__all__ = ["cluster"]  # a fixture for these tests, too

ROOT = Path(__file__).parents[2]
JVM_ENDS_WITHIN_S = 60.0

LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""


class StartDaemon(Protocol):
    def __call__(self, **settings: object) -> Daemon:
        """Start one with these `TOPICS_*` settings and return when it is ready. It is killed after the test."""


def settings_of_a_session(root: Path) -> dict[str, str]:
    """What every session of these tests is configured with; what it writes is below `root`."""
    (root / "log4j2.properties").write_text(LOG4J)
    java = f"-Dlog4j2.configurationFile={root}/log4j2.properties -Dderby.system.home={root} -Djava.io.tmpdir={root}"
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.local.dir": str(root / "local"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{java} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.pollingDelay": "20ms",
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. A test that changes its configuration restores it."""
    root = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        patch.delenv("SPARK_HOME", raising=False)
        builder = SparkSession.builder.master("local[2]").appName("tests")
        for name, value in settings_of_a_session(root).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    gateway = session.sparkContext._gateway
    assert gateway is not None
    try:
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        # The JVM ends when the pipe that it was started with is closed.
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(JVM_ENDS_WITHIN_S)
        finally:
            gateway.proc.kill()
            type(session.sparkContext)._gateway = type(session.sparkContext)._jvm = None


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all of these tests: for those that leave it as it is."""
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), port=free_port())
    try:
        daemon.start().close()
        yield daemon
    finally:
        daemon.kill()


@pytest.fixture(scope="session")
def http(daemon: Daemon) -> Iterator[Client]:
    """What the shared daemon is filled and asked with, by nothing but the wire contract."""
    with Client(daemon) as client:
        yield client


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """Daemons of one test alone; the port stays over restarts."""
    daemons: list[Daemon] = []

    def start(**settings: object) -> Daemon:
        root = tmp_path / fresh_name("daemon")
        root.mkdir()
        daemon = Daemon(root, port=free_port(), **settings)
        daemons.append(daemon)
        daemon.start().close()
        return daemon

    yield start
    for daemon in daemons:
        daemon.kill()


@pytest.fixture
def topic() -> str:
    """A name that no topic has yet."""
    return fresh_name("topic")
