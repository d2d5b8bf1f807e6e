"""The first session of `docs/pipeline.md`, pasted as it stands there on a daemon without keys."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import StartDaemon, settings_of_a_session
from topics.client import Client, NewRecord

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"
URL = "http://127.0.0.1:4000"
CHECKPOINTS = "/srv/checkpoints/late"


def notebook() -> list[str]:
    """The Python of the first section."""
    section = PAGE.read_text().partition("## 1. ")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def test_the_notebook_runs_and_warns_of_nothing(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    blocks = notebook()
    assert len(blocks) == 3
    assert "tokenEnv" not in blocks[0]
    with Client(daemon.url) as client:
        rows = [(10, "JFK"), (80, "JFK"), (90, "LGA")]
        flights = [{"dep_delay": delay, "origin": origin} for delay, origin in rows]
        client.append("flights", [NewRecord(flight, tag=f"UA:{n}") for n, flight in enumerate(flights)])
        pasted = "\n".join(blocks).replace(URL, daemon.url).replace(CHECKPOINTS, str(tmp_path / "checkpoints"))
        (tmp_path / "notebook.py").write_text(pasted)
        # What Spark writes beside it, and how much of the machine it takes; it does not ask the network for its name.
        settings = settings_of_a_session(tmp_path)
        arguments = " ".join(f"--conf '{name}={value}'" for name, value in settings.items())
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environ["PYSPARK_SUBMIT_ARGS"] = f"{arguments} pyspark-shell"
        done = subprocess.run(
            [sys.executable, "notebook.py"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        shown = dict(re.findall(r"^\|\s*(JFK|LGA)\s*\|\s*([\d.]+)\s*\|$", done.stdout, re.MULTILINE))
        assert shown == {"JFK": "45.0", "LGA": "90.0"}
        assert "regist" not in done.stderr, done.stderr
        assert client.state("flights.means").count == 3
        assert client.state("flights.late").count == 2


def test_nothing_in_the_notebook_registers_what_is_found() -> None:
    assert not [block for block in notebook() if ".register(" in block]
