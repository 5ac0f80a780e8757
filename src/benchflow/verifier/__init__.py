"""Verification: runs the verifier of a package on what an agent left and ends in a verdict."""

from benchflow.verifier.verifier import Verification, Verifier

__all__ = ["Verification", "Verifier"]
