"""Who asks, and from where.

key_access   the key of a request, its rights and its limits
origins      pages of browsers
"""
