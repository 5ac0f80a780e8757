"""Looking at rollouts, in the terminal and in a browser; what is asked during one, and a shell where it would run."""
