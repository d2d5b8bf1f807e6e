"""Reading, decoding and checking the bodies and queries of requests.

body_reader           receiving bodies within the limits on memory and time
json_checks           decoding JSON with errors that name the field, and the limits for every body
query_strings         reading query parameters
condition_requests    conditions of appends and commits
append_requests       bodies of appends, lines of uploads
job_fields            the fields of records that are about jobs
raw_appends           raw bytes as the body of an append
body_outline          finding the large values of a body in steps
record_slices         decoding the records of large appends in slices
transaction_requests  appends to several topics
filter_fields         filters of reads
read_requests         reads and exports
latest_requests       the newest records of tags
topic_requests        topics, routers, deletions, commits of stages
redrive_requests      which dead letters are moved back, and how
queue_requests        claims, acks, nacks, extensions, pauses, work streams
job_requests          lists of jobs, retries, cancellations
consumer_requests     named consumers
schedule_requests     schedules
group_requests        groups of a log
evidence_requests    proofs
watch_requests        watches, streams and subscriptions
line_batches          dividing the lines of an upload into batches
"""
