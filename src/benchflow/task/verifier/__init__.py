"""`verifier.md` and the strategies it can declare."""
