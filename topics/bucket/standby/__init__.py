"""A standby: a daemon that follows the rounds of another one (`docs/spec/bucket.md` section 6,
`docs/design/standby.md`).

directory      the directory of a standby at a start: going on with it, or making it from the newest base
unused_directory  what a crash of the machine in a first start leaves, which may be replaced
followed_log   the files of the log, which come piece by piece
handover       becoming the owner, and setting the directory of a former owner aside
diverged_note  the file in such a directory, which says how far the bucket has its log
shared_cut     the last cut that such a directory shares with the bucket
round_follower the task that applies round after round
announcement   the content of the object with which a standby tells of itself
announcer      the task that puts it
replica_look   who has a prefix: the owner, and the standbys that have told of themselves
"""
