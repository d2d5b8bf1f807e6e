"""Commands on a directory without a daemon.

verify_command     `topics verify`
inspect_command    `topics inspect`
divergence_report  `topics inspect --diverged`: a directory that was set aside
directory_look     common options, opening a directory, progress
"""
