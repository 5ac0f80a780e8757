"""What commands say about one rollout, what they ask during it, and a shell where it would run."""
