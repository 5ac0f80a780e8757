"""The programs of verifiers, watched: what they look for by themselves."""
