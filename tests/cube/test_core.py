"""Actions, contents, observations."""

import json

import pytest
from PIL import Image
from pydantic import BaseModel, ValidationError

from cube.core import (
    Action,
    ActionSchema,
    AudioContent,
    Content,
    EnvironmentOutput,
    ImageContent,
    Observation,
    StepError,
    StructuredContent,
    TextContent,
    VideoContent,
)


@pytest.mark.parametrize("field", ["name", "description"])
def test_an_action_schema_needs_a_name_and_a_description(field):
    values = {"name": "go", "description": "Go.", field: "  "}
    with pytest.raises(ValidationError, match="non-empty"):
        ActionSchema(**values)


def test_an_action_without_parameters_is_still_a_valid_tool_for_models():
    function = ActionSchema(name="go", description="Go.").as_dict()["function"]
    assert function["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"a": {"description": "x"}, "self": {}}, (True, "")),
        ({"a": {"type": "string"}}, (False, "parameter 'a' missing description")),
        ({"a": {"description": " "}}, (False, "parameter 'a' missing description")),
        ({"a": 3}, (False, "parameter 'a' invalid")),
    ],
)
def test_parameters_must_say_what_they_are_for(properties, expected):
    schema = ActionSchema(name="go", description="Go.", parameters={"type": "object", "properties": properties})
    assert schema.validate_param_descriptions() == expected


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}])
@pytest.mark.parametrize("shape", ["chat", "flat"])
def test_openai_tool_calls_become_actions(arguments, shape):
    body = {"name": "go", "arguments": arguments}
    call = {"id": "c1", "function": body} if shape == "chat" else {"call_id": "c1", **body}
    assert Action.from_openai_tool_call(call) == Action(id="c1", name="go", arguments={"x": 1})


@pytest.mark.parametrize("arguments", [None, "", {}])
def test_a_tool_call_without_arguments_has_none(arguments):
    assert Action.from_openai_tool_call({"name": "go", "arguments": arguments}).arguments == {}


class Model(BaseModel):
    a: int = 1


@pytest.mark.parametrize(
    ("data", "kind", "value"),
    [
        ("text", TextContent, "text"),
        ("", TextContent, ""),
        (0, TextContent, "0"),
        (1.5, TextContent, "1.5"),
        (False, TextContent, "False"),
        ([], StructuredContent, []),
        ({"a": 1}, StructuredContent, {"a": 1}),
        (Model(), StructuredContent, {"a": 1}),
    ],
)
def test_data_becomes_the_content_that_fits(data, kind, value):
    content = Content.from_data(data, tool_call_id="c")
    assert (type(content), content.data, content.tool_call_id) == (kind, value, "c")


def test_a_content_is_taken_as_it_is_and_learns_the_call_it_answers():
    mine = StructuredContent(data={"a": 1}, name="mine")
    taken = Content.from_data(mine, tool_call_id="c", name="other")
    assert (taken.data, taken.name, taken.tool_call_id) == ({"a": 1}, "mine", "c")
    assert mine.tool_call_id is None


@pytest.mark.parametrize("data", [b"raw", (1, 2), object()])
def test_data_without_a_fitting_content_is_refused(data):
    with pytest.raises(TypeError):
        Content.from_data(data)


def test_contents_render_for_people_and_for_models():
    text, table = TextContent(data="hi", name="log"), StructuredContent(data={"a": 1}, tool_call_id="c")
    assert text.to_markdown() == "## log\nhi"
    assert text.to_llm_message() == {"role": "user", "content": "## log\nhi"}
    assert table.to_markdown() == '```json\n{\n  "a": 1\n}\n```'
    assert table.to_llm_message() == {"role": "tool", "tool_call_id": "c", "content": '{"a": 1}'}
    both = Observation(contents=[text, table])
    assert both.to_markdown() == "\n\n".join([text.to_markdown(), table.to_markdown()])
    assert both.to_llm_messages() == [text.to_llm_message(), table.to_llm_message()]
    assert AudioContent(data=b"123", duration_seconds=2).to_markdown() == "[audio: 3 bytes, 2 s]"


def test_pictures_travel_as_png_and_come_back_equal():
    picture = ImageContent(data=Image.new("RGB", (3, 2), "red"), name="shot")
    again = Content.model_validate_json(picture.model_dump_json())
    assert isinstance(again, ImageContent)
    assert again.data.tobytes() == picture.data.tobytes()
    parts = picture.to_llm_message()["content"]
    assert parts[0] == {"type": "text", "text": "## shot"}
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert isinstance(Content.from_data(picture.data), ImageContent)
    with pytest.raises(ValidationError):
        ImageContent(data="http://example.invalid/picture.png")


@pytest.mark.parametrize("cut", [3, 30, 60])
def test_a_damaged_picture_is_a_validation_error(cut):
    url = ImageContent(data=Image.effect_noise((40, 40), 9)).model_dump()["data"]
    with pytest.raises(ValidationError, match=r"is not a PNG image|is not valid base64"):
        ImageContent(data=url[: len("data:image/png;base64,") + 4 * cut])


class NotedObservation(Observation):
    note: str


class CodedError(StepError):
    code: int


@pytest.mark.parametrize("kind", [AudioContent, VideoContent])
def test_any_bytes_survive_json(kind):
    recording = kind(data=bytes(range(256)), duration_seconds=1.5)
    assert Content.model_validate_json(recording.model_dump_json()) == recording
    with pytest.raises(ValidationError, match="base64"):
        kind.model_validate({"data": "%%%"})


def test_adding_observations_extends_the_left_one_in_place():
    left, right = Observation.from_text("a"), Observation.from_text("b")
    same = left
    left += right
    assert left is same
    assert [content.data for content in same.contents] == ["a", "b"]


def test_an_exception_becomes_a_step_error_with_its_trace():
    try:
        raise KeyError("gone")
    except KeyError as caught:
        error = StepError.from_exception(caught)
    assert (error.error_type, error.exception_str) == ("KeyError", "'gone'")
    assert "test_an_exception_becomes" in error.stack_trace


def test_an_output_survives_json():
    output = EnvironmentOutput(obs=Observation.from_text("x"), reward=0.5, done=True, info={"a": [1]})
    assert EnvironmentOutput.model_validate_json(output.model_dump_json()) == output
    assert json.loads(output.model_dump_json())["truncated"] is False


def test_subclasses_inside_an_output_keep_their_fields():
    error = CodedError(error_type="E", exception_str="e", stack_trace="", code=4)
    output = EnvironmentOutput(obs=NotedObservation(note="n"), error=error)
    assert EnvironmentOutput.model_validate_json(output.model_dump_json()) == output


@pytest.mark.parametrize("call", [{}, {"function": {"arguments": "{}"}}, {"name": "a", "arguments": "{"}, {"name": 3}])
def test_a_tool_call_that_is_none_is_a_value_error(call):
    with pytest.raises(ValueError, match=r"name|property"):
        Action.from_openai_tool_call(call)
