"""Topics with evidence (`docs/design/evidence.md`).

tree_growth     hashing what was published, in the background
evidence_calls  checkpoints and proofs
"""
