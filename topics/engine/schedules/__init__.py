"""Schedules that run (`docs/design/schedules.md`): the calls, and the task that fires.

running_schedule   the change or firing of one schedule that is on its way
schedule_commits   definitions, as frames of shard 0
firings            the task that appends records at their times
schedule_calls     put, get, list, delete, run, pause, resume
"""
