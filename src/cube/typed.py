"""`TypedBaseModel`: models that store the name of their class and are restored as that class.

A dump contains `_type`, the import path of the class, as its last key. Validation reads it, imports the class, and
accepts it only if it is a subclass of the expected class; the caller's data is not modified. Fields for such
models are declared as `SerializeAsAny[Base]`, or a dump would keep only the base's fields.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, computed_field, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import CoreSchema

TYPE_KEY: Final = "_type"

M = TypeVar("M", bound="TypedBaseModel")
_new = object.__new__
# The four slots in which pydantic stores an instance, set directly to avoid a look-up by name.
_set_values = vars(BaseModel)["__dict__"].__set__
_set_fields_set = vars(BaseModel)["__pydantic_fields_set__"].__set__
_set_extra = vars(BaseModel)["__pydantic_extra__"].__set__
_set_private = vars(BaseModel)["__pydantic_private__"].__set__
_RESOLVED: dict[tuple[type, str], type[Any]] = {}
"""The class for a pair of expected class and `_type`; cleared whenever a class is defined."""
_ABSTRACT: set[type] = set()
"""The abstract classes; looking in a set is faster than asking the class."""
_DEFERRED: list[type[BaseModel]] = []
"""The classes declared with `defer_build=True`, until any of them is first used: that keeps imports light."""


class _FieldNames(dict[type[BaseModel], set[str]]):
    """The names of all fields of a class, computed once."""

    def __missing__(self, cls: type[BaseModel]) -> set[str]:
        return self.setdefault(cls, set(cls.model_fields))


_ALL_FIELDS = _FieldNames()


class TypedBaseModel(BaseModel):
    """Base class of everything that is sent as JSON."""

    model_config = ConfigDict(defer_build=True)

    @computed_field(return_type=str, repr=False)  # type: ignore[prop-decorator]  # mypy: decorated properties
    @property
    def _type(self) -> str:
        return _path_of(type(self))

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.model_config.pop("defer_build", False):  # not inherited: a mistake in a subclass shows where it is made
            _DEFERRED.append(cls)
        # A plain string instead of the property: the serializer reads it without calling Python.
        type.__setattr__(cls, "_type", _path_of(cls))
        if cls.__abstractmethods__:
            _ABSTRACT.add(cls)
        _RESOLVED.clear()  # the new class may replace another of the same name, as in a notebook

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        # All at once: pydantic before 2.14 cannot serialize an instance of a class that was built only as a field.
        while _DEFERRED:
            _DEFERRED.pop().model_rebuild()
        return handler(source)

    @model_validator(mode="wrap")
    @classmethod
    def _as_named_class(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Validate as this class, or as the subclass named by `_type`."""
        if isinstance(value, dict):
            path = value.get(TYPE_KEY)
            if path is not None:
                try:
                    actual = _RESOLVED[cls, path]
                except (KeyError, TypeError):  # not cached yet, or not hashable
                    actual = _subclass(cls, path)
                value = value.copy()
                del value[TYPE_KEY]
                if actual is not cls:
                    validated: Self = actual.__pydantic_validator__.validate_python(value, context=info.context)
                    return validated
            elif cls in _ABSTRACT:
                raise _abstract(cls)
        elif isinstance(value, TypedBaseModel) and _is_any_form(cls, value):
            return cast("Self", value)
        return handler(value)

    # Pydantic's `round_trip=True` would drop computed fields, and with them `_type`. JSON without options, the usual
    # case for configs, goes straight to the compiled code that pydantic would call.

    def model_dump(self, *, round_trip: bool = False, **options: Any) -> dict[str, Any]:
        """As in pydantic; `round_trip=True` keeps `_type`, which is needed to restore the class."""
        del round_trip
        return super().model_dump(**options)

    def model_dump_json(self, *, round_trip: bool = False, **options: Any) -> str:
        """As in pydantic; `round_trip=True` keeps `_type`."""
        del round_trip
        return super().model_dump_json(**options) if options else self.__pydantic_serializer__.to_json(self).decode()

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """As in pydantic."""
        if options:
            return super().model_validate_json(json_data, **options)
        validated: Self = cls.__pydantic_validator__.validate_json(json_data)
        return validated


