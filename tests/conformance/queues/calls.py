"""The calls of a queue, as the tests here make them."""

from __future__ import annotations

from typing import Any

CALLS: dict[str, dict[str, Any]] = {
    "claim": {"node": "n"},
    "ack": {"node": "n", "seqs": [1]},
    "nack": {"node": "n", "seqs": [1]},
    "extend": {"node": "n", "seqs": [1], "lease_ms": 1000},
}
BY_SEQS = ["ack", "nack", "extend"]


def skipped(answer: Any) -> list[int]:
    """The seqs that a call skipped, which has done nothing else."""
    done = {name: answer[name] for name in ("acked", "nacked", "extended") if name in answer}
    assert list(done.values()) == [0], done
    assert answer.get("deadlines", {}) == {}
    return sorted(answer["skipped"])
