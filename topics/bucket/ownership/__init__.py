"""Who may write to the prefix (`docs/spec/bucket.md` section 3, `docs/design/replication.md`).

owner_format    the content of `owner` and `FORMAT`; pure
lease           how long an owner may act, by its own clock; pure
owner_watch     when another daemon may take the prefix, by its own clock; pure
lease_keeper    the thread that renews the lease
owner_object    the object `owner`: taking it, naming a recent round, giving it up
bucket_access   is this the bucket that was meant, and is it fit
takeover        waiting for the prefix, taking it, and the fencing round
start_claim     what a starting daemon does to become the owner, before it recovers anything
"""
