"""Models say which class they are and come back as that class, and as no other."""

import subprocess
import sys
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, PydanticSchemaGenerationError, SerializeAsAny, ValidationError, create_model

from cube.core import Action, TypedBaseModel

T = TypeVar("T")


class Animal(TypedBaseModel, ABC):
    name: str

    @abstractmethod
    def sound(self) -> str: ...


class Dog(Animal):
    tricks: list[str] = []

    def sound(self) -> str:
        return "woof"


class Puppy(Dog):
    weeks: int = 8


class Zoo(TypedBaseModel):
    star: SerializeAsAny[Animal]
    others: list[SerializeAsAny[Animal]] = []
    by_cage: dict[str, SerializeAsAny[Animal]] = {}

    class Ticket(TypedBaseModel):
        price: float


class Box(TypedBaseModel, Generic[T]):
    item: T


class Shelf(TypedBaseModel):
    box: SerializeAsAny[Box[int]]


PUPPY = Puppy(name="Rex", tricks=["sit"], weeks=9)


def test_type_is_the_last_key_of_a_dump_and_names_the_class():
    dump = PUPPY.model_dump()
    assert list(dump)[-1] == "_type"
    assert dump["_type"] == f"{__name__}.Puppy"


@pytest.mark.parametrize("mode", ["python", "json"])
def test_subclasses_in_base_typed_fields_survive_a_round_trip(mode):
    zoo = Zoo(star=PUPPY, others=[Dog(name="Bo"), PUPPY], by_cage={"a": PUPPY})
    assert Zoo.model_validate(zoo.model_dump(mode=mode)) == zoo


def test_a_round_trip_dump_keeps_the_type():
    zoo = Zoo(star=PUPPY)
    assert Zoo.model_validate_json(zoo.model_dump_json(round_trip=True)) == zoo
    assert Zoo.model_validate(zoo.model_dump(round_trip=True)) == zoo


def test_an_abstract_class_needs_a_type_in_the_data():
    with pytest.raises(ValidationError, match="abstract class 'Animal'"):
        Animal.model_validate({"name": "x"})
    with pytest.raises(ValidationError, match="abstract class 'Animal'"):
        Zoo.model_validate({"star": {"_type": f"{__name__}.Animal", "name": "x"}})
    assert Animal.model_validate({"_type": f"{__name__}.Dog", "name": "x"}) == Dog(name="x")


def test_a_type_may_name_a_class_where_it_is_re_exported():
    again = TypedBaseModel.model_validate({"_type": "cube.task.Action", "name": "go"})
    assert again == Action(name="go")


def test_the_callers_dict_is_left_as_it_was():
    data = {"star": {"_type": f"{__name__}.Dog", "name": "x"}}
    before = {"star": dict(data["star"])}
    assert Zoo.model_validate(data) == Zoo.model_validate(data)
    assert data == before


@pytest.mark.parametrize(
    ("type_path", "reason"),
    [
        ("cube.core.Action", "must be a subclass of"),
        (f"{__name__}.Zoo", "must be a subclass of"),
        ("pydantic.BaseModel", "must be a TypedBaseModel subclass"),
        ("no_such_module_here.Dog", "No module named"),
        (f"{__name__}.Cat", "has no attribute 'Cat'"),
        ("Dog", "must have the form 'module.Class'"),
        ("", "must have the form 'module.Class'"),
        (".Dog", "must have the form 'module.Class'"),
        (7, "must have the form 'module.Class'"),
        (["x"], "must have the form 'module.Class'"),
    ],
)
def test_a_type_that_does_not_fit_is_a_validation_error_with_its_place(type_path, reason):
    with pytest.raises(ValidationError, match=reason) as caught:
        Zoo.model_validate(
            {"star": {"name": "a", "_type": f"{__name__}.Dog"}, "others": [{"_type": type_path, "name": "x"}]}
        )
    assert caught.value.errors()[0]["loc"] == ("others", 0)


def test_errors_inside_a_named_subclass_keep_their_place():
    with pytest.raises(ValidationError) as caught:
        Zoo.model_validate({"star": {"_type": f"{__name__}.Puppy", "name": "x", "weeks": "many"}})
    assert caught.value.errors()[0]["loc"] == ("star", "weeks")


def test_nothing_of_the_standard_library_is_imported_for_a_type():
    script = (
        "import sys; from cube.core import Action\n"
        "try: Action.model_validate({'_type': 'antigravity.X', 'name': 'a'})\n"
        "except ValueError as error: print('standard library' in str(error), 'antigravity' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("content", ["import not_installed_anywhere", "raise RuntimeError('boom')", "1 +"])
def test_a_module_that_fails_to_import_is_a_validation_error_with_the_cause(tmp_path, monkeypatch, content):
    name = f"broken_{abs(hash(content))}"
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValidationError, match=r"not_installed_anywhere|boom|SyntaxError"):
        Action.model_validate({"_type": f"{name}.Thing", "name": "a"})


