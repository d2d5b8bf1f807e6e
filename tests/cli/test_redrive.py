"""`topics queue redrive`."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.canned import CannedDaemon, InProcess


def state(word: str, **more: Any) -> dict[str, Any]:
    return {"topic": "d", "state": word, "moved": 0, "left": 0, "reasons": {}, "error": None, **more}


def test_a_redrive_is_begun_watched_and_stopped(here: InProcess, canned: CannedDaemon) -> None:
    canned.on("POST", "/v0/topics/d/redrive", state("running"))
    canned.on("GET", "/v0/topics/d/redrive", state("done", moved=1200, left=3, reasons={"full": 2, "no_origin": 1}))
    canned.on("DELETE", "/v0/topics/d/redrive", state("stopped", moved=7))
    done = here("queue", "redrive", "d", "--to", "q", "--max", "5", "--filter", 'tag = "x"')
    assert (done.code, done.out) == (0, "running: 0 moved\n")
    assert canned.asked[0].body == {"to": "q", "max": 5, "filter": ["tag", "Eq", "x"]}
    done = here("queue", "redrive", "d", "--wait", "--rate", '{"jobs": 1, "per_ms": 9}')
    assert (done.code, done.out) == (1, "done: 1,200 moved, 3 left (2 full, 1 no origin)\n")
    assert canned.asked[1].body == {"rate": {"jobs": 1, "per_ms": 9}}
    assert here("queue", "redrive", "d", "--state").out == "done: 1,200 moved, 3 left (2 full, 1 no origin)\n"
    assert json.loads(here("queue", "redrive", "d", "--stop", "--json").out)["moved"] == 7


def test_a_redrive_that_has_failed_says_why(here: InProcess, canned: CannedDaemon) -> None:
    error = {"code": "read_only", "message": "no room"}
    canned.on("GET", "/v0/topics/d/redrive", state("failed", moved=2, error=error))
    done = here("queue", "redrive", "d", "--state")
    assert (done.code, done.out) == (1, "failed: 2 moved\n")
    assert "read_only: no room" in done.err


def test_what_does_not_go_together(here: InProcess, canned: CannedDaemon) -> None:
    for options in (["--state", "--stop"], ["--stop", "--max", "1"], ["--state", "--to", "q"]):
        done = here("queue", "redrive", "d", *options)
        assert done.code == 2
    assert not canned.asked
