"""Access control.

key_access   the key of a request, its rights and its limits
origins      requests that pages of other origins make a browser send
"""
