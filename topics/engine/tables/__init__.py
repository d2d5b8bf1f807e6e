"""Topics that keep the newest records of each tag (`docs/spec/evidence.md` section 3, `docs/design/latest.md`).

kept_records    what an append takes away: deciding it, its frame, its publication
table_builder   the table of a topic, out of its records: after a start, and when `keep_per_tag` is set
table_trim      taking away what existing records have too many
null_expiry     taking away records whose data is null, after their time
latest_reads    the newest records of tags, for readers
"""
