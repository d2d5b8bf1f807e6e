"""HTTP/1.1, HTTP/2 and WebSockets: subclasses of hypercorn's protocols and of the libraries below them, which correct
them. Nothing is patched in place.

All uses of members of hypercorn, h11, h2 and hpack that are not public are in this package.
`docs/design/hypercorn.md` lists them, and a test notices when a release changes one.

    handed_over        a connection that the lane hands over
    negotiation        which protocol a connection speaks
    http1              HTTP/1.1
    http2              HTTP/2
    websocket_stream   WebSockets over either
    request_checks     checks of request heads for all protocols; pure
    asgi_exchange      the exchange of a request that hypercorn serves
"""
