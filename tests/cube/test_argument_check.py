"""Arguments fit their schema as they are, or a sentence says where they do not."""

import enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from cube.argument_check import misfit
from cube.core import Action, Observation
from cube.tool import Tool, tool_action


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Leaf(BaseModel):
    size: int = Field(ge=1, le=9)
    children: list["Leaf"] = []


class Bench(Tool):
    """Every kind of parameter; `calls` is what reached a method."""

    def __init__(self):
        self.calls: list[dict[str, Any]] = []

    @tool_action
    def take(
        self,
        whole: int = 0,
        real: float = 0.0,
        flag: bool = False,
        text: str = "",
        words: list[str] = (),  # type: ignore[assignment]
        colour: Colour = Colour.RED,
        mode: Literal["fast", 2] = "fast",
        leaf: Leaf | None = None,
        limit: int | None = None,
        table: dict = {},  # noqa: B006
        anything: Any = None,
    ) -> str:
        """Take.

        Args:
            whole: a
            real: b
            flag: c
            text: d
            words: e
            colour: f
            mode: g
            leaf: h
            limit: i
            table: j
            anything: k
        """
        given = dict(locals())
        given.pop("self")
        self.calls.append(given)
        return "taken"

    @tool_action
    def rest(self, first: int, **more: Any) -> str:
        """Take more.

        Args:
            first: a
        """
        self.calls.append({"first": first, **more})
        return "taken"


FIT = [
    {},
    {"whole": 3, "real": 2, "flag": True, "text": "", "words": ["a"], "colour": "blue", "mode": 2},
    {"whole": 10**5000, "real": -(10**400)},
    {"leaf": {"size": 1, "children": [{"size": 9, "children": [{"size": 2}]}]}},
    {"limit": None, "leaf": None},
    {"limit": 5, "table": {"a": [1]}, "anything": object()},
]


@pytest.mark.parametrize("arguments", FIT)
def test_what_fits_reaches_the_method_unchanged(arguments):
    bench = Bench()
    assert bench.execute_action(Action(name="take", arguments=arguments)) == Observation.from_text("taken")
    assert {name: bench.calls[0][name] for name in arguments} == arguments


MISFIT = [
    ({"whole": "3"}, "'whole' must be an integer, not \"3\""),
    ({"whole": True}, "'whole' must be an integer, not true"),
    ({"whole": 3.0}, "'whole' must be an integer, not 3.0"),
    ({"whole": None}, "'whole' must be an integer, not null"),
    ({"real": float("nan")}, "'real' must be a number, not NaN"),
    ({"real": float("inf")}, "'real' must be a number, not Infinity"),
    ({"real": "1.5"}, "'real' must be a number"),
    ({"flag": 1}, "'flag' must be true or false, not 1"),
    ({"flag": "true"}, "'flag' must be true or false"),
    ({"text": 10**5000}, "'text' must be a string, not a value of type int"),
    ({"words": "abc"}, "'words' must be a list"),
    ({"words": ["a", 1]}, "'words[1]' must be a string, not 1"),
    ({"colour": "RED"}, '\'colour\' must be one of "red", "blue", not "RED"'),
    ({"colour": "r\u0435d"}, "'colour' must be one of"),
    ({"mode": 2.5}, "'mode' must be one of \"fast\", 2, not 2.5"),
    ({"mode": "2"}, "'mode' must be one of"),
    ({"leaf": {"size": 0}}, "'leaf.size' must be at least 1, not 0"),
    ({"leaf": {}}, "'leaf.size' is missing"),
    (
        {"leaf": {"size": 1, "children": [{"size": 1, "children": [{"size": True}]}]}},
        "'leaf.children[0].children[0].size'",
    ),
    ({"table": []}, "'table' must be an object"),
    ({"Whole": 1}, "unknown argument \"Whole\"; it takes 'whole',"),
    ({"self": 1}, 'unknown argument "self"'),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISFIT)
def test_what_does_not_fit_never_reaches_the_method(arguments, sentence):
    bench = Bench()
    answer = bench.execute_action(Action(name="take", arguments=arguments))
    assert answer.contents[0].data.startswith("Action 'take' was not executed: ")
    assert sentence in answer.contents[0].data
    assert bench.calls == []
    assert bench.problem_of(Action(name="take", arguments=arguments)) == answer.contents[0].data


