"""Tools: what an agent can do, as methods marked with `@tool_action`.

A `ToolConfig` is sent as JSON and creates the tool on the worker. A tool lists its actions as schemas and executes
them: the result of a method becomes an observation, an exception a `StepError`. A `Toolbox` combines several tools.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import Field, SerializeAsAny

from cube.container import Container
from cube.core import Action, ActionSchema, Content, Observation, StepError
from cube.typed import TypedBaseModel, trusted

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class UnknownActionError(ValueError):
    """The tool has no such action."""


def tool_action(method: F) -> F:
    """Mark a method of a tool as an action that agents may call."""
    method._is_action = True  # type: ignore[attr-defined]  # functions take attributes
    return method


class AbstractTool(ABC):
    """The minimal interface of a tool."""

    @property
    @abstractmethod
    def action_set(self) -> list[ActionSchema]:
        """The actions an agent may call now."""

    @abstractmethod
    def execute_action(self, action: Action) -> Any:
        """Execute an action; tasks accept an `Observation` or a `StepError`."""

    def reset(self) -> None:
        """Restore the initial state."""

    def close(self) -> None:
        """Release the resources of the tool."""


class AbstractAsyncTool(ABC):
    """`AbstractTool` for an event loop."""

    @property
    @abstractmethod
    def action_set(self) -> list[ActionSchema]: ...

    @abstractmethod
    async def execute_action(self, action: Action) -> Any: ...

    async def reset(self) -> None:
        """Restore the initial state."""

    async def close(self) -> None:
        """Release the resources of the tool."""


class ToolConfig(TypedBaseModel, ABC, defer_build=True):
    """The settings of a tool; part of a task config."""

    @abstractmethod
    def make(self, container: Container | None = None) -> AbstractTool: ...


class AsyncToolConfig(TypedBaseModel, ABC, defer_build=True):
    """The settings of an asynchronous tool."""

    @abstractmethod
    async def make(self, container: Container | None = None) -> AbstractAsyncTool: ...


class _ActionMethods:
    """Finds the actions of an object: marked methods of its class, then marked attributes of its own."""

    _class_actions: ClassVar[dict[str, ActionSchema]]

    @classmethod
    def _actions_of_class(cls) -> dict[str, ActionSchema]:
        """Schemas by name, computed once per class."""
        known: dict[str, ActionSchema] | None = cls.__dict__.get("_class_actions")
        if known is None:
            known = cls._class_actions = {
                name: ActionSchema.from_function(getattr(cls, name))
                for name in dir(cls)
                if not name.startswith("_") and _is_action_of(cls, name)
            }
        return known

    def _own_actions(self) -> dict[str, Callable[..., Any]]:
        return {name: value for name, value in vars(self).items() if getattr(value, "_is_action", False)}

    @property
    def action_set(self) -> list[ActionSchema]:
        """By name; actions that this object alone has come last."""
        actions = list(self._actions_of_class().values())
        own = self._own_actions()
        if own:
            actions = [action for action in actions if action.name not in own]
            actions += [
                ActionSchema.from_function(function).model_copy(update={"name": name}) for name, function in own.items()
            ]
        return actions

    def get_action_method(self, action: Action) -> Callable[..., Any]:
        """The method behind an action, or an `UnknownActionError`."""
        name = action.name
        own = None
        if name in self._actions_of_class() or getattr(own := vars(self).get(name), "_is_action", False):
            method: Callable[..., Any] = getattr(self, name)
            return method
        owner = type(self).__name__
        if name.startswith("_") or not callable(getattr(type(self), name, own)):
            raise UnknownActionError(f"Action {name} does not exist in {owner}.")
        raise UnknownActionError(
            f"Action {name} exists in {owner} but is not decorated with @tool_action. "
            f"Add @tool_action to expose it as an action."
        )


def _is_action_of(cls: type, name: str) -> bool:
    """Whether any class in the hierarchy marked it; an override need not repeat the mark."""
    if not callable(inspect.getattr_static(cls, name)) and not callable(getattr(cls, name, None)):
        return False
    return any(_is_marked(base.__dict__.get(name)) for base in cls.__mro__)


def _is_marked(definition: object) -> bool:
    function = getattr(definition, "__func__", definition)  # the function inside a static or class method
    return getattr(function, "_is_action", False) is True


def _observe(result: Any, action: Action) -> Observation:
    if not isinstance(result, str) and isinstance(result, Observation):  # text first: that check is cheaper
        return result
    content = Content.from_data("Success" if result is None else result, tool_call_id=action.id)
    return trusted(Observation, {"contents": [content]})


def _failed(tool: object, action: Action, error: Exception) -> StepError:
    import logging  # here, since only failures are logged

    logging.getLogger(__name__).warning(
        "Action %s of %s failed: %s", action.name, type(tool).__name__, error, exc_info=error
    )
    return StepError.from_exception(error)


def _closing_failed(tool: object) -> None:
    import logging

    logging.getLogger(__name__).exception("Closing %s failed", type(tool).__name__)


class Tool(_ActionMethods, AbstractTool):
    """A tool whose marked methods are its actions.

    A method may return an `Observation` or a `Content`, which are used unchanged; text, numbers, dicts, lists,
    models and images, which become contents; or None, which is shown as "Success".
    """

    def execute_action(self, action: Action) -> Observation | StepError:
        """Call the action's method. Only an unknown action raises; an exception of the method is returned."""
        method = self.get_action_method(action)
        try:
            return _observe(method(**action.arguments), action)
        except Exception as error:  # noqa: BLE001  # a tool's failure is data for the task
            return _failed(self, action, error)


