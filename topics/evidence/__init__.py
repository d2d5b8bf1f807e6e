"""Merkle evidence: the proof that a topic was not rewritten (`docs/spec/evidence.md` section 1). Pure.

record_leaf     the leaf of a record
merkle          trees as in RFC 6962: nodes, roots, and trees that grow at the right edge
proofs          proofs of inclusion and consistency: making and checking them
topic_tree      the tree of one live topic
signed_note     signed notes (C2SP) and their keys
checkpoint_note the text of a checkpoint
proof_file      a record, its proof and its checkpoint in one file
log_claims      checkpoints and proofs of several files, compared
"""
