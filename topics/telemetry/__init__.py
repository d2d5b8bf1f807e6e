"""What the daemon tells operators: log lines, the audit log and figures.

logs          the set-up of logging, and what every line keeps to
log_lines     one line, as JSON or for a terminal
log_writer    the way of lines to stderr, which never holds up a task
credentials   blanking credentials in texts
audit_log     one JSON line for each control-plane call and deletion
audit_rate    how many refused calls get a line of their own
figures       plain figures for /v0/metrics, without formatting
"""
