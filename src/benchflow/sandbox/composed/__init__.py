"""Several services from a compose file: what the file says, with images, for every backend."""
