"""The cold directory.

identity         which cold directory belongs to which data directory
cold_store       a segment store whose calls end, even if the store behind it hangs
cold_directory   the daemon's cold directory: finding out if it is ours, and using it
"""
