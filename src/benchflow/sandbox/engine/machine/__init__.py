"""The container engine on this machine: its command line, what it can do, its images, and who owns what on it."""
