"""Routers: from one topic to another, by filter. Pure.

router         a router's configuration
router_state   a router as its dest keeps it
router_graph   which router leads where, and which further one is refused
origin_set     which originals a dest has taken already
"""
