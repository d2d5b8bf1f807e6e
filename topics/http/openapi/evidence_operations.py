"""The description of the calls about evidence, as in `description`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topics.http.openapi.operation import DAEMON, JSON, TOPICS, Answer, Operation, Parameter, ok
from topics.model import ConsistencyResult, EvidenceResult, InclusionResult

TEXT: Final = "text/plain; charset=utf-8"

EVIDENCE_OPERATIONS: Final[Mapping[str, Operation]] = {
    "evidence": Operation(
        TOPICS,
        "Signed checkpoint of a topic",
        "The size and the root of the Merkle tree over all records that the topic has had, signed: as the text of a "
        "signed note (C2SP), or as JSON if `Accept` names it. It covers what is on disk, and with a bucket in a round. "
        "Keep it where the daemon cannot change it.",
        {200: Answer("A checkpoint.", {TEXT: None, JSON: EvidenceResult})},
        codes=("topic_not_found", "no_evidence"),
    ),
    "inclusion": Operation(
        TOPICS,
        "Proof that a record is in a topic",
        "The audit path of RFC 6962 from the leaf of the record to the root of the first `size` leaves.",
        ok(InclusionResult, "The proof."),
        parameters=(
            Parameter("seq", "The seq of the record.", {"type": "integer", "minimum": 1}, required=True, example=1),
            Parameter("size", "The size of the tree; default: the present one.", {"type": "integer", "minimum": 1}),
        ),
        codes=("topic_not_found", "record_not_found", "no_evidence"),
    ),
    "consistency": Operation(
        TOPICS,
        "Proof that a topic has only grown",
        "The consistency proof of RFC 6962 between the trees of the first `from` and the first `to` leaves.",
        ok(ConsistencyResult, "The proof."),
        parameters=(
            Parameter("from", "The smaller size.", {"type": "integer", "minimum": 1}, required=True, example=1),
            Parameter("to", "The larger size; default: the present one.", {"type": "integer", "minimum": 1}),
        ),
        codes=("topic_not_found", "no_evidence"),
    ),
    "evidence_key": Operation(
        DAEMON,
        "Public key of checkpoints",
        "The key that signs checkpoints, as a verifier key of signed notes (C2SP). Made at the first call.",
        {200: Answer("The key, and a newline.", {TEXT: None})},
    ),
}
