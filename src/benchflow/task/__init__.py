"""Task packages: the standard, pure, without execution."""
