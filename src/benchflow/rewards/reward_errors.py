"""What a verifier can get wrong about a reward.

VerifierFailure (category verifier)
└── RewardError     reward-missing    no reward was written
                    reward-mismatch   two statements of one reward disagree
                    reward-invalid    a reward that breaks the contract
"""

from __future__ import annotations

from benchflow.errors import VerifierFailure


class RewardError(VerifierFailure):
    """A reward that cannot be taken; it never becomes a number."""

    default_code = "reward-invalid"
