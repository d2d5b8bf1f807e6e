"""Topics with evidence (`docs/design/evidence.md`).

tree_growth     hashing published records, in the background
evidence_calls  checkpoints and proofs
"""
