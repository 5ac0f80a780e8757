"""`model_calls.jsonl`: every call of a model in a rollout, one line each, written when the call has ended.

A line has who asked for what, what came back, tokens, cost and times. What is large lies beside it, once, in
`model_calls/`, named by its digest: messages, tool definitions and system prompts that following requests repeat, and
answers. `ModelCalls` writes, `read_model_calls` reads line by line, `CallParts` gives requests and answers whole.
Secrets are removed before anything is written, digests are of what is written.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from benchflow.files.redaction import Redactor
from benchflow.record.codec import JsonLines, plain, read, read_lines
from benchflow.record.layout import RolloutFolder

CallSource = Literal["agent", "judge", "user"]
Dialect = Literal[
    "openai-chat",
    "openai-completions",
    "openai-responses",
    "openai-count",
    "openai-embeddings",
    "anthropic-messages",
    "anthropic-count",
    "gemini-generate",
    "gemini-stream",
    "gemini-count",
    "gemini-embed",
    "models",
    "litellm",
]
"""The protocol of a call; `litellm` is a call that LiteLLM translates, recorded as chat completions."""
CallOutcome = Literal["answered", "failed", "refused", "limited", "aborted"]
"""`refused`: by the gateway, nothing was sent; `limited`: the same, at a limit; `aborted`: the caller did not wait."""

PART: Final = "$part"
"""The only key of an object in a request that stands for a part beside it."""
LARGE: Final = 1024
"""Bytes from which on a part of a request, or an answer, lies beside the lines."""
_LISTS: Final = ("messages", "input", "contents", "tools", "system")
"""Keys of a request whose items are parts of their own: later requests repeat them."""
_WORD: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where in a rollout a call belongs."""

    role: str
    source: CallSource = "agent"
    step: str | None = None
    turn: int | None = None
    """Counts from 0, as `round` does in a trajectory."""
    scene: str | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class CallRetry:
    """One try that failed before the one that counts."""

    code: str
    status: int | None = None
    waited_sec: float = 0.0
    """Before the next try."""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """What came back, as it was passed on: a text, or the digest of the part that holds it."""

    bytes: int
    text: str | None = None
    part: str | None = None
    content_type: str | None = None
    pieces: int = 1
    """Of a stream: how many pieces came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call."""

    seq: int
    """Counts from 1, in the order in which calls ended."""
    time: str
    """When it began, ISO 8601 in UTC."""
    place: CallPlace
    dialect: Dialect
    provider: str
    """The upstream that was asked."""
    model: str | None
    endpoint: str
    outcome: CallOutcome
    status: int | None
    """The HTTP status that the caller got."""
    usage: Mapping[str, float]
    """`input_tokens`, `output_tokens`, `cached_tokens`, `cost_usd`, as far as known."""
    timing: Mapping[str, float]
    """Seconds since the call came in: `first_byte`, `first_token`, `total`; and how long it was `queued`."""
    stream: bool = False
    code: str | None = None
    """How it failed or why it was refused."""
    message: str | None = None
    finish_reason: str | None = None
    estimated: bool = False
    """Whether the tokens are estimated from sizes, because the server did not say."""
    retries: tuple[CallRetry, ...] = ()
    removed_tools: tuple[str, ...] = ()
    """Tools of the provider that a policy took out of the request."""
    replayed: bool = False
    """Whether it was answered from the record of another rollout."""
    request: Any = None
    """As it was sent on, with large parts as `{"$part": DIGEST}`."""
    answer: CallAnswer | None = None


