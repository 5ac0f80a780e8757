"""Errors of verifiers in stating a reward.

VerifierFailure (category verifier)
└── RewardError     reward-missing    no reward was written
                    reward-mismatch   two statements of one reward disagree
                    reward-invalid    a reward that is not valid
"""

from __future__ import annotations

from benchflow.errors import VerifierFailure


class RewardError(VerifierFailure):
    """A reward that cannot be used; it never becomes a number."""

    default_code = "reward-invalid"
