"""The demonstration of the bucket, with a part of the flights: it checks itself, so here it has to be content."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.slow
def test_flights_are_loaded_lost_restored_taken_over_and_compared(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": str(SCRIPTS), "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "bucket_demonstration", "--flights", "10000", "--server", "moto"],
        env={name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")} | environ,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for said in (
        "10,000 flights, 10 batches",
        "paused after 3 batches: the bucket has them",
        "killed, and the data directory removed",
        "restored in",
        "acked after the last round are lost",
        "started on it with --take",
        "then one tombstone",
        "read back and compared: 10,000 seqs",
        "0 damages",
        "restored to the moment of the pause",
        "3,000 flights, byte for byte",
        "all of it agrees",
    ):
        assert said in done.stdout
    assert list(tmp_path.iterdir()) == []
