"""Routers: from one topic to another, by filter. Pure.

router         a router's configuration
router_state   a router as its dest keeps it
router_graph   which router leads where, and which new ones are refused
origin_set     which original records a dest has taken already
"""
