"""The provider of a model, with its key and address, determined before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchflow.models.failure import ModelFailure

_FAMILIES: Final = {"claude": "anthropic", "gemini": "gemini", "gpt-": "openai"}
_OTHER_KEYS: Final = {"gemini": ("GOOGLE_API_KEY",)}
_KEYS: Final = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
}
"""The key variables of common providers; any one of a provider is enough."""


@dataclass(frozen=True, slots=True)
class Provider:
    """How to reach a model."""

    model: str
    """With its provider in front, as LiteLLM requires."""
    name: str
    api_key: str | None
    api_base: str | None
    key_variable: str
    """The variable in which the key is looked up first."""


def require_key(model: str, environ: Mapping[str, str]) -> None:
    """Raise `ModelFailure` if a model of a common provider has no key, without the slow import of LiteLLM."""
    provider, named, _ = _with_family(model).partition("/")
    variables = _KEYS.get(provider, ()) if named else ()
    if variables and not any(environ.get(variable) or os.environ.get(variable) for variable in variables):
        raise _missing(model, variables[:1])


def resolve(litellm: Any, model: str, environ: Mapping[str, str]) -> Provider:
    """The provider of a model; an unknown model or a missing key is a `ModelFailure` that names it.

    A name without a provider goes to the server at `OPENAI_BASE_URL` if that is set.
    """
    local = environ.get("OPENAI_BASE_URL") or environ.get("OPENAI_API_BASE")
    asked, model = model, _with_family(model)
    try:
        _, name, _, _ = litellm.get_llm_provider(model)
    except litellm.exceptions.BadRequestError:
        if not local or "/" in model:
            raise ModelFailure(
                f"Unknown model '{asked}'; write it as PROVIDER/MODEL, for example openai/{model.rpartition('/')[2]}.",
                code="model-unknown",
            ) from None
        model, name = f"openai/{model}", "openai"
    prefix = name.upper().replace("-", "_")
    variables = [f"{prefix}_API_KEY", *_OTHER_KEYS.get(name, ())]
    variable = next((found for found in variables if environ.get(found)), variables[0])
    key = environ.get(variable) or None
    base = environ.get(f"{prefix}_BASE_URL") or environ.get(f"{prefix}_API_BASE") or None
    if key is None:
        missing = [
            variable for variable in litellm.validate_environment(model)["missing_keys"] if not environ.get(variable)
        ]
        if missing:
            raise _missing(asked, missing)
    return Provider(model, name, key, base, variable)


def _missing(model: str, variables: Sequence[str]) -> ModelFailure:
    plural = len(variables) > 1
    return ModelFailure(
        f"The model '{model}' needs the variable{'s' if plural else ''} {', '.join(variables)}, which "
        f"{'are' if plural else 'is'} not set.",
        code="key-missing",
    )


def _with_family(model: str) -> str:
    """A name with its provider in front, if the model family identifies it."""
    if model.startswith("google/"):
        return f"gemini/{model.removeprefix('google/')}"
    if "/" not in model:
        for family, provider in _FAMILIES.items():
            if model.startswith(family):
                return f"{provider}/{model}"
    return model
