"""The embedded sandbox: Linux namespaces and stacked overlays, without a daemon and without a package to install.

`LocalBackend` (in `backend`) is the entry; the modules from `zygote` downwards run in helper processes and use the
standard library only.
"""
