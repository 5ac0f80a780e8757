"""Task packages: author, check, run in sandboxes, verify, evaluate.

The names below are imported when they are first used, so that a command pays only for what it needs.
"""
