"""What runs in a local sandbox: its first process and what that starts, with their messages. Standard library only."""
