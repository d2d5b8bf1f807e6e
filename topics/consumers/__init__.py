"""Named consumers of a topic: positions that the daemon stores, and their owners. Pure.

consumers         the consumers of one topic, and every decision about them
consumer_events   the events that change a consumer, and their form in the log
"""
