"""Tools: what an agent can do, as methods marked with `@tool_action`.

A `ToolConfig` is sent as JSON and creates the tool on the worker. A tool lists its actions as schemas and executes
them: the result of a method becomes an observation, an exception a `StepError`. A call of an unknown action, or with
arguments that do not match the schema, never reaches a method: the observation gives the reason. A `Toolbox` combines
tools.
"""

from __future__ import annotations

import inspect
import marshal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

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


_PLAIN: Final = {"string": str, "integer": int, "boolean": bool}
"""Types whose check is a comparison; everything else is asked of the schema."""


class _Known:
    """An action of a class, as only this module sees it: what is handed out is a copy."""

    __slots__ = ("left_out", "more", "plain", "required", "schema")

    def __init__(self, schema: ActionSchema, function: Callable[..., Any]) -> None:
        self.schema: Final = schema
        properties: dict[str, Any] = schema.parameters["properties"]
        self.required: Final = frozenset(schema.parameters.get("required", ()))
        self.plain: Final = {
            name: _PLAIN[about["type"]]
            for name, about in properties.items()
            if about.get("type") in _PLAIN and not about.keys() - {"type", "description", "title"}
        }
        parameters = inspect.signature(function).parameters.values()
        self.more: Final = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        """Whether the method takes arguments that its schema does not name."""
        self.left_out: Final = frozenset(parameter.name for parameter in parameters if parameter.default is None)
        """Arguments whose null means that they were not given."""

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """Why the arguments do not fit; nearly always the quick look at exact types is enough."""
        plain = self.plain
        for name, value in arguments.items():
            if name not in plain or type(value) is not plain[name]:
                break
        else:
            if not self.required or self.required <= arguments.keys():
                return None
        return _misfit(self.schema.parameters, arguments, extra=self.more)

    def given(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments without those whose null says that they were left out."""
        if not self.left_out or None not in arguments.values():
            return arguments
        return {name: value for name, value in arguments.items() if value is not None or name not in self.left_out}


class _ActionMethods:
    """Finds the actions of an object: marked methods of its class, then marked attributes of its own."""

    _class_actions: ClassVar[dict[str, _Known]]
    _class_schemas: ClassVar[bytes]
    """The schemas of the class in the form that is the quickest to copy."""

    @classmethod
    def _actions_of_class(cls) -> dict[str, _Known]:
        """The actions by name, computed once per class."""
        known: dict[str, _Known] | None = cls.__dict__.get("_class_actions")
        if known is None:
            known = cls._class_actions = {
                name: _Known(ActionSchema.from_function(getattr(cls, name)), getattr(cls, name))
                for name in dir(cls)
                if not name.startswith("_") and _is_action_of(cls, name)
            }
            cls._class_schemas = marshal.dumps([action.schema.__dict__ for action in known.values()])
        return known

    def _own_actions(self) -> dict[str, Callable[..., Any]]:
        return {name: value for name, value in vars(self).items() if getattr(value, "_is_action", False)}

    def _own_action(self, name: str) -> _Known | None:
        """The action that this object alone has."""
        function = vars(self).get(name)
        if not getattr(function, "_is_action", False) or function is None:
            return None
        return _Known(ActionSchema.from_function(function).model_copy(update={"name": name}), function)

    @property
    def action_set(self) -> list[ActionSchema]:
        """By name; actions that this object alone has come last. The caller may change what it gets."""
        self._actions_of_class()
        copies = marshal.loads(self._class_schemas)  # noqa: S302  # bytes of our own
        own = self._own_actions()
        if not own:
            return [trusted(ActionSchema, values) for values in copies]
        actions = [trusted(ActionSchema, values) for values in copies if values["name"] not in own]
        return actions + [known.schema for name in own if (known := self._own_action(name)) is not None]

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

    def problem_of(self, action: Action, schema: ActionSchema | None = None) -> str | None:
        """Why an action cannot be executed, as a sentence: it is not offered, or its arguments do not fit.

        With `schema`, that is what was offered instead of the tool's own.
        """
        return self._checked(action, schema)[0]

    def _checked(self, action: Action, schema: ActionSchema | None = None) -> tuple[str | None, Mapping[str, Any]]:
        """The problem of an action, if it has one, and the arguments for its method."""
        name, arguments = action.name, action.arguments
        known = self._own_action(name) if name in vars(self) else self._actions_of_class().get(name)
        if schema is None and type(self).action_set is not _ActionMethods.action_set:  # a subclass says what it offers
            offered = self.action_set
            schema = next((schema for schema in offered if schema.name == name), None)
            if schema is None:
                return _unknown(name, offered), arguments
        if known is not None:
            given = known.given(arguments)
            problem = known.problem(given) if schema is None else _misfit(schema.parameters, given, extra=known.more)
            return _unfit(name, problem), given
        if schema is None:
            return _unknown(name, self.action_set), arguments
        return _unfit(name, _misfit(schema.parameters, arguments)), arguments


def _misfit(parameters: Mapping[str, Any], arguments: Mapping[str, Any], *, extra: bool = True) -> str | None:
    from cube.argument_check import misfit  # most calls are settled by a look at their types

    return misfit(parameters, arguments, extra=extra)


def _unknown(name: str, offered: Iterable[ActionSchema]) -> str:
    names = ", ".join(schema.name for schema in offered)
    return f"Unknown action {name[:100]!a}; available: {names or 'none'}."


def _unfit(name: str, problem: str | None) -> str | None:
    return None if problem is None else f"Action '{name}' was not executed: {problem}."


def refused(problem: str, action: Action) -> Observation:
    """The answer to an action that was not executed: the agent reads why, and continues."""
    return trusted(Observation, {"contents": [Content.from_data(problem, tool_call_id=action.id)]})


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
        """Call the action's method; an exception of it is returned. What cannot be called is answered with why."""
        try:
            problem, arguments = self._checked(action)
            if problem is not None:
                return refused(problem, action)
            return _observe(self.get_action_method(action)(**arguments), action)
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
        """Call the action's method; an exception of it is returned. What cannot be called is answered with why."""
        try:
            problem, arguments = self._checked(action)
            if problem is not None:
                return refused(problem, action)
            return _observe(await self.get_action_method(action)(**arguments), action)
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


class _Owners:
    """Which tool of a toolbox has an action. What was found is remembered; tools and their actions may change."""

    def __init__(self, tools: list[Any]) -> None:
        self._known = _owners(tools)

    def find(self, name: str, tools: list[Any]) -> Any:
        """The tool that has it now, or None."""
        known = self._known.get(name)
        if known is not None and known in tools and _has(known, name):
            return known
        self._known = {name: tool for tool in reversed(tools) for name in _names(tool)}
        return self._known.get(name)


def _has(tool: Any, name: str) -> bool:
    if isinstance(tool, _ActionMethods) and type(tool).action_set is _ActionMethods.action_set:
        return name in tool._actions_of_class() or name in vars(tool)
    return name in _names(tool)


def _names(tool: Any) -> list[str]:
    return [schema.name for schema in tool.action_set]


def problem_of(
    tool: AbstractTool | AbstractAsyncTool, action: Action, schema: ActionSchema | None = None
) -> str | None:
    """Why a tool of any kind cannot execute an action; `schema` is what was offered instead of the tool's own."""
    if isinstance(tool, _ActionMethods):
        return tool.problem_of(action, schema)
    if schema is None:
        offered = tool.action_set
        schema = next((schema for schema in offered if schema.name == action.name), None)
        if schema is None:
            return _unknown(action.name, offered)
    return _unfit(action.name, _misfit(schema.parameters, action.arguments))


def _raise(errors: list[Exception]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("Several tools failed to close.", errors)


class Toolbox(Tool):
    """Several tools as one; action names are unique across them."""

    def __init__(self, tools: Sequence[AbstractTool]) -> None:
        self.tools = list(tools)
        self._owner = _Owners(self.tools)

    @property
    def action_set(self) -> list[ActionSchema]:
        return [action for tool in self.tools for action in tool.action_set]

    def find_tool(self, kind: type[T]) -> T | None:
        """The first tool of that class."""
        return next((tool for tool in self.tools if isinstance(tool, kind)), None)

    def execute_action(self, action: Action) -> Any:
        tool = self._owner.find(action.name, self.tools)
        return refused(_unknown(action.name, self.action_set), action) if tool is None else tool.execute_action(action)

    def problem_of(self, action: Action, schema: ActionSchema | None = None) -> str | None:
        tool = self._owner.find(action.name, self.tools)
        return _unknown(action.name, self.action_set) if tool is None else problem_of(tool, action, schema)

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
        self._owner = _Owners(self.tools)

    @property
    def action_set(self) -> list[ActionSchema]:
        return [action for tool in self.tools for action in tool.action_set]

    def find_tool(self, kind: type[T]) -> T | None:
        """The first tool of that class."""
        return next((tool for tool in self.tools if isinstance(tool, kind)), None)

    async def execute_action(self, action: Action) -> Any:
        tool = self._owner.find(action.name, self.tools)
        if tool is None:
            return refused(_unknown(action.name, self.action_set), action)
        return await tool.execute_action(action)

    def problem_of(self, action: Action, schema: ActionSchema | None = None) -> str | None:
        tool = self._owner.find(action.name, self.tools)
        return _unknown(action.name, self.action_set) if tool is None else problem_of(tool, action, schema)

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
