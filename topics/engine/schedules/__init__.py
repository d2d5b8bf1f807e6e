"""Schedules that run (`docs/design/schedules.md`): the calls, and the task that fires.

running_schedule   what is on its way of one schedule: a change, a firing
schedule_commits   definitions, as frames of shard 0
firings            the task that appends what is due
schedule_calls     put, get, list, delete, run, pause, resume
"""
