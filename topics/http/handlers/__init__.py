"""The calls.

data_plane      append, read, queues and streams, without Quart
control_plane   everything else, with Quart
bulk            exports and ingests
stages          stages and their commits
queues          claim, ack, nack, extend, and `/work`
streams         server-sent events
websocket       the WebSocket
transports      how frames get from an outbox to a connection
"""
