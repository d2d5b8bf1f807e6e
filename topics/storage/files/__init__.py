"""The file system and the data directory.

fs               the file system operations that storage needs, and the real implementation
datadir          where every file is; FORMAT and LOCK
file_header      the header of log and segment files, and the seed of their checksums
swapped_files    replacing a damaged file by a repaired copy
unsynced_files   files that stay open until a sync has covered them
free_space       bytes and inodes: when appends are refused
witness          the proof that the page cache has survived
mounts           what the kernel says of a mount
read_only_fs     a file system for commands that must not change anything
progress         how many of the bytes have been read
"""
