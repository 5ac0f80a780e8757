"""Summaries of jobs, typed: what `summary.json` says."""
