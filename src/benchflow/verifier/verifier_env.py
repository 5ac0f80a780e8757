"""The variables and secrets of a verifier, in its scope only and never recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchflow.errors import EnvironmentFailure
from benchflow.files.redaction import Redactor
from benchflow.sandbox.envvars import referenced_variables, resolve_variables
from benchflow.verifier.scope import Scope

_SCOPES: Final = ("verifier", "judge")


@dataclass(frozen=True, slots=True)
class VerifierVariables:
    """The variables of a verifier, and those whose values must not be recorded."""

    values: Mapping[str, str] = field(repr=False)
    secret: Mapping[str, str] = field(repr=False)

    def redact(self, text: str) -> str:
        """A text without secret values."""
        return Redactor(self.secret.values()).text(text)


def verifier_variables(scope: Scope, machine: Mapping[str, str]) -> VerifierVariables:
    """Variables of `verifier.env` and the secrets of verifier and judge, from the machine that runs them.

    A required variable that is not set is an `EnvironmentFailure` (`variable-missing`).
    """
    values = resolve_variables(scope.config.env, machine, path="verifier.env")
    taken = referenced_variables(scope.config.env)
    secret = {name: machine[name] for name in taken if name in machine}
    for item in scope.view.namespace.secrets:
        if item.scope not in _SCOPES:
            continue
        name = item.env or item.name
        if name in machine:
            values.setdefault(name, machine[name])
            secret[name] = machine[name]
        elif item.required:
            message = f"benchflow.secrets needs the variable {name}, which is not set on this machine."
            raise EnvironmentFailure(message, code="variable-missing", path="benchflow.secrets")
    return VerifierVariables(values, secret)


def pinned_variables(plugins: Iterable[str] = ()) -> dict[str, str]:
    """Variables of every verifier command: they disable code in repositories and set the allowed plugins."""
    settings = {"safe.directory": "*", "core.fsmonitor": "false", "core.hooksPath": "/dev/null"}
    pinned = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        pinned |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    allowed = " ".join(f"-p {name}" for name in plugins)
    return pinned | ({"PYTEST_ADDOPTS": allowed} if allowed else {})
