"""Bytes on disks. `docs/storage.md` describes the formats and their promises.

files/         the file system interface, the layout of the data directory, its free space, its witness
wal/           frames, and the shard writers that append them
segments/      sealed records: format, reader, store
evidence/      the leaves of Merkle trees
cache/         blocks and index columns that were read from files
snapshots/     snapshots, manifests, the mark of the window clock
recovery/      from a directory to topics: replay, damage, verdicts, salvage
cold/          the cold directory: its owner, and calls that may hang
store          one data directory held open by the daemon
maintenance/   checkpoints, reclaiming, relocation
offline/       inspect, verify, and readers without a daemon
"""
