"""A directory that was restored, until it needs nothing of its restore any more (`docs/design/bucket.md` sections 6 and
8).

restore_note        from which bucket it was restored
topic_selection     which topics it is to keep
restore_completion  copies its segments home
"""
