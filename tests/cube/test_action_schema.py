"""From documented functions to action schemas."""

import enum
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel

from cube.action_schema import function_schema
from cube.core import ActionSchema


def google(city: str, days: int = 3, exact: bool = False, tags: list[str] | None = None):
    """Forecast the weather.

    Longer text that is not part of the description.

    Args:
        city: where
        days: how far
        exact: whether to be exact
        tags: words
    """


def numpy_style(count, unit="m"):
    """Measure.

    Parameters
    ----------
    count : int
        how many
    unit : {'m', 'km'}, optional
        which unit
    """


def rest(path: str):
    """Open.

    :param path: the file
    """


def test_a_google_docstring_and_annotations_give_the_schema():
    assert function_schema(google) == {
        "name": "google",
        "description": "Forecast the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where"},
                "days": {"type": "integer", "description": "how far"},
                "exact": {"type": "boolean", "description": "whether to be exact"},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "words"},
            },
            "required": ["city"],
        },
    }


def test_a_docstring_type_wins_and_braces_are_an_enum_in_order():
    properties = function_schema(numpy_style)["parameters"]["properties"]
    assert properties["count"] == {"type": "integer", "description": "how many"}
    assert properties["unit"] == {"type": "string", "enum": ["m", "km"], "description": "which unit"}


def test_a_rest_docstring_is_read():
    assert function_schema(rest)["parameters"]["properties"]["path"]["description"] == "the file"


class Colour(enum.Enum):
    RED = "red"


def test_literals_enums_annotated_and_any_are_understood():
    def paint(
        mode: Literal["a", "b"], colour: Colour, size: Annotated[int, "how big"], extra: Any, pairs: list[list[int]]
    ):
        """Paint."""

    properties = function_schema(paint)["parameters"]["properties"]
    assert properties["mode"]["enum"] == ["a", "b"]
    assert properties["colour"]["enum"] == ["red"]
    assert properties["size"] == {"type": "integer", "description": "how big"}
    assert properties["extra"] == {}
    assert properties["pairs"]["items"] == {"type": "array", "items": {"type": "integer"}}


def test_a_function_without_parameters_has_no_required_list():
    def nothing():
        """Do nothing."""

    assert function_schema(nothing)["parameters"] == {"type": "object", "properties": {}}


def no_docstring(x: int): ...


def other_union(x: int | str = 1):
    """Do."""


def no_default(x: int | None):
    """Do."""


def wrong_default(x: Optional[str] = "hello"):  # noqa: UP045  # the old spelling is accepted too
    """Do."""


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_docstring, "has no docstring"),
        (other_union, r"only 'X \| None' is supported"),
        (no_default, "must default to None"),
        (wrong_default, "default is 'hello', not None"),
    ],
)
def test_what_a_schema_cannot_say_is_refused(function, reason):
    with pytest.raises(ValueError, match=reason):
        ActionSchema.from_function(function)


def test_references_of_models_count_from_the_root_of_the_parameters():
    class Leaf(BaseModel):
        children: list["Leaf"] = []

    def grow(leaf: Leaf, more: list[Leaf]) -> None:
        """Grow."""

    parameters = function_schema(grow)["parameters"]
    assert parameters["properties"]["leaf"] == {"$ref": "#/$defs/Leaf"}
    assert parameters["properties"]["more"]["items"] == {"$ref": "#/$defs/Leaf"}
    assert list(parameters["$defs"]) == ["Leaf"]


def test_annotations_known_only_as_text_keep_their_kind():
    def go(a, b, c, d):
        """Go."""

    go.__annotations__ = {"a": "list[Page] | None", "b": "Page | None", "c": "int | Page", "d": "dict[str, Page]"}
    properties = function_schema(go)["parameters"]["properties"]
    assert properties["a"] == {"type": "array", "items": {}}
    assert (properties["b"], properties["c"], properties["d"]) == ({"type": "string"}, {}, {"type": "object"})
