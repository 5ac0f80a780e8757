"""Verification: runs the verifier of a package on the state an agent left, and returns a verdict."""

from benchflow.verifier.verifier import Verification, Verifier

__all__ = ["Verification", "Verifier"]
