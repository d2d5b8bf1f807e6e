"""The calls about evidence (`docs/spec/evidence.md` section 1). As `topics.client.calls` is, without I/O; the functions
are methods of both clients."""

from __future__ import annotations

from topics.client import evidence_results as results
from topics.client.calls import ClientCall, target, topic_path


def evidence(topic: str) -> ClientCall[results.Evidence]:
    """A signed checkpoint of the Merkle tree of a topic. Raises Conflict if the topic has no evidence."""
    return ClientCall(method="GET", target=topic_path(topic, "evidence"), answer=results.Evidence, repeatable=True)


def inclusion(topic: str, seq: int, *, size: int | None = None) -> ClientCall[results.Inclusion]:
    """The proof that the record with this seq is among the first `size` leaves of the tree; None: among all of them.

    Raises NotFound if it is not, and Conflict if the topic has no evidence.
    """
    where = target(topic_path(topic, "evidence", "inclusion"), seq=seq, size=size)
    return ClientCall(method="GET", target=where, answer=results.Inclusion, repeatable=True)


def consistency(topic: str, first: int, second: int | None = None) -> ClientCall[results.Consistency]:
    """The proof that the tree of the first `first` leaves is the beginning of the tree of the first `second`; None: of
    the present tree. Raises Conflict if the topic has no evidence."""
    where = target(topic_path(topic, "evidence", "consistency"), **{"from": first, "to": second})
    return ClientCall(method="GET", target=where, answer=results.Consistency, repeatable=True)


def evidence_key() -> ClientCall[str]:
    """The public key that verifies checkpoints, as a verifier key of signed notes."""
    return ClientCall(method="GET", target="/v0/evidence/key", answer=str, accept="text/plain", repeatable=True)
