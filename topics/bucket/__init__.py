"""The bucket: a second home of the data in object storage (`docs/spec/bucket.md`).

object_store      what the daemon needs of an object storage, and the errors it may meet
"""
