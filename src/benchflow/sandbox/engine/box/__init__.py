"""One running container and what goes in and out of it: commands, files and processes, all through the anchor."""
