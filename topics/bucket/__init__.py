"""The bucket: a second home of the data in object storage (`docs/spec/bucket.md`, `docs/design/bucket.md`).

object_store      what the daemon needs of an object storage, and the errors it may meet
object_names      the names of the objects below the prefix
container         the form that rounds, bases and packs have in common
round_format      the bytes of a round
base_format       the bytes of bases, pages and packs
owner_format      the content of `owner` and `FORMAT`
"""
