"""What several files say of logs, compared: no two of them may have different roots for one size of one log, and a log
that was seen before must be the beginning of the log that is shown now.

One signed checkpoint proves nothing about another one. The owner of the key can sign two logs of one name; only a
consistency proof, or the same size, shows that two checkpoints are of one log. Pure: the caller verifies a checkpoint
or a proof before it adds it.
"""

from __future__ import annotations

from collections import defaultdict

from topics.evidence.checkpoint_note import TreeHead
from topics.evidence.merkle import EMPTY_ROOT


class LogClaims:
    """Checkpoints, and the proofs between them."""

    def __init__(self) -> None:
        self._sources: defaultdict[tuple[str, int], dict[bytes, str]] = defaultdict(dict)
        """Where each root of a log at a size was seen first."""
        self._later: defaultdict[TreeHead, set[TreeHead]] = defaultdict(set)

    def add(self, head: TreeHead, source: str) -> None:
        """Take a checkpoint. `source` says where it is, for people."""
        self._sources[head.origin, head.size].setdefault(head.root, source)

    def add_growth(self, earlier: TreeHead, later: TreeHead) -> None:
        """Take a proof that one checkpoint is the beginning of another."""
        self._later[earlier].add(later)

    def contradiction(self, head: TreeHead) -> str | None:
        """Return a sentence that names two sources which cannot both be true of the log of a checkpoint at its size."""
        found = list(self._sources[head.origin, head.size].values())
        if len(found) < 2:
            return None
        return (
            f"{found[0]} and {found[1]} have different roots for the same {head.size} records of {head.origin}: two "
            f"logs were signed, or one was rewritten"
        )

    def is_beginning(self, earlier: TreeHead, later: TreeHead) -> bool:
        """Return True if the proofs show that one checkpoint is the beginning of another: they are the same, or there
        is a proof, or one over further checkpoints."""
        if earlier.origin == later.origin and not earlier.size:
            return earlier.root == EMPTY_ROOT
        reached, left = {earlier}, [earlier]
        while left:
            found = self._later[left.pop()] - reached
            reached |= found
            left += found
        return later in reached
