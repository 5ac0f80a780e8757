"""One question to a model, through LiteLLM: any provider, or a local server named by `OPENAI_BASE_URL`.

Keys come from the verifier's own variables first, then from the machine that runs the judge; they are passed with the
call and never put into this process's environment. A judge that fails raises `JudgeFailure`: it never scores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.errors import JudgeFailure

RETRIES: Final = 3
MAX_TOKENS: Final = 2048
PAUSE_SEC = 1.0
"""Before the second try; twice as long before each further one."""
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
_BASES: Final = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
_PERMANENT: Final = ("AuthenticationError", "NotFoundError", "PermissionDeniedError", "BadRequestError")


@dataclass(frozen=True, slots=True)
class Message:
    """What a model said, and what it cost."""

    text: str
    usage: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A model that is asked for judgements."""

    model: str
    variables: Mapping[str, str] = field(repr=False)
    """The verifier's, over the machine's."""
    timeout_sec: float = 120.0
    reasoning_effort: str | None = None

    async def ask(self, messages: list[dict[str, str]]) -> Message:
        """The model's answer; raises `JudgeFailure` after the last try, or at once when trying again cannot help."""
        provider, model = route(self.model)
        call = partial(
            _completion(),
            model=f"{provider}/{model}" if provider else model,
            messages=messages,
            max_tokens=MAX_TOKENS,
            timeout=self.timeout_sec,
            max_retries=0,
            **self._connection(provider),
        )
        problem: Exception | None = None
        for attempt in range(RETRIES):
            if attempt:
                await anyio.sleep(PAUSE_SEC * 2 ** (attempt - 1))
            try:
                with anyio.fail_after(self.timeout_sec):
                    return _message(await anyio.to_thread.run_sync(call, abandon_on_cancel=True))
            except Exception as error:  # noqa: BLE001 - boundary: whatever a provider's client raises
                problem = error
                if type(error).__name__ in _PERMANENT:
                    break
        reason = " ".join(str(problem).split())[:400] or type(problem).__name__
        code = "judge-timeout" if isinstance(problem, TimeoutError) else "judge-unavailable"
        raise JudgeFailure(f"The judge {self.model} gave no answer: {reason}", code=code) from problem

    def _connection(self, provider: str) -> dict[str, str]:
        key = next((self.variables[name] for name in _KEYS.get(provider, ()) if self.variables.get(name)), None)
        base = self.variables.get(_BASES.get(provider, ""))
        options = {"api_key": key, "api_base": base, "reasoning_effort": self.reasoning_effort}
        return {name: value for name, value in options.items() if value}


def route(model: str) -> tuple[str, str]:
    """Provider and model of a name: by its prefix, else by the family it belongs to, else left to LiteLLM."""
    prefix, _, rest = model.partition("/")
    if rest:
        return {"google": "gemini"}.get(prefix, prefix), rest
    if model.startswith("claude"):
        return "anthropic", model
    if model.startswith("gemini"):
        return "gemini", model
    return ("openai", model) if model.startswith(("gpt", "o1", "o3", "o4", "chatgpt")) else ("", model)


def _completion() -> Any:
    """LiteLLM's blocking function, whose connections belong to no event loop, with the price list that comes with it."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        litellm: Any = import_module("litellm")
    except ImportError as error:
        message = "Judges need the extra 'models': pip install 'benchcube[models]'."
        raise JudgeFailure(message, code="judge-not-installed") from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm.completion


def _message(answer: Any) -> Message:
    text = answer.choices[0].message.content
    if not isinstance(text, str) or not text.strip():
        raise ValueError("the answer is empty")
    usage = getattr(answer, "usage", None)
    counts = {
        name: int(getattr(usage, name, 0) or 0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    return Message(text, counts)
