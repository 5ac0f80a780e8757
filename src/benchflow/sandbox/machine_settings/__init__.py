"""Settings of this machine that commands in sandboxes may use: certificates, proxies and package mirrors.

`allowance` says whether the user permits it, `collected` reads what the machine has and turns it into variables and
read-only mounts below `/dev` of a sandbox, which is part of no layer. Nothing of it gets into an image or a record.
"""
