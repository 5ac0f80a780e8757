"""What runs beside the local sandboxes, with their mounts and user ids: the zygote and the worker for files."""
