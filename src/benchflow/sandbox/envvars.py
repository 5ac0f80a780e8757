"""Variables that a package takes from the machine it runs on.

A value that is exactly `${NAME}` or `${NAME:-default}` is replaced by a variable of the machine; every other
value is used unchanged. A variable that is neither set nor given a default stops the launch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from benchflow.errors import EnvironmentFailure

_TEMPLATE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)


def resolve_variables(
    values: Mapping[str, str], machine: Mapping[str, str], *, path: str = "environment.env"
) -> dict[str, str]:
    """`values` with the machine's variables filled in; a missing one is an `EnvironmentFailure`.

    An empty variable counts as missing for `${NAME:-default}` only, as in a shell.
    """
    return {name: _resolve(value, machine, f"{path}.{name}") for name, value in values.items()}


def _resolve(value: str, machine: Mapping[str, str], path: str) -> str:
    match = _TEMPLATE.fullmatch(value)
    if match is None:
        return value
    name, default = match[1], match[2]
    if default is not None:
        return machine.get(name) or default
    if name not in machine:
        message = f"{path} needs the variable {name}, which is not set on this machine."
        raise EnvironmentFailure(message, code="variable-missing", path=path)
    return machine[name]


def referenced_variables(values: Mapping[str, str]) -> frozenset[str]:
    """Names of the machine's variables that `values` take, for redaction and for asking before a run."""
    matches = (_TEMPLATE.fullmatch(value) for value in values.values())
    return frozenset(match[1] for match in matches if match)


def forward_variables(
    names: tuple[str, ...], machine: Mapping[str, str], *, path: str = "environment.forward_env"
) -> dict[str, str]:
    """The named variables of the machine; one that is not set is an `EnvironmentFailure`."""
    return resolve_variables({name: f"${{{name}}}" for name in names}, machine, path=path)
