"""Deliberately broken builds, and which proofs notice them: `scripts/mutate` (`docs/design/proof.md`)."""
