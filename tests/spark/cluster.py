"""A standalone master with two workers on loopback, as the tests of more than one executor need it.

The workers stand on two addresses of loopback: Spark starts no speculative attempt on the host of the first. Each has a
core, so a job has two executors at most. Everything is ended by its process group, executors and their Python workers
included.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from tests.client.ports import free_port

ROOT = Path(__file__).parents[2]
HOSTS = ("127.0.0.1", "127.0.0.2")
STARTS_WITHIN_S = 120.0
JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@dataclass(frozen=True)
class Cluster:
    """`url` is the `spark://` address for a session's master."""

    url: str


def environ_of_spark() -> dict[str, str]:
    """What a driver, a worker and its executors find in their environment: this package, this Python, loopback."""
    return os.environ | {
        "SPARK_SCALA_VERSION": "2.13",  # which Spark's own scripts would find out
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, without applications. It serves one at a time."""
    root = tmp_path_factory.mktemp("cluster")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(_start(root / "master", "127.0.0.1", "master.Master", "--port", str(port)))
        _until_said(root / "master", "I have been elected leader", processes[0])
        for number, host in enumerate(HOSTS):
            place = root / f"worker-{number}"
            work = ("--cores", "1", "--memory", "1g", "--work-dir", str(place / "work"), "--port", "0", url)
            processes.append(_start(place, host, "worker.Worker", *work))
        for number, process in enumerate(processes[1:]):
            _until_said(root / f"worker-{number}", "Successfully registered with master", process)
        yield Cluster(url)
    finally:
        for process in reversed(processes):
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that was started as the leader of its group, with what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def _start(place: Path, host: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    place.mkdir()
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    environ = environ_of_spark()
    environ["SPARK_LOCAL_IP"] = host
    jars = str(Path(environ["SPARK_HOME"], "jars", "*"))
    with (place / "log").open("wb") as log:
        return subprocess.Popen(
            [
                java,
                *JAVA,
                "-cp",
                jars,
                f"org.apache.spark.deploy.{name}",
                "--host",
                host,
                "--webui-port",
                "0",
                *arguments,
            ],
            env=environ,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _until_said(place: Path, what: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a log has a line with `what`."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while what not in (text := (place / "log").read_text(errors="replace")):
        assert process.poll() is None, f"{place.name} has ended: {text[-3000:]}"
        assert time.monotonic() < deadline, f"{place.name} does not start: {text[-3000:]}"
        time.sleep(0.05)
