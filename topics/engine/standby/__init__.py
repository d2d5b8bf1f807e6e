"""A running engine that follows the log of another one (`docs/design/standby.md`).

topic_views    the live topics in the form in which replay changes topics, and bringing them back
live_columns   columns of stored records that replay needs, out of the daemon's cache
copy_sources   the bytes of copies whose sources are in files that only the owner has
live_replay    applies what the log has got, in one step of the loop
key_expiry     forgets the keys whose window is over
"""
