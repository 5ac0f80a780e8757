"""Services that scripts start with the command `docker`: with a container engine, or in sandboxes without one."""
