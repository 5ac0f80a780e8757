"""One model, called for one reply at a time: transient failures are retried, others are reported in one sentence.

In: chat messages and tools in the OpenAI format. Out: a `Reply` with its text, tool calls and
usage. Any provider that LiteLLM knows; `OPENAI_BASE_URL` for a local server.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import anyio
import anyio.to_thread

from benchflow.errors import BenchflowError, Category
from benchflow.models.proxy_kinds import wrong_proxy

if TYPE_CHECKING:
    from benchflow.models.gateway.chat_calls import ChatCall
    from benchflow.models.gateway.grants import Access

SETUP_CODES: Final = frozenset(
    {
        "extra-missing",
        "key-missing",
        "key-refused",
        "model-unknown",
        "price-unknown",
        "proxy-unsupported",
        "request-refused",
        "replay-unknown",
        "replay-damaged",
    }
)
"""The user has to change something; retrying does not help."""


LIMIT_CODES: Final = frozenset({"max_calls", "max_tokens", "max_cost", "max_model_time"})
"""A limit of the rollout or the job was reached, and nothing was sent."""


class ModelFailure(BenchflowError):
    """A model gave no reply. The caller turns it into a failure of its own boundary.

    Codes: those of `SETUP_CODES` and `LIMIT_CODES`; `context-overflow`; and, for the provider or the connection,
    `rate-limited`, `model-timeout`, `model-unreachable`, `bad-answer`.
    """

    category: ClassVar[Category] = "infrastructure"
    default_code: ClassVar[str] = "model-unreachable"

    def __init__(self, message: str, *, code: str, retry_after: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after
        """The delay that the provider requests, in seconds."""

    @property
    def setup(self) -> bool:
        return self.code in SETUP_CODES

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return not self.setup and self.code != "context-overflow" and self.code not in LIMIT_CODES


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
        access: Access | None = None,
    ) -> None:
        """`environ` holds keys and addresses; None: the variables of this process. With `access` calls are limited and
        recorded as those of a rollout, and answered from another rollout if it is replayed.
        """
        self.name = model
        self._environ = os.environ if environ is None else environ
        self._retries = retries
        self._first_pause = first_pause_sec
        self._request_timeout = request_timeout_sec
        self._access = access
        self._provider: Provider | None = None
        self._litellm: Any = None

    async def check(self) -> None:
        """Raise `ModelFailure` if the model is unknown or has no key; nothing is sent."""
        if self._provider is None and not self._replays:
            await anyio.to_thread.run_sync(self.check_now)

    def check_now(self) -> None:
        """Like `check`, for callers outside an event loop."""
        _require_library()
        if (wrong := wrong_proxy()) is not None:
            raise ModelFailure(f"The model '{self.name}' cannot be called: {wrong}", code="proxy-unsupported")
        require_key(self.name, self._environ)
        self._litellm = _load_library()
        self._provider = resolve(self._litellm, self.name, self._environ)

    @property
    def _replays(self) -> bool:
        return self._access is not None and self._access.grant.request.replay is not None

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
        copied = [dict(message) for message in messages]
        if self._access is None:
            return (await self._retried(copied, given, lambda _code, _waited: None))[0]
        from benchflow.models.gateway.chat_calls import ChatCall

        return await self._recorded(ChatCall(self._access, self.name, {"messages": copied, **given}), copied, given)

    async def _retried(
        self, messages: list[dict[str, Any]], settings: dict[str, Any], on_retry: Callable[[str, float], None]
    ) -> tuple[Reply, bytes]:
        attempt = 0
        while True:
            try:
                return await self._once(messages, settings)
            except ModelFailure as failure:
                if not failure.transient or attempt >= self._retries:
                    raise
                pause = self._pause(attempt, failure)
                on_retry(failure.code, pause)
                await anyio.sleep(pause)
                attempt += 1

    async def _recorded(self, call: ChatCall, messages: list[dict[str, Any]], settings: dict[str, Any]) -> Reply:
        """The reply to a call of a rollout or an episode, which is recorded whatever happens."""
        from benchflow.models.gateway.chat_calls import CallLimited

        if call.costs and not self._priced():
            raise self._unpriced(call)
        try:
            async with call.made():
                reply = await self._made(call, messages, settings)
        except CallLimited as limited:
            raise ModelFailure(str(limited), code=limited.reached.name) from limited
        if call.costs and "cost_usd" not in reply.usage:
            raise self._unpriced(call)
        return reply

    def _unpriced(self, call: ChatCall) -> ModelFailure:
        """What is unknown is not zero: without a price, a limit on costs does not hold."""
        from benchflow.models.gateway.call_failures import CallFailure

        message = f"The price of the model '{self.name}' is unknown, so its cost cannot be limited."
        call.refused(CallFailure("agent", "price-unknown", message))
        return ModelFailure(message, code="price-unknown")

    def _priced(self) -> bool:
        """Whether LiteLLM knows what the model costs."""
        provider = self._provider
        try:
            self._litellm.cost_per_token(model=provider.model if provider else "", prompt_tokens=1, completion_tokens=1)
        except Exception:  # noqa: BLE001 - it has several errors for a model that it does not know
            return False
        return True

    async def _made(self, call: ChatCall, messages: list[dict[str, Any]], settings: dict[str, Any]) -> Reply:
        """The reply to a call that was let in."""
        from benchflow.models.gateway.call_failures import CallFailure

        try:
            old = call.replayed()
            reply, body = await self._retried(messages, settings, call.retried) if old is None else _replayed(old)
            call.answered(body, reply.usage, reply.finish_reason)
        except (ModelFailure, LookupError) as error:
            failure = error if isinstance(error, ModelFailure) else ModelFailure(str(error), code="replay-unknown")
            category: Literal["agent", "infrastructure"] = "agent" if failure.setup else "infrastructure"
            if failure.code == "context-overflow":
                call.aborted()
            else:
                call.failed(CallFailure(category, failure.code, str(failure)))
            raise failure from error
        return reply

    def _pause(self, attempt: int, failure: ModelFailure) -> float:
        if failure.retry_after is not None:
            return min(failure.retry_after, _LONGEST_PAUSE)
        return float(min(self._first_pause * 2**attempt, _LONGEST_PAUSE)) * random.uniform(0.75, 1.25)  # noqa: S311 - spreads requests

    async def _once(self, messages: list[dict[str, Any]], settings: dict[str, Any]) -> tuple[Reply, bytes]:
        """The reply, and what it was made from if that is recorded."""
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
            reply = _reply(response, self._cost(response))
            return reply, response.model_dump_json().encode() if self._access is not None else b""
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


def _replayed(body: bytes) -> tuple[Reply, bytes]:
    """The reply that an earlier answer is."""
    try:
        response = json.loads(body, object_hook=lambda value: SimpleNamespace(**value))
        return _reply(response, None), body
    except (ValueError, AttributeError, IndexError, TypeError) as error:
        raise ModelFailure(f"The recorded answer cannot be used: {error}.", code="replay-damaged") from error


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


_lock: Final = threading.Lock()  # the first two callers may arrive at once


def _require_library() -> None:
    """Raise `ModelFailure` when LiteLLM is not installed."""
    if find_spec("litellm") is None:
        from cube.extras import extra_command

        raise ModelFailure(f"Models need the extra 'models': {extra_command('models')}", code="extra-missing")


def _load_library() -> Any:
    """LiteLLM, quietly and without network access. The first import takes seconds: call it in a worker thread."""
    _require_library()
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from its own dependencies; not ours to fix
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        litellm.suppress_debug_info = True
        litellm.telemetry = False
        litellm.disable_aiohttp_transport = True
        litellm.drop_params = True
        _warm_up(litellm)
    return litellm


def _warm_up(litellm: Any) -> None:
    """Trigger its late imports now, while its warnings are suppressed; nothing is sent."""
    question = [{"role": "user", "content": "ready?"}]
    litellm.completion(model="openai/none", messages=question, mock_response="ready", api_key="none")


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


def model_variables(model: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The variables in which the key of a model is looked up, of which one is enough, and those of its address."""
    provider, named, _ = _with_family(model).partition("/")
    prefix = provider.upper().replace("-", "_") if named else "OPENAI"
    return _KEYS.get(provider, (f"{prefix}_API_KEY",)), (f"{prefix}_BASE_URL", f"{prefix}_API_BASE")


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
