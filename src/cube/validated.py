"""Configs that stay valid, and named configs that keep their declared values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from pydantic import ConfigDict

from cube.typed import TypedBaseModel

T = TypeVar("T")


class ValidatedConfig(TypedBaseModel, defer_build=True):
    """A config whose fields are validated when they are assigned, not only when it is created."""

    model_config = ConfigDict(validate_assignment=True)


class ConfigRegistry(Mapping[str, T]):
    """Named configs. A look-up returns a copy: changing it changes neither the registry nor another copy."""

    def __init__(self, configs: Mapping[str, T]) -> None:
        self._configs = {name: _copy(config) for name, config in configs.items()}

    def __getitem__(self, name: str) -> T:
        try:
            return _copy(self._configs[name])
        except KeyError:
            raise KeyError(f"Unknown config '{name}'. Available: {list(self._configs)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._configs

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def __repr__(self) -> str:
        return f"ConfigRegistry({list(self._configs)})"


def _copy(config: T) -> T:
    from copy import deepcopy

    return deepcopy(config)
