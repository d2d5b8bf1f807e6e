"""The bucket: a second home of the data in object storage (`docs/spec/bucket.md`, `docs/design/bucket.md`).

object_store      what the daemon needs of an object storage, and the errors that it may meet
bucket_location   where the bucket is: the setting, and the provider's variables
file_objects      a store in a directory
obstore_objects   a store in S3, GCS or Azure, by the library obstore
obstore_errors    what the library's exceptions mean
bounded_objects   a store whose calls end, even if the store behind it hangs
settled_puts      puts whose outcome is known in the end, whatever answers are lost
proof             the proof that a store honours conditions
object_names      the names of the objects below the prefix
container         the form that rounds, bases and packs have in common
round_format      the bytes of a round
base_format       the bytes of bases, pages and packs
local_note        what the data directory knows of its bucket
log_cuts          cuts of the log, and what counts when the bucket has one
log_reader        the bytes of the log that rounds carry
place             behind which round the archive goes on
place_search      finding the place at which the archive goes on
backlog           how much log is kept for the bucket
archive           the task that writes rounds
pin_format        the content of pins
pins              making, renewing and removing pins
bucket_segments   the cold store: segments that are read from objects of bases
ownership/        who may write to the prefix
restored/         directories that were restored, until they need nothing more
bases/            making bases, and removing what nobody needs any more
standby/          following the rounds of another daemon
repair/           repairing local damage from the bucket
offline/          restores and checks, without a daemon

**Theory of operation.** A store of objects gives the daemon two operations from which agreement between machines is
built: put an object only if there is none of this name, and put it only if the object that is there has a given ETag.
Nothing else here is atomic, and no consensus is written here. Everything above relies on three things:

1. The store honours the two conditions: `proof` tries it out at each start.
2. Each answer is decided. The network loses answers, so an answer that is lost, late, or may be about an earlier
   attempt is decided by reading the object back (`settled_puts`). The bytes that are put contain a nonce of the
   process, so equal bytes are its own.
3. No call holds up anything but itself. The library and the kernel may block for ever, so each call runs in a thread
   of its own, has a deadline, and holds one of a bounded number of places when it is given up (`bounded_objects`).

A store is put together as `BoundedObjects(open_objects(location, timeout_s), offload, timeout_s)`, and given to
`SettledPuts`. Its repetitions are the only ones: the library repeats nothing.

Decisions, and what was rejected:

- **A store of our own for directories.** The library's local store syncs neither files nor directories, so that an
  object that was read back may be gone after a crash of the machine; and it has no conditional put.
- **No put in parts.** Conditions hold for whole puts in every store; objects that are put by condition are small. A
  segment larger than what a single put takes (5 GiB in S3) does not exist.
- **ETags of GCS are generations**, which is what its conditional put compares.
- **Errors are classified by status and code, and the library's texts are dropped**: they repeat answers, in which there
  may be session tokens and signatures. This is why the library's version is pinned.
- **The library's own repetitions** were rejected: they would repeat a conditional put whose answer was lost, and report
  "exists" about the process's own object.
"""
