"""Sockets and protocols, below the meaning of any request.

server           listening, accepting, draining
protocols/       HTTP/1.1, HTTP/2 and WebSockets: hypercorn with what it lacks
hosts            hosts and targets of requests: which are well formed
connection       one accepted connection
hangups          peers that have ended their side
unsent_bytes     bytes of answers that wait to be sent
message_buffer   a WebSocket message while its fragments come in
patience         how long is waited for the rest of a body
"""
