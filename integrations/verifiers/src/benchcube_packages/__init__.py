"""A verifiers (v1) taskset of benchcube packages: a folder or bundle of them, or a server that offers them.

    vf-eval benchcube-packages --env.taskset.root tasks
    vf-validate benchcube-packages --taskset.root tasks --runtime.type subprocess

Every rollout is a session of a server (`bench serve ors`), which is started for a `root`. Tools act in the sandbox of
the package, and its own verifier scores the work. Work without a score is an error of its trace, never 0.
"""

from benchcube_packages.taskset import PackagesConfig, PackagesTaskset, PackageTask

__all__ = ["PackageTask", "PackagesConfig", "PackagesTaskset"]
