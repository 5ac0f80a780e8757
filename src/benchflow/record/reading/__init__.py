"""What readers derive from records: steps of a trajectory, why a reward is not full, what running rollouts do."""
