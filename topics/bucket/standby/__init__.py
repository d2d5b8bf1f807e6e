"""A standby: a daemon that follows the rounds of another one (`docs/spec/bucket.md` section 6,
`docs/design/standby.md`).

directory       the directory of a standby at a start: going on with it, or making it from the newest base
followed_log    the files of the log, which come piece by piece
presence        what it tells of itself in the bucket
presence_format the content of that
handover        becoming the owner, and setting the directory of a former owner aside
round_follower  the task that applies round after round
"""
