"""What the simulator knows of groups: competing consumers of a log (`docs/spec/consumers.md` section 4).

group_plans   what is done with groups, as part of a plan
group_facts   what clients know of a group, and what a start shows of it
group_rules   what must not happen, and what a start must show
group_steps   the clients: those who make groups, and their members
"""