class Derived:
    """A value that follows from the fields of a model, kept in a private attribute: models are equal without it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Derived)

    __hash__ = None  # type: ignore[assignment]  # as for any value that can change


_DEFERRED.append(TypedBaseModel)
del TypedBaseModel.model_config["defer_build"]


def trusted(cls: type[M], values: dict[str, Any], fields_set: set[str] | None = None) -> M:
    """An instance of `cls` that takes over a complete and valid field dict without validation.

    For the hot path and for classes without private attributes, validators and `model_post_init`. By default
    all fields count as set; that set is shared by all such instances, since nothing can be added to it.
    """
    new = _new(cls)
    _set_values(new, values)
    _set_fields_set(new, _ALL_FIELDS[cls] if fields_set is None else fields_set)
    _set_extra(new, None)
    _set_private(new, None)
    return new


def _path_of(cls: type[TypedBaseModel]) -> str:
    named = cls.__pydantic_generic_metadata__["origin"] or cls
    return f"{named.__module__}.{named.__qualname__}"


def _is_any_form(cls: type[TypedBaseModel], value: TypedBaseModel) -> bool:
    """Whether `cls` is a generic class with Any or defaults for its parameters, and `value` any form of it.

    Pydantic treats `Base[Any]` as a separate class and would convert the value to an instance of it.
    """
    generic = cls.__pydantic_generic_metadata__
    origin = generic["origin"]
    if origin is None or not isinstance(value, origin):
        return False
    parameters = origin.__pydantic_generic_metadata__["parameters"]
    return all(
        argument is Any or argument is getattr(parameter, "__default__", None)
        for argument, parameter in zip(generic["args"], parameters, strict=True)
    )


def _subclass(cls: type[M], path: object) -> type[M]:
    """The class at `path`, which is `cls` or derives from it; otherwise a ValueError with the reason."""
    if not isinstance(path, str) or "." not in path.strip("."):
        raise ValueError(f"'{TYPE_KEY}' must have the form 'module.Class', not {path!r}.")
    module_name, _, name = path.rpartition(".")
    module = sys.modules.get(module_name)
    found = getattr(module, name, None) or _import(path)
    if not (isinstance(found, type) and issubclass(found, TypedBaseModel)):
        raise ValueError(f"Refusing to deserialize '{path}': class must be a TypedBaseModel subclass.")
    expected: type[Any] = cls.__pydantic_generic_metadata__["origin"] or cls
    if not issubclass(found, expected):
        raise ValueError(f"Cannot deserialize '{path}': class must be a subclass of '{_path_of(expected)}'.")
    if found.__abstractmethods__:
        raise _abstract(found)
    actual = cls if found is expected else cast("type[M]", found)
    _RESOLVED[cls, path] = actual
    return actual


def _abstract(cls: type[TypedBaseModel]) -> ValueError:
    return ValueError(
        f"Cannot deserialize abstract class '{cls.__name__}' directly: the data needs '{TYPE_KEY}', the import path "
        f"of a concrete subclass."
    )


def _import(path: str) -> object:
    """The object at an import path; modules of the standard library are never imported for it."""
    import pkgutil

    module_name = path.rpartition(".")[0]
    if path.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"Refusing to deserialize '{path}': it names a module of the standard library.")
    try:
        try:
            importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its own imports does not
        return pkgutil.resolve_name(path)
    except AttributeError as error:
        raise ValueError(f"Cannot deserialize '{path}': {error}.") from error
    except Exception as error:  # any exception during the import means bad input here
        raise ValueError(f"Cannot deserialize '{path}': {type(error).__name__}: {error}.") from error
