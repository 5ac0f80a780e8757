"""The embedded sandbox: Linux namespaces and stacked overlays, without a daemon and without a package to install.

`LocalBackend` (in `local_backend`) is the entry. These modules run in the driver, `beside` and `inside` in helper
processes.
"""
