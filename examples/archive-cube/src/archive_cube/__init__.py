"""A cube in which an agent searches an archive for a fact."""
