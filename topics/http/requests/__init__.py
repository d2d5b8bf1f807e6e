"""What requests carry.

body_reader      bytes of a body, as they come
bodies           decoding and checking: topics, records, reads, deletions, routers
queue_requests   the same for queues
watch_requests   the same for watches
line_batches     the lines of an upload, in batches
"""