class ModelCalls:
    """Appends calls to the files of one rollout, which appear with the first."""

    def __init__(self, folder: RolloutFolder, redactor: Redactor) -> None:
        self._parts: Final = folder.model_call_parts
        self._lines: Final = JsonLines(folder.model_calls)
        self._redactor = redactor
        self._secrets: tuple[str, ...] = ()
        self._raw_secrets: tuple[bytes, ...] = ()
        self.hide()
        self._known: set[str] = set()
        self._count = 0
        self._writing: Final = threading.Lock()
        """Judges may be asked from other threads than the gateway's."""

    def hide(self, *values: str) -> None:
        """Keep these values too out of everything that is written from now on."""
        redactor = self._redactor = self._redactor.with_values(values) if values else self._redactor
        # A search for each value is much faster than the redactor's own pattern, and nearly nothing holds a secret.
        self._secrets = tuple({text for value in redactor.values for text in (value, _WORD.encode(value)[1:-1])})
        self._raw_secrets = tuple(value.encode(errors="surrogateescape") for value in self._secrets)

    def append(
        self,
        *,
        request: Any = None,
        body: bytes | None = None,
        content_type: str | None = None,
        pieces: int = 1,
        message: str | None = None,
        **known: Any,
    ) -> ModelCall:
        """Write one call: `request` is its JSON value, `body` the bytes of its answer, the rest fields of a call."""
        with self._writing:
            self._count += 1
            call = ModelCall(
                seq=self._count,
                request=self._shortened(request),
                answer=None if body is None else self._answer(body, content_type, pieces),
                message=None if message is None else self._redactor.text(message),
                **known,
            )
            self._lines.append(plain(call))
        return call

    def close(self) -> None:
        """Idempotent."""
        self._lines.close()

    def cleaned(self, request: Any) -> Any:
        """A request as it is recorded: without secrets. Nearly none has any, so few are copied."""
        if request is None or not self._secrets:
            return request
        text = _WORD.encode(request)
        return self._redactor.data(request) if any(secret in text for secret in self._secrets) else request

    def _shortened(self, request: Any) -> Any:
        if not isinstance(request, Mapping):
            return self._part_of(request)
        return {
            self._redactor.text(str(key)): self._listed(value) if key in _LISTS else self._part_of(value)
            for key, value in request.items()
        }

    def _listed(self, value: Any) -> Any:
        return [self._part_of(item) for item in value] if isinstance(value, list) else self._part_of(value)

    def _part_of(self, value: Any) -> Any:
        """The value without secrets, or what stands for it if it is large."""
        if not isinstance(value, str | list | dict):
            return value
        text = _WORD.encode(value)
        if any(secret in text for secret in self._secrets):
            value = self._redactor.data(value)
            text = _WORD.encode(value)
        is_mark = isinstance(value, dict) and PART in value
        return {PART: self._keep(text.encode(errors="replace"))} if len(text) >= LARGE or is_mark else value

    def _answer(self, body: bytes, content_type: str | None, pieces: int) -> CallAnswer:
        if any(secret in body for secret in self._raw_secrets):
            body = self._redactor.raw(body)
        try:
            text = body.decode() if len(body) < LARGE else None
        except UnicodeDecodeError:
            text = None
        part = self._keep(body) if text is None else None
        return CallAnswer(len(body), text, part, content_type, pieces)

    def _keep(self, data: bytes) -> str:
        """Write a part unless it is there. The line that names it comes later, so half a part is never named."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._known:
            if not self._known:
                self._parts.mkdir(exist_ok=True)
            with open(f"{self._parts}/{digest}", "wb", buffering=0) as file:  # noqa: PTH123 - one for every answer
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
            self._known.add(digest)
        return f"sha256:{digest}"


def read_model_calls(path: Path) -> Iterator[ModelCall]:
    """The calls of a file, one at a time; lines that are torn or not calls are left out. No file: no calls."""
    for line in read_lines(path):
        try:
            yield read(ModelCall, line)
        except ValueError:
            continue


class CallParts:
    """Requests and answers of a rollout's calls, whole."""

    def __init__(self, folder: RolloutFolder) -> None:
        self._parts: Final = folder.model_call_parts

    def request(self, call: ModelCall) -> Any:
        """The JSON value of the request; `ValueError` if a part is missing or damaged."""
        value = call.request
        if not isinstance(value, dict) or PART in value:
            return self.whole(value)
        return {key: self._all(item) for key, item in value.items()}

    def answer(self, call: ModelCall) -> bytes:
        """The bytes of the answer; `ValueError` if there is none or its part is missing or damaged."""
        found = call.answer
        if found is None:
            raise ValueError(f"call {call.seq} has no answer")
        return found.text.encode() if found.part is None and found.text is not None else self._read(found.part or "")

    def _all(self, value: Any) -> Any:
        return [self.whole(item) for item in value] if isinstance(value, list) else self.whole(value)

    def named(self, value: Any) -> str | None:
        """The digest of the part that a value of a request stands for; None if it is the value itself."""
        return str(value[PART]) if isinstance(value, dict) and set(value) == {PART} else None

    def whole(self, value: Any) -> Any:
        """A value of a request, or of a list in it, itself; `ValueError` if its part is missing or damaged."""
        digest = self.named(value)
        return value if digest is None else json.loads(self._read(digest))

    def _read(self, name: str) -> bytes:
        digest = name.removeprefix("sha256:")
        if len(digest) != 64 or not digest.isalnum():
            raise ValueError(f"{name[:80]!r} is not a digest")
        try:
            data = (self._parts / digest).read_bytes()
        except OSError as error:
            raise ValueError(f"the part {name} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"the part {name} is damaged")
        return data
