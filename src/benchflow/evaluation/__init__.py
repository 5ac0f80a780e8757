"""Many rollouts: jobs, their store on disk, resume, statistics."""
