"""Whether the secrets that settings refer to are declared, and for the phase that uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchflow.errors import Issue
from benchflow.task.config.namespace import SECRET_SCOPES
from benchflow.task.document.task_document import TASK_MD
from benchflow.task.package import TaskPackage
from benchflow.task.verifier.declared_strategies import LeaderboardStrategy
from benchflow.task.verifier.verifier_document import VERIFIER_MD

_PULLING: Final = ("image-pull",)
_SCORING: Final = ("verifier", "judge")


def check_secrets(package: TaskPackage) -> Iterator[Issue]:
    """References to secrets that `benchflow.secrets` does not declare, or declares for another use."""
    references = list(_references(package))
    if not references:
        return
    declared: dict[str, set[str]] = {}
    for secret in package.document.namespace.secrets if package.document is not None else ():
        declared.setdefault(secret.name, set()).add(secret.scope)
    for file, path, name, scopes in references:
        found = declared.get(name)
        if found is None:
            message = f"{path} names the secret '{name[:60]}', which benchflow.secrets does not declare"
        elif found.isdisjoint(scopes):
            wanted = " or ".join(scopes)
            message = (
                f"{path} uses the secret '{name[:60]}', which is declared for {', '.join(sorted(found))}, not {wanted}"
            )
        else:
            continue
        yield Issue("undeclared-secret", "warning", path, message, file)


def _references(package: TaskPackage) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Each use of a secret: file, path, name, and the scopes that it may be declared with."""
    namespace = package.document.namespace if package.document is not None else None
    if namespace is not None and namespace.declared:
        mounts = namespace.runtime_policy.private_mounts if namespace.runtime_policy is not None else ()
        for index, mount in enumerate(mounts):
            if mount.secret_ref is not None:
                path = f"benchflow.runtime_policy.private_mounts[{index}].secret_ref"
                yield TASK_MD, path, mount.secret_ref, SECRET_SCOPES
        images = namespace.provenance.images if namespace.provenance is not None else ()
        for index, image in enumerate(images):
            if image.credential_secret_ref is not None:
                path = f"benchflow.provenance.images[{index}].credential_secret_ref"
                yield TASK_MD, path, image.credential_secret_ref, _PULLING
    if package.verifier_document is not None:
        file = f"{package.verifier_dir}/{VERIFIER_MD}"
        for name, strategy in package.verifier_document.strategies.items():
            if isinstance(strategy, LeaderboardStrategy) and strategy.secret is not None:
                yield file, f"verifier.strategies.{name}.secret", strategy.secret, _SCORING