def test_classes_inside_classes_and_generic_classes_come_back():
    ticket = Zoo.Ticket(price=3.5)
    assert TypedBaseModel.model_validate_json(ticket.model_dump_json()) == ticket
    shelf = Shelf(box=Box[int](item=3))
    again = Shelf.model_validate_json(shelf.model_dump_json())
    assert again.box.item == 3
    with pytest.raises(ValidationError):
        Shelf.model_validate({"box": {"_type": f"{__name__}.Box", "item": "many"}})


class AnyShelf(TypedBaseModel):
    box: SerializeAsAny[Box[Any]]


class SmallBox(Box[str]):
    size: int = 1


def test_a_generic_field_of_any_takes_instances_of_every_form_as_they_are():
    box = SmallBox(item="x", size=2)
    shelf = AnyShelf(box=box)
    assert shelf.box is box
    assert AnyShelf.model_validate_json(shelf.model_dump_json()) == shelf


def test_instances_pass_through_and_an_untyped_model_holds_typed_ones():
    class Plain(BaseModel):
        dog: SerializeAsAny[Dog]

    plain = Plain(dog=PUPPY)
    assert plain.dog is PUPPY
    assert Plain.model_validate_json(plain.model_dump_json()).dog == PUPPY


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELD_TYPES = {
    int: st.integers(-(2**40), 2**40),
    str: st.text(max_size=10),
    bool: st.booleans(),
    dict[str, Any]: st.dictionaries(st.text(max_size=5), JSON, max_size=3),
}


class Node(TypedBaseModel):
    children: list[SerializeAsAny["Node"]] = []
    best: SerializeAsAny["Node"] | None = None


@st.composite
def class_trees(draw):
    """A few classes, each derived from an earlier one, with fields of its own."""
    classes = [Node]
    for number in range(draw(st.integers(1, 5))):
        fields = {
            f"field_{number}_{index}": (draw(st.sampled_from(list(FIELD_TYPES))), ...)
            for index in range(draw(st.integers(0, 3)))
        }
        name = f"Generated{number}"
        classes.append(create_model(name, __base__=draw(st.sampled_from(classes)), __module__=__name__, **fields))
        setattr(sys.modules[__name__], name, classes[-1])
    return classes


def instance(draw, classes, depth):
    cls = draw(st.sampled_from(classes))
    own = {
        name: draw(FIELD_TYPES[f.annotation]) for name, f in cls.model_fields.items() if name not in Node.model_fields
    }
    children = [instance(draw, classes, depth - 1) for _ in range(draw(st.integers(0, 2)) if depth else 0)]
    best = instance(draw, classes, depth - 1) if depth and draw(st.booleans()) else None
    return cls(children=children, best=best, **own)


@settings(max_examples=settings().max_examples // 3)
@given(st.data())
def test_any_tree_of_generated_subclasses_survives_json(data):
    classes = data.draw(class_trees())
    value = instance(data.draw, classes, depth=2)
    again = Node.model_validate_json(value.model_dump_json())
    assert again == value
    assert [type(node) for node in walk(again)] == [type(node) for node in walk(value)]


def walk(node):
    yield node
    for child in [*node.children, *([node.best] if node.best else [])]:
        yield from walk(child)


def _in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_tasks_builds_no_model_until_one_is_used():
    code = """
from cube.task import STOP_ACTION, TaskMetadata
from cube.core import Action
print(TaskMetadata.__pydantic_complete__, Action.__pydantic_complete__)
TaskMetadata(id="a")
print(TaskMetadata.__pydantic_complete__, Action.__pydantic_complete__)
"""
    assert _in_new_process(code).splitlines() == ["False False", "True True"]


def test_contents_that_no_validator_made_are_dumped_in_a_new_process():
    code = """
from pydantic import TypeAdapter
from cube.core import Content, Observation
from cube.typed import trusted
steps = [trusted(Observation, {"contents": [Content.from_data("hello")]})]
print(TypeAdapter(list[Observation]).dump_json(steps).decode())
"""
    assert '"data":"hello","_type":"cube.core.TextContent"' in _in_new_process(code).replace(" ", "")


def test_a_mistake_in_a_subclass_shows_where_the_class_is_defined():
    with pytest.raises(PydanticSchemaGenerationError):

        class Wrong(Action):
            extra: subprocess.Popen[str]
