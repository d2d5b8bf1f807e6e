"""What requests carry.

body_reader       bytes of a body, as they come
json_checks       JSON with errors that name the field, and the limits of every body
query_strings     parameters of requests
append_requests   appends and uploads
read_requests     reads and exports
topic_requests    topics, routers, deletions, commits of stages
queue_requests    the same for queues
watch_requests    the same for watches
line_batches      the lines of an upload, in batches
"""
