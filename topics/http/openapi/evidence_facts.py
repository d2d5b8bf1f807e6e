"""The meaning of the fields of the answers about evidence, as in `field_facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from topics.http.openapi.fact import Fact, seq
from topics.model import ConsistencyResult, EvidenceResult, InclusionResult

EVIDENCE_FACTS: Final[Mapping[type[Struct], Mapping[str, Fact]]] = {
    EvidenceResult: {
        "origin": Fact("The name of the log: `topics/<uuid of the tree>/<topic>/<epoch>`."),
        "start_seq": seq("The seq of the first leaf."),
        "size": seq("The number of leaves: that of the seqs since `start_seq`."),
        "root": Fact("The root of the tree, base64."),
        "note": Fact("The signed note."),
    },
    InclusionResult: {
        "seq": seq("The seq of the record."),
        "index": seq("The number of the leaf, from 0."),
        "size": seq("The size of the tree."),
        "leaf": Fact("The leaf of the record, base64."),
        "hashes": Fact("The audit path, from the leaf upwards, base64."),
    },
    ConsistencyResult: {
        "from": seq("The smaller size."),
        "to": seq("The larger size."),
        "hashes": Fact("The proof, in the order of RFC 6962, base64."),
    },
}
