"""Topics that keep the newest records of each tag (`docs/spec/evidence.md` section 3, `docs/design/latest.md`).

kept_records       what an append takes away: deciding it, its frame, its publication
topic_tables       the table of each topic, after a start and when `keep_per_tag` is changed
table_builder      making a table out of the records of a topic
table_trim         taking away what existing records have too many
scattered_records  loading records that are far apart
"""
