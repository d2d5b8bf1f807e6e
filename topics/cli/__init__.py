"""The `topics` command: one module for each group of commands, loaded when one of them is named (`topics.cli.app`)."""
