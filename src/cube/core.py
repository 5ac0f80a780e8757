"""The messages between agents and environments: actions, contents, observations, step results.

All are JSON: every class is a `TypedBaseModel` and survives a round trip. Rendering for a language
model (`to_llm_message`, `as_dict`) follows the OpenAI chat format.
"""

from __future__ import annotations

import base64
import binascii
import copy
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializeAsAny,
    field_validator,
)

from cube.action_schema import function_schema
from cube.typed import TypedBaseModel, trusted

if TYPE_CHECKING:
    from PIL.Image import Image

    from cube.validated import ConfigRegistry, ValidatedConfig

__all__ = [
    "Action",
    "ActionSchema",
    "AudioContent",
    "ConfigRegistry",
    "Content",
    "EnvironmentOutput",
    "ImageContent",
    "Observation",
    "StepError",
    "StructuredContent",
    "TextContent",
    "TypedBaseModel",
    "ValidatedConfig",
    "VideoContent",
]


def __getattr__(name: str) -> Any:
    if name in ("ConfigRegistry", "ValidatedConfig"):  # for authors of configs; tasks do without them
        import cube.validated

        return getattr(cube.validated, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def _stripped(value: str) -> str:
    if not value.strip():
        raise ValueError("must be a non-empty string")
    return value.strip()


NonEmpty = Annotated[str, AfterValidator(_stripped)]


class ActionSchema(TypedBaseModel, defer_build=True):
    """The name and description of an action, and the JSON schema of its arguments."""

    model_config = ConfigDict(frozen=True)

    name: NonEmpty
    description: NonEmpty
    parameters: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> Self:
        """The schema of a documented function or bound method."""
        return cls(**function_schema(function))

    def as_dict(self) -> dict[str, Any]:
        """The OpenAI tool format. An action without parameters takes an empty object."""
        parameters = copy.deepcopy(self.parameters) or {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def validate_param_descriptions(self) -> tuple[bool, str]:
        """Whether every parameter has a description; if not, a message that names the first without."""
        for name, schema in self.parameters.get("properties", {}).items():
            if name == "self":
                continue
            if not isinstance(schema, dict):
                return False, f"parameter '{name}' invalid"
            if not str(schema.get("description") or "").strip():
                return False, f"parameter '{name}' missing description"
        return True, ""


class Action(TypedBaseModel, defer_build=True):
    """A call of an action by name."""

    id: str | None = None
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_openai_tool_call(cls, call: dict[str, Any]) -> Self:
        """From a tool call in chat format (`function.name`) or flat (`name`); arguments as a JSON string or a dict.

        Any defect of the call is a `ValueError`, because a model wrote it.
        """
        import json

        body = call.get("function") or call
        arguments = body.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        return cls(id=call.get("id") or call.get("call_id"), name=body.get("name"), arguments=arguments)


class Content(TypedBaseModel, ABC, defer_build=True):
    """One piece of an observation."""

    tool_call_id: str | None = None
    name: str | None = None
    data: Any

    @abstractmethod
    def to_markdown(self) -> str: ...

    @abstractmethod
    def _llm_content(self) -> str | list[dict[str, Any]]: ...

    def to_llm_message(self) -> dict[str, Any]:
        """A chat message: the reply to a tool call if there is one, otherwise a user message."""
        content = self._llm_content()
        if self.tool_call_id is not None:
            return {"role": "tool", "tool_call_id": self.tool_call_id, "content": content}
        return {"role": "user", "content": content}

    def _titled(self, text: str) -> str:
        return f"## {self.name}\n{text}" if self.name else text

    @staticmethod
    def from_data(data: Any, *, tool_call_id: str | None = None, name: str | None = None) -> Content:
        """The content for `data`; an existing content is used as is, and only unset fields are filled in."""
        if isinstance(data, (str, int, float)):  # a tuple is faster here, on the hot path
            return trusted(TextContent, {"tool_call_id": tool_call_id, "name": name, "data": str(data)})
        if isinstance(data, Content):
            known = {"tool_call_id": tool_call_id, "name": name}
            return data.model_copy(update={k: v for k, v in known.items() if v and getattr(data, k) is None})
        labels = {"tool_call_id": tool_call_id, "name": name}
        if isinstance(data, dict | list | BaseModel):
            return StructuredContent(data=data, **labels)
        if isinstance(data, bytes):
            raise TypeError(
                "Cannot infer content type from raw bytes. Explicitly construct AudioContent or VideoContent instead."
            )
        if any(base.__module__ == "PIL.Image" for base in type(data).__mro__):  # without importing Pillow
            return ImageContent(data=data, **labels)
        raise TypeError(f"Unsupported data type for Content.from_data(): {type(data).__name__}.")


class TextContent(Content, defer_build=True):
    """Plain text; numbers are converted to text."""

    data: str

    @field_validator("data", mode="before")
    @classmethod
    def _number_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, bool | int | float) else value

    def to_markdown(self) -> str:
        return self._titled(self.data)

    def _llm_content(self) -> str:
        return self._titled(self.data)


class StructuredContent(Content, defer_build=True):
    """A JSON object or list. A model is stored as its dump."""

    data: dict[str, Any] | list[Any]

    @field_validator("data", mode="before")
    @classmethod
    def _dump(cls, value: Any) -> Any:
        return value.model_dump() if isinstance(value, BaseModel) else value

    def to_markdown(self) -> str:
        return self._titled(f"```json\n{_json(self.data, indent=2)}\n```")

    def _llm_content(self) -> str:
        return self._titled(_json(self.data))


def _json(data: Any, indent: int | None = None) -> str:
    import json  # here, like in every module that tasks import: a worker may need none

    return json.dumps(data, indent=indent, default=str)


_PNG_PREFIX = "data:image/png;base64,"


def _image(value: Any) -> Image:
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    if not isinstance(value, str) or not value.startswith(_PNG_PREFIX):
        raise ValueError("must be a PIL image or a 'data:image/png;base64,' URL")
    try:
        picture = Image.open(io.BytesIO(_unbase64(value.removeprefix(_PNG_PREFIX))), formats=["PNG"])
        return picture.copy()  # loads the image and releases the buffer
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises for bad data
        raise ValueError(f"is not a PNG image: {error}") from error


def _png_url(picture: Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return _PNG_PREFIX + base64.b64encode(buffer.getvalue()).decode("ascii")


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"is not valid base64: {error}") from error


class ImageContent(Content, defer_build=True):
    """An image (`PIL.Image`, extra `images`), sent as a PNG data URL."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    _image_prefix: ClassVar[str] = _PNG_PREFIX

    data: Annotated[Any, BeforeValidator(_image), PlainSerializer(_png_url)]

    def to_markdown(self) -> str:
        return f"![{self.name or 'image'}]({_png_url(self.data)})"

    def _llm_content(self) -> list[dict[str, Any]]:
        title = [{"type": "text", "text": f"## {self.name}"}] if self.name else []
        return [*title, {"type": "image_url", "image_url": {"url": _png_url(self.data)}}]


Base64Bytes = Annotated[
    bytes,
    BeforeValidator(lambda value: _unbase64(value) if isinstance(value, str) else value),
    PlainSerializer(lambda value: base64.b64encode(value).decode("ascii"), when_used="json"),
]
"""Bytes, encoded as base64 text in JSON."""


class _Recording(Content, defer_build=True):
    """Audio or video as raw bytes, which have no text form for models."""

    data: Base64Bytes
    duration_seconds: float | None = None
    _kind: ClassVar[str] = "recording"

    def _summary(self) -> str:
        length = "" if self.duration_seconds is None else f", {self.duration_seconds:g} s"
        return self._titled(f"[{self._kind}: {len(self.data)} bytes{length}]")

    def to_markdown(self) -> str:
        return self._summary()

    def _llm_content(self) -> str:
        return self._summary()


class AudioContent(_Recording, defer_build=True):
    """An audio recording."""

    _kind = "audio"


class VideoContent(_Recording, defer_build=True):
    """A film."""

    _kind = "video"


class Observation(TypedBaseModel, defer_build=True):
    """What the agent sees: contents in order."""

    contents: list[SerializeAsAny[Content]] = Field(default_factory=list)

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(contents=[TextContent(data=text)])

    def __add__(self, other: Observation) -> Self:
        """Append the other's contents to this observation, in place, and return it."""
        self.contents.extend(other.contents)
        return self

    def to_llm_messages(self) -> list[dict[str, Any]]:
        return [content.to_llm_message() for content in self.contents]

    def to_markdown(self) -> str:
        return "\n\n".join(content.to_markdown() for content in self.contents)


class StepError(TypedBaseModel, defer_build=True):
    """An exception of a tool, as data."""

    error_type: str
    exception_str: str
    stack_trace: str

    @classmethod
    def from_exception(cls, error: BaseException) -> Self:
        import traceback  # only failures need it

        return cls(
            error_type=type(error).__name__,
            exception_str=str(error),
            stack_trace="".join(traceback.format_exception(error)),
        )


class EnvironmentOutput(TypedBaseModel, defer_build=True):
    """What a step returns."""

    obs: SerializeAsAny[Observation]
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    info: dict[str, Any] = Field(default_factory=dict)
    error: SerializeAsAny[StepError] | None = None
