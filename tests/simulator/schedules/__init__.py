"""What the simulator knows of schedules: records that the daemon appends by the clock (`docs/spec/consumers.md` section
5).

schedule_plans   what is done with schedules, as part of a plan
schedule_rules   what clients know of them, what must not be fired, and what a start must show
schedule_steps   the client that makes schedules
"""