class AsyncTool(_ActionMethods, AbstractAsyncTool):
    """`Tool` whose actions are coroutines."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in vars(cls).items():
            if _is_marked(value) and not inspect.iscoroutinefunction(getattr(value, "__func__", value)):
                raise TypeError(
                    f"{cls.__name__}.{name} is decorated with @tool_action but is not async. "
                    f"Actions of an AsyncTool are declared with 'async def'."
                )

    async def execute_action(self, action: Action) -> Observation | StepError:
        """Call the action's method. Only an unknown action raises; an exception of the method is returned."""
        method = self.get_action_method(action)
        try:
            return _observe(await method(**action.arguments), action)
        except Exception as error:  # noqa: BLE001  # a tool's failure is data for the task
            return _failed(self, action, error)


def _owners(tools: Iterable[Any]) -> dict[str, Any]:
    """Maps actions to tools; a name that two tools share is refused."""
    owners: dict[str, Any] = {}
    for tool in tools:
        for action in tool.action_set:
            other = owners.setdefault(action.name, tool)
            if other is not tool:
                raise ValueError(
                    f"Duplicate action name '{action.name}' found in multiple tools ({type(other).__name__} and "
                    f"{type(tool).__name__}). Action names must be unique in a toolbox."
                )
    return owners


def _owner(tools: Sequence[Any], action: Action) -> Any:
    for tool in tools:
        if any(schema.name == action.name for schema in tool.action_set):
            return tool
    raise UnknownActionError(f"Action '{action.name}' is not supported by any tool in the toolbox.")


def _raise(errors: list[Exception]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("Several tools failed to close.", errors)


class Toolbox(Tool):
    """Several tools as one; action names are unique across them."""

    def __init__(self, tools: Sequence[AbstractTool]) -> None:
        self.tools = list(tools)
        _owners(self.tools)

    @property
    def action_set(self) -> list[ActionSchema]:
        return [action for tool in self.tools for action in tool.action_set]

    def find_tool(self, kind: type[T]) -> T | None:
        """The first tool of that class."""
        return next((tool for tool in self.tools if isinstance(tool, kind)), None)

    def execute_action(self, action: Action) -> Any:
        return _owner(self.tools, action).execute_action(action)

    def reset(self) -> None:
        for tool in self.tools:
            tool.reset()

    def close(self) -> None:
        """Close every tool even if one fails; then raise the failures."""
        errors: list[Exception] = []
        for tool in self.tools:
            try:
                tool.close()
            except Exception as error:  # noqa: BLE001  # the others must still be closed
                errors.append(error)
        _raise(errors)


class AsyncToolbox(AsyncTool):
    """Several asynchronous tools as one."""

    def __init__(self, tools: Sequence[AbstractAsyncTool]) -> None:
        self.tools = list(tools)
        _owners(self.tools)

    @property
    def action_set(self) -> list[ActionSchema]:
        return [action for tool in self.tools for action in tool.action_set]

    def find_tool(self, kind: type[T]) -> T | None:
        """The first tool of that class."""
        return next((tool for tool in self.tools if isinstance(tool, kind)), None)

    async def execute_action(self, action: Action) -> Any:
        return await _owner(self.tools, action).execute_action(action)

    async def reset(self) -> None:
        for tool in self.tools:
            await tool.reset()

    async def close(self) -> None:
        """Close every tool even if one fails; then raise the failures."""
        errors: list[Exception] = []
        for tool in self.tools:
            try:
                await tool.close()
            except Exception as error:  # noqa: BLE001  # the others must still be closed
                errors.append(error)
        _raise(errors)


class ToolboxConfig(ToolConfig, defer_build=True):
    """Makes a toolbox; toolboxes inside it are flattened."""

    tool_configs: list[SerializeAsAny[ToolConfig]] = Field(default_factory=list)

    def make(self, container: Container | None = None) -> Toolbox:
        """All tools with the same container; if one cannot be created, the others are closed."""
        tools: list[AbstractTool] = []
        try:
            for config in self.tool_configs:
                tool = config.make(container=container)
                tools += tool.tools if isinstance(tool, Toolbox) else [tool]
            return Toolbox(tools)
        except BaseException:
            for tool in tools:
                try:
                    tool.close()
                except Exception:  # noqa: BLE001  # logged; the first failure is the one to report
                    _closing_failed(tool)
            raise


class AsyncToolboxConfig(AsyncToolConfig, defer_build=True):
    """Makes an asynchronous toolbox; toolboxes inside it are flattened."""

    tool_configs: list[SerializeAsAny[AsyncToolConfig]] = Field(default_factory=list)

    async def make(self, container: Container | None = None) -> AsyncToolbox:
        """All tools with the same container; if one cannot be created, the others are closed."""
        tools: list[AbstractAsyncTool] = []
        try:
            for config in self.tool_configs:
                tool = await config.make(container=container)
                tools += tool.tools if isinstance(tool, AsyncToolbox) else [tool]
            return AsyncToolbox(tools)
        except BaseException:
            for tool in tools:
                try:
                    await tool.close()
                except Exception:  # noqa: BLE001  # logged; the first failure is the one to report
                    _closing_failed(tool)
            raise