def test_a_method_with_more_keywords_takes_them():
    bench = Bench()
    bench.execute_action(Action(name="rest", arguments={"first": 1, "other": 2}))
    assert bench.calls == [{"first": 1, "other": 2}]
    assert "'first' is missing" in bench.execute_action(Action(name="rest")).contents[0].data


def test_what_a_subclass_advertises_is_what_arguments_must_fit():
    class Narrow(Bench):
        @property
        def action_set(self):
            [taking] = [action for action in super().action_set if action.name == "take"]
            taking.parameters["properties"]["whole"]["maximum"] = 5
            return [taking]

    narrow = Narrow()
    assert "at most 5, not 6" in narrow.execute_action(Action(name="take", arguments={"whole": 6})).contents[0].data
    assert "action 'rest'" in narrow.execute_action(Action(name="rest", arguments={"first": 1})).contents[0].data
    narrow.execute_action(Action(name="take", arguments={"whole": 5}))
    assert len(narrow.calls) == 1


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": ["integer", "null"]}, None, True),
        ({"anyOf": [{"type": "integer"}, {"minLength": 2, "type": "string"}]}, "a", False),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, False),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 1, True),
        ({"allOf": [{"minimum": 1}, {"exclusiveMaximum": 3}]}, 3, False),
        ({"not": {"const": 1}}, True, True),
        ({"const": 1}, 1.0, True),
        ({"enum": [[1, True]]}, [1, 1], False),
        ({"pattern": "^a+$"}, "ab", False),
        ({"pattern": r"\p{L}"}, "ab", True),
        ({"multipleOf": 3}, 10**400, False),
        ({"multipleOf": 0.5}, 10**400, False),
        ({"multipleOf": 0.5}, 1.5, True),
        ({"uniqueItems": True}, [1, 1.0], False),
        ({"uniqueItems": True}, [1, True], True),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], False),
        ({"additionalProperties": False, "properties": {"a": True}}, {"b": 1}, False),
        ({"additionalProperties": False, "patternProperties": {"^b": {"type": "string"}}}, {"b": 1}, False),
        ({"additionalProperties": {"type": "string"}}, {"b": "x"}, True),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, False),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, False),
        ({"contains": {"type": "integer"}}, ["a"], False),
        ({"minProperties": 1}, {}, False),
        ({"maxItems": 1}, [1, 2], False),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 5}}, "a", False),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 5}}, 5, True),
        ({"$ref": "#/$defs/text"}, 1, False),
        ({"$ref": "#/$defs/loop"}, 1, True),
        ({"$ref": "#/$defs/gone"}, 1, False),
        ({"$ref": "https://example.org/schema"}, 1, True),
    ],
)
def test_a_schema_of_an_authors_own_is_kept(schema, value, fits):
    definitions = {"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": definitions}
    assert (misfit(parameters, {"x": value}) is None) is fits


def test_arguments_that_are_nested_beyond_reason_are_refused():
    deep: dict[str, Any] = {"size": 1}
    for _ in range(100_000):
        deep = {"size": 1, "children": [deep]}
    bench = Bench()
    answer = bench.execute_action(Action.model_construct(id=None, name="take", arguments={"leaf": deep}))
    assert "nested too deeply" in answer.contents[0].data
    assert bench.calls == []
    while deep.get("children"):  # freed from the outside: Python would recurse
        deep = deep.pop("children")[0]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["whole", "flag", "text", "words", "limit", "x"]), VALUES, max_size=3))
def test_whatever_an_agent_sends_a_method_gets_only_what_it_declares(arguments):
    bench = Bench()
    result = bench.execute_action(Action(name="take", arguments=arguments))
    assert isinstance(result, Observation)
    for call in bench.calls:
        assert type(call["whole"]) is int
        assert type(call["flag"]) is bool
        assert type(call["text"]) is str
        assert isinstance(call["words"], list | tuple)
        assert all(type(word) is str for word in call["words"])
        assert call["limit"] is None or type(call["limit"]) is int
