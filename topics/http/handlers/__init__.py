"""The handlers of the calls.

data_plane      append and read; the table of the handlers that are called without Quart
control_plane   the calls that are not so frequent: topics, routers, deletion of records, the daemon itself
quart_app       the Quart-Trio application that they go through
bulk            exports and ingests
latest          the newest records of tags
raw_bytes       raw bytes: appending them, and giving them back
stages          stages and their commits
queues          claim, ack, nack, extend, and the stream `/work`
jobs            looking at jobs, retrying and cancelling them
consumers       named consumers
redrives        dead letters back to their queues
evidence        checkpoints and proofs
schedules       schedules
groups          groups of a log
streams         server-sent events
console         the files of the console
daemon_state    the caller's key, rates and latencies, the storage, open connections
states          the state of a topic, health and readiness
websocket       the WebSocket
transports      sending frames from an outbox on a connection
"""
