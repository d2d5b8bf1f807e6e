"""Which topic is served next, and the measures under pressure.

priority    the effective priority of a topic
ready_set   the topics that wait, and which of them is next; pure
audience    the consumers of one topic, and which of them are due
workers     the tasks that serve topics in that order
pressure    how loaded the daemon is, and which measures follow; pure
governor    the task that measures pressure and takes the measures
"""
