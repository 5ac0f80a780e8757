"""Benchmarks as one file, and packages that lie elsewhere: bundles, Harbor registry files, the cache of both.

A bundle is a canonical zip archive (`zip_layout`) with an index of everything in it (`bundle_index`). `bundle_writing`
makes one, `bundle_reading` opens one, `harbor_registry` and `git_commits` fetch what a registry names, and
`kept_packages` puts single packages into the user's cache, where they are folders like any other.
"""
