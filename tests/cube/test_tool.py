"""Tools, toolboxes, and their asynchronous kin."""

import asyncio

import pytest

from cube.container import Container
from cube.core import Action, ActionSchema, Observation, StepError, StructuredContent, TextContent
from cube.tool import (
    AsyncTool,
    AsyncToolbox,
    AsyncToolboxConfig,
    AsyncToolConfig,
    Tool,
    Toolbox,
    ToolboxConfig,
    ToolConfig,
    UnknownActionError,
    tool_action,
)


class Desk(Tool):
    def __init__(self, fail_on_close: bool = False):
        self.log: list[str] = []
        self.fail_on_close = fail_on_close

    @property
    def trap(self):
        raise AssertionError("properties are never evaluated")

    @tool_action
    def give(self, value: object = None) -> object:
        """Give a value back.

        Args:
            value: anything
        """
        return value

    @tool_action
    def fail(self) -> None:
        """Fail."""
        raise LookupError("not here")

    def hidden(self) -> None:
        """Not an action."""

    def reset(self) -> None:
        self.log.append("reset")

    def close(self) -> None:
        self.log.append("close")
        if self.fail_on_close:
            raise OSError("stuck")


class OtherDesk(Desk):
    def fail(self) -> str:
        """Succeed instead; still an action."""
        return "fine"


class Lamp(Tool):
    @tool_action
    def switch(self) -> None:
        """Switch the lamp."""


class DeskConfig(ToolConfig):
    fail_on_close: bool = False

    def make(self, container: Container | None = None) -> Desk:
        return Desk(self.fail_on_close)


class LampConfig(ToolConfig):
    watts: int = 40

    def make(self, container: Container | None = None) -> Lamp:
        return Lamp()


class BrokenConfig(ToolConfig):
    def make(self, container: Container | None = None) -> Tool:
        raise RuntimeError("no tool")


def names(tool):
    return [action.name for action in tool.action_set]


def test_marked_methods_are_actions_in_alphabetical_order():
    assert names(Desk()) == ["fail", "give"]


def test_an_override_need_not_repeat_the_mark():
    assert names(OtherDesk()) == ["fail", "give"]
    assert OtherDesk().execute_action(Action(name="fail")) == Observation.from_text("fine")


def test_static_and_class_methods_may_be_actions():
    class Shelf(Tool):
        @staticmethod
        @tool_action
        def count(first: int = 1) -> int:
            """Count.

            Args:
                first: from where
            """
            return first

        @classmethod
        @tool_action
        def kind(cls) -> str:
            """What it is."""
            return cls.__name__

    shelf = Shelf()
    assert [action.name for action in shelf.action_set] == ["count", "kind"]
    assert shelf.action_set[0].parameters["properties"]["first"]["type"] == "integer"
    assert shelf.execute_action(Action(name="count", arguments={"first": 4})).contents[0].data == "4"
    assert shelf.execute_action(Action(name="kind")).contents[0].data == "Shelf"


def test_an_attribute_of_one_tool_is_an_action_of_that_tool_alone():
    @tool_action
    def extra() -> str:
        """Extra."""
        return "extra"

    desk = Desk()
    desk.more = extra
    assert names(desk) == ["fail", "give", "more"]
    assert desk.execute_action(Action(name="more")) == Observation.from_text("extra")
    assert names(Desk()) == ["fail", "give"]


def test_a_toolbox_follows_its_tools_when_they_change():
    @tool_action
    def extra() -> str:
        """Extra."""
        return "extra"

    def answers(name):
        return "Unknown action" not in box.execute_action(Action(name=name)).contents[0].data

    desk, lamp = Desk(), Lamp()
    box = Toolbox([desk, lamp])
    assert answers("switch")
    box.tools.remove(lamp)
    assert not answers("switch")
    box.tools = [lamp]
    assert answers("switch")
    assert not answers("give")
    lamp.extra = extra
    assert answers("extra")
    del lamp.extra
    assert not answers("extra")


def test_the_list_of_actions_is_the_callers_own():
    desk = Desk()
    desk.action_set.clear()
    assert names(desk) == ["fail", "give"]


@pytest.mark.parametrize(
    ("value", "data"), [(0, "0"), ("", ""), (False, "False"), ([], []), ({}, {}), (None, "Success")]
)
def test_falsy_results_keep_their_value(value, data):
    result = Desk().execute_action(Action(id="c", name="give", arguments={"value": value}))
    assert [(content.data, content.tool_call_id) for content in result.contents] == [(data, "c")]


def test_an_observation_or_content_is_taken_as_it_is():
    observation = Observation(contents=[TextContent(data="a"), TextContent(data="b")])
    content = StructuredContent(data={"x": 1})
    desk = Desk()
    assert desk.execute_action(Action(name="give", arguments={"value": observation})) is observation
    assert desk.execute_action(Action(name="give", arguments={"value": content})).contents == [content]


@pytest.mark.parametrize(
    ("action", "error_type"),
    [
        (Action(name="fail"), "LookupError"),
        (Action(name="give", arguments={"value": b"raw"}), "TypeError"),
    ],
)
def test_what_a_method_raises_is_returned(action, error_type):
    result = Desk().execute_action(action)
    assert isinstance(result, StepError)
    assert result.error_type == error_type


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "does not exist in Desk"),
        ("log", "does not exist in Desk"),
        ("_own_actions", "does not exist in Desk"),
        ("hidden", "not decorated with @tool_action"),
        ("close", "not decorated with @tool_action"),
        ("f\u0430il", "does not exist in Desk"),
        ("fail ", "does not exist in Desk"),
        ("", "does not exist in Desk"),
    ],
)
def test_only_actions_can_be_called_and_a_call_of_anything_else_is_answered_with_what_there_is(name, reason):
    desk = Desk()
    with pytest.raises(UnknownActionError, match=reason):
        desk.get_action_method(Action(name=name))
    answer = desk.execute_action(Action(id="c", name=name))
    assert [(content.data, content.tool_call_id) for content in answer.contents] == [
        (f"Unknown action {name!a}; available: fail, give.", "c")
    ]
    assert desk.log == []


