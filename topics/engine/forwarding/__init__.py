"""Routers at work. Their configuration and their graph are in `topics.routing`.

router_lifecycle   creating, updating and deleting routers
forwarders         the forwarders of all routers, and when each may go on
forwarder          the state of one router at work
source_columns     the records that a router takes from its source
copy_commits       one commit of a router: copies, a hole, or only its cursor
"""
