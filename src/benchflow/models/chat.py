"""One model, called for one reply at a time: transient failures are retried, others are reported in one sentence.

In: chat messages and tools in the OpenAI format. Out: a `Reply` with its text, tool calls and
usage. Any provider that LiteLLM knows; `OPENAI_BASE_URL` for a local server.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.models import library
from benchflow.models.failure import ModelFailure
from benchflow.models.provider import Provider, require_key, resolve

RETRIES: Final = 5
_LONGEST_PAUSE: Final = 60.0
_OVERFLOW: Final = re.compile(r"context[_ ](length|window)|prompt is too long|too many tokens", re.IGNORECASE)
"""How providers report that a request is too long, where the client does not recognise it."""
_REFUSED: Final = (401, 403)
_ONE_REQUEST: Final = {"Connection": "close"}
"""The library keeps its clients for the life of the process; connections must not outlive their event loop."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model wrote it; the arguments are text, which may be invalid."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of a model."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    reasoning: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)
    """`input_tokens`, `output_tokens`, `cached_tokens`, `cost_usd`; unknown values are left out."""

    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


class ChatModel:
    """A model by name, such as `openai/gpt-4o`."""

    def __init__(
        self,
        model: str,
        environ: Mapping[str, str] | None = None,
        *,
        retries: int = RETRIES,
        first_pause_sec: float = 1.0,
        request_timeout_sec: float = 600.0,
    ) -> None:
        """`environ` holds keys and addresses; None: the variables of this process."""
        self.name = model
        self._environ = os.environ if environ is None else environ
        self._retries = retries
        self._first_pause = first_pause_sec
        self._request_timeout = request_timeout_sec
        self._provider: Provider | None = None
        self._litellm: Any = None

    async def check(self) -> None:
        """Raise `ModelFailure` if the model is unknown or has no key; nothing is sent."""
        if self._provider is None:
            await anyio.to_thread.run_sync(self.check_now)

    def check_now(self) -> None:
        """Like `check`, for callers outside an event loop."""
        library.require()
        require_key(self.name, self._environ)
        self._litellm = library.load()
        self._provider = resolve(self._litellm, self.name, self._environ)

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_output_tokens: int | None = None,
        reasoning_effort: str | None = None,
        temperature: float | None = None,
    ) -> Reply:
        """The reply; `ModelFailure` if there is none after retries of transient failures."""
        await self.check()
        settings = {
            "max_tokens": max_output_tokens,
            "reasoning_effort": reasoning_effort,
            "temperature": temperature,
            "tools": [dict(tool) for tool in tools] or None,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        attempt = 0
        while True:
            try:
                return await self._once([dict(message) for message in messages], given)
            except ModelFailure as failure:
                if not failure.transient or attempt >= self._retries:
                    raise
                await anyio.sleep(self._pause(attempt, failure))
                attempt += 1

    def _pause(self, attempt: int, failure: ModelFailure) -> float:
        if failure.retry_after is not None:
            return min(failure.retry_after, _LONGEST_PAUSE)
        return float(min(self._first_pause * 2**attempt, _LONGEST_PAUSE)) * random.uniform(0.75, 1.25)  # noqa: S311 - spreads requests

    async def _once(self, messages: list[dict[str, Any]], settings: dict[str, Any]) -> Reply:
        provider = self._provider
        assert provider is not None  # noqa: S101 - `check` has set it
        try:
            with anyio.fail_after(self._request_timeout + 30.0):
                response = await self._litellm.acompletion(
                    model=provider.model,
                    messages=messages,
                    api_key=provider.api_key,
                    api_base=provider.api_base,
                    timeout=self._request_timeout,
                    num_retries=0,
                    max_retries=0,
                    extra_headers=_ONE_REQUEST,
                    **settings,
                )
            return _reply(response, self._cost(response))
        except Exception as error:  # providers and their clients fail in many ways; `_failure` classifies each
            raise self._failure(error) from error

    def _cost(self, response: Any) -> float | None:
        cost = (getattr(response, "_hidden_params", None) or {}).get("response_cost")
        return float(cost) if cost is not None else None

    def _failure(self, error: Exception) -> ModelFailure:
        kinds = self._litellm.exceptions
        refused = isinstance(error, kinds.AuthenticationError | kinds.PermissionDeniedError)
        if refused or _status(error) in _REFUSED:
            variable = self._provider.key_variable if self._provider is not None else "its key"
            message = f"The model '{self.name}' cannot be used: its provider refused the key in {variable}."
            return ModelFailure(message, code="key-refused")
        said = _sentence(error)
        table: list[tuple[type[BaseException] | tuple[type[BaseException], ...], str, str]] = [
            (kinds.ContextWindowExceededError, "context-overflow", "was sent more text than its context allows"),
            (kinds.NotFoundError, "model-unknown", "is unknown to its provider"),
            (kinds.RateLimitError, "rate-limited", "exceeded the rate limit of its provider"),
            ((kinds.Timeout, TimeoutError), "model-timeout", "did not answer in time"),
            ((kinds.APIConnectionError, kinds.InternalServerError), "model-unreachable", "could not be reached"),
            ((kinds.ServiceUnavailableError, kinds.BadGatewayError), "model-unreachable", "could not be reached"),
            (kinds.BadRequestError, "request-refused", "refused the request"),
            (
                (AttributeError, IndexError, KeyError, TypeError, ValueError),
                "bad-answer",
                "gave an unusable answer",
            ),
        ]
        if isinstance(error, kinds.BadRequestError) and _OVERFLOW.search(f"{getattr(error, 'code', '')} {error}"):
            error = kinds.ContextWindowExceededError(said, self.name, "")
        for kind, code, what in table:
            if isinstance(error, kind):
                message = f"The model '{self.name}' {what}: {said}"
                return ModelFailure(message, code=code, retry_after=_retry_after(error))
        return ModelFailure(f"The model '{self.name}' could not be reached: {said}", code="model-unreachable")


def _reply(response: Any, cost: float | None) -> Reply:
    choice = response.choices[0]
    message = choice.message
    calls = tuple(
        ToolCall(call.id or f"call_{number}", call.function.name or "", call.function.arguments or "{}")
        for number, call in enumerate(message.tool_calls or ())
    )
    return Reply(
        text=message.content or "",
        tool_calls=calls,
        finish_reason=choice.finish_reason or "stop",
        reasoning=getattr(message, "reasoning_content", None) or "",
        usage=_usage(getattr(response, "usage", None), cost),
    )


def _usage(reported: Any, cost: float | None) -> dict[str, float]:
    details = getattr(reported, "prompt_tokens_details", None)
    known = {
        "input_tokens": getattr(reported, "prompt_tokens", None),
        "output_tokens": getattr(reported, "completion_tokens", None),
        "cached_tokens": getattr(details, "cached_tokens", None),
        "cost_usd": cost,
    }
    return {name: value for name, value in known.items() if value is not None}


def _status(error: Exception) -> int | None:
    """The HTTP status of the provider; the client may have mapped the error to another kind."""
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None) or getattr(error, "status_code", None)


def _retry_after(error: Exception) -> float | None:
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None) or getattr(error, "litellm_response_headers", None) or {}
    try:
        return max(float(headers.get("retry-after", "")), 0.0)
    except ValueError:  # missing, or a date
        return None


def _sentence(error: Exception) -> str:
    """The provider's message on one line, without the prefixes of the client."""
    text = " ".join(str(error).split()) or type(error).__name__
    _, dash, rest = text.partition("Exception - ")
    return (rest if dash else text)[:300]