def test_a_toolbox_joins_tools():
    desk, lamp = Desk(), Lamp()
    box = Toolbox([desk, lamp])
    assert names(box) == ["fail", "give", "switch"]
    assert box.execute_action(Action(name="switch")) == Observation.from_text("Success")
    assert box.find_tool(Lamp) is lamp
    assert box.find_tool(ToolboxConfig) is None
    box.reset()
    assert desk.log == ["reset"]
    unknown = Observation.from_text("Unknown action 'fly'; available: fail, give, switch.")
    assert box.execute_action(Action(name="fly")) == unknown


def test_two_tools_with_one_action_name_are_refused():
    with pytest.raises(ValueError, match=r"Duplicate action name 'fail' .* \(Desk and OtherDesk\)"):
        Toolbox([Desk(), OtherDesk()])


def test_a_tool_that_fails_to_close_does_not_keep_the_others_open():
    first, second = Desk(fail_on_close=True), Desk()
    second_only = OtherDesk()
    box = Toolbox([first])
    box.tools += [second, second_only]
    with pytest.raises(OSError, match="stuck"):
        box.close()
    assert second.log == second_only.log == ["close"]


def test_a_toolbox_config_survives_json_and_flattens():
    config = ToolboxConfig(
        tool_configs=[DeskConfig(fail_on_close=True), ToolboxConfig(tool_configs=[LampConfig(watts=60)])]
    )
    assert ToolConfig.model_validate_json(config.model_dump_json()) == config
    assert [type(tool) for tool in config.make().tools] == [Desk, Lamp]


def test_a_toolbox_that_cannot_be_made_closes_what_was_made(monkeypatch):
    made = []
    make = DeskConfig.make
    monkeypatch.setattr(DeskConfig, "make", lambda self, container=None: made.append(make(self)) or made[-1])
    with pytest.raises(RuntimeError, match="no tool"):
        ToolboxConfig(tool_configs=[DeskConfig(fail_on_close=True), DeskConfig(), BrokenConfig()]).make()
    assert made[1].log == ["close"]


class Radio(AsyncTool):
    def __init__(self):
        self.log = []

    @tool_action
    async def tune(self, station: str) -> str:
        """Tune.

        Args:
            station: where to
        """
        await asyncio.sleep(0)
        return f"on {station}"

    @tool_action
    async def fail(self) -> None:
        """Fail."""
        raise LookupError("static")

    async def reset(self):
        self.log.append("reset")

    async def close(self):
        self.log.append("close")


class RadioConfig(AsyncToolConfig):
    async def make(self, container: Container | None = None) -> Radio:
        return Radio()


def test_async_tools_and_toolboxes_behave_as_the_others():
    async def play():
        box = await AsyncToolboxConfig(tool_configs=[AsyncToolboxConfig(tool_configs=[RadioConfig()])]).make()
        assert isinstance(box, AsyncToolbox)
        assert names(box) == ["fail", "tune"]
        await box.reset()
        heard = await box.execute_action(Action(name="tune", arguments={"station": "BBC"}))
        failed = await box.execute_action(Action(name="fail"))
        for tool in (box, box.tools[0]):
            unknown = await tool.execute_action(Action(name="fly"))
            assert unknown == Observation.from_text("Unknown action 'fly'; available: fail, tune.")
            unfit = await tool.execute_action(Action(name="tune", arguments={"station": 5}))
            assert "'station' must be a string, not 5" in unfit.contents[0].data
        await box.close()
        assert box.find_tool(Radio).log == ["reset", "close"]
        return heard, failed

    heard, failed = asyncio.run(play())
    assert heard == Observation.from_text("on BBC")
    assert failed.error_type == "LookupError"


def test_an_async_tool_with_a_plain_action_is_refused_when_it_is_defined():
    with pytest.raises(TypeError, match=r"Wrong\.go is decorated with @tool_action but is not async"):

        class Wrong(AsyncTool):
            @tool_action
            def go(self):
                """Go."""


def test_an_action_without_docstring_is_refused_with_its_name():
    class Silent(Tool):
        @tool_action
        def go(self): ...

    with pytest.raises(ValueError, match="'go' has no docstring"):
        _ = Silent().action_set


def test_action_schemas_cannot_be_changed_behind_the_tools_back():
    schema = Desk().action_set[0]
    assert isinstance(schema, ActionSchema)
    with pytest.raises(ValueError, match="frozen"):
        schema.name = "other"
    changed = Desk().action_set[1]
    changed.parameters["properties"]["value"]["type"] = "null"
    changed.parameters["properties"]["more"] = {}
    changed.as_dict()["function"]["parameters"]["properties"].clear()
    assert Desk().action_set[1].parameters == {"type": "object", "properties": {"value": {"description": "anything"}}}
    assert changed.parameters["properties"]["more"] == {}, "a copy is the reader's own"
    assert Desk().execute_action(Action(name="give", arguments={"value": 3})) == Observation.from_text("3")
