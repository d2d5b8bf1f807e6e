"""Moving dead letters back to where they came from (`docs/spec/consumers.md` section 5, `docs/design/redrive.md`).

letters        what the meta of a dead letter says, and the record without it
letter_moves   moves given letters, each exactly once
dead_jobs      retries dead jobs of one queue or group
redrives       the calls, and the task that moves all letters of a topic
"""
