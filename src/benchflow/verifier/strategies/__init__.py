"""The strategies by type: each module's `score` takes a `Run` and returns a verdict.

Plugins add types in the entry-point group `benchflow.verifier_strategies`; an entry point is such a function.
"""
