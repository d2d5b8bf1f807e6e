"""The pipeline's demonstration, with a part of the flights: it checks itself, so here it has to be content."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
CHEAP_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.mark.slow
def test_flights_are_loaded_watched_rolled_up_archived_restored_audited_and_drawn(tmp_path: Path) -> None:
    chart, scratch = tmp_path / "delays.png", tmp_path / "scratch"
    scratch.mkdir()
    environ = {"PYTHONPATH": str(SCRIPTS), "TMPDIR": str(scratch), "JDK_JAVA_OPTIONS": CHEAP_JVM, "COLUMNS": "200"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pipeline_demonstration",
            "--flights",
            "3000",
            "--chart",
            str(chart),
            "--master",
            "local[2]",
        ],
        env={name: text for name, text in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))} | environ,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for said in (
        "load: 3,000 flights",
        "loaded again under the same job id: nothing was added",
        "rollup: 3,000 flights",
        "agree with what pandas computes",
        "archive: 3,000 flights",
        "restore: into flights-again, the same records",
        "audit: ",
        "all of it agrees",
    ):
        assert said in done.stdout
    image = chart.read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) > 20_000
    assert [path.name for path in scratch.iterdir() if path.name.startswith("topics-")] == []
