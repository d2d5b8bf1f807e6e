"""Caches of data that was read from files, bounded in bytes.

payload_cache   blocks of records
index_cache     index columns and tags
read_windows    bytes of objects that were read ahead
span_loader     loading columns into the cache, off the loop
"""
