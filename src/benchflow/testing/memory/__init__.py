"""A sandbox without processes or disk, for tests of what uses sandboxes."""
