"""The leaves of Merkle trees on disk (`docs/design/evidence.md`).

frame_leaves   the leaves of records in frames of the log
leaf_files     the byte layout of `.mrk`, and the names of these files
key_file       the key that signs checkpoints
leaf_hashes    hashing the leaves of records that were published
leaf_reader    the leaves and subtrees of one topic, from its files and from memory
leaf_writer    what a checkpoint writes of the leaves of a topic
leaf_checkpoint what a checkpoint of topics makes durable of their leaves
"""
