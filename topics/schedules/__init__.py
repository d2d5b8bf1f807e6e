"""Schedules: records that the daemon appends by the clock. Pure but for the calendar: no event loop, and no clock.

timetable         at which times a schedule is due: cron in a time zone, or every so many milliseconds
schedule_events   the events that change schedules, and their form in the log
schedules         the schedules, and every decision about them
"""
