"""The task of an assessor: what it says while it works, its verdict, and agents of ours that assess."""
