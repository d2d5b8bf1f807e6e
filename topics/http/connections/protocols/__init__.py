"""HTTP/1.1, HTTP/2 and WebSockets: hypercorn's protocols, and the libraries below them, with what they lack.

Everything that the daemon takes from hypercorn, h11, h2 and hpack beyond their public interfaces is in this package and
in `server`; `docs/design/hypercorn.md` lists each member, and a test notices when a release changes one.

    negotiation        which protocol a connection speaks
    http1              HTTP/1.1
    http2              HTTP/2
    websocket_stream   WebSockets over either
    request_checks     checks of heads that all share; pure
    stream_access      what handlers may do with a stream beyond ASGI

Nothing is patched in place: these are subclasses.
"""
