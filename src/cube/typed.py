"""`TypedBaseModel`: models that say which class they are, and come back as that class.

A dump carries `_type`, the import path of the class, as its last key. Validation reads it, imports the class, and
accepts it only if it is a subclass of what was asked for; the caller's data is left as it was. Fields that hold such
models are declared as `SerializeAsAny[Base]`, or a dump would keep only the base's fields.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any, Final, Self, TypeVar, cast

from pydantic import BaseModel, ModelWrapValidatorHandler, ValidationInfo, computed_field, model_validator

TYPE_KEY: Final = "_type"

M = TypeVar("M", bound="TypedBaseModel")
_new = object.__new__
_set = object.__setattr__
_RESOLVED: dict[tuple[type, str], type[Any]] = {}
"""The class that a `_type` stands for where another was asked for; emptied whenever a class is defined."""
_ALL_FIELDS: dict[type, set[str]] = {}


class TypedBaseModel(BaseModel):
    """Base of everything that travels as JSON."""

    @computed_field(repr=False)  # type: ignore[prop-decorator]  # mypy cannot see through decorated properties
    @property
    def _type(self) -> str:
        return _path_of(type(self))

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        # A plain string in the property's place: the serializer reads it without a call into Python.
        type.__setattr__(cls, "_type", _path_of(cls))
        _RESOLVED.clear()  # the new class may stand where another of its name stood, as in a notebook

    @model_validator(mode="wrap")
    @classmethod
    def _as_named_class(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Validate as this class, or as the subclass of it that `_type` names."""
        if isinstance(value, dict):
            path = value.get(TYPE_KEY)
            if path is not None:
                actual = _RESOLVED.get((cls, path)) if isinstance(path, str) else None
                actual = actual or _subclass(cls, path)
                value = value.copy()
                del value[TYPE_KEY]
                if actual is not cls:
                    return cast("Self", actual.__pydantic_validator__.validate_python(value, context=info.context))
            elif cls.__abstractmethods__:
                raise ValueError(
                    f"Cannot deserialize abstract class '{cls.__name__}' directly: the data needs '{TYPE_KEY}', the "
                    f"import path of a concrete subclass."
                )
        elif isinstance(value, TypedBaseModel) and _is_any_form(cls, value):
            return cast("Self", value)
        return handler(value)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """As in pydantic; `round_trip=True` keeps `_type`, without which nothing would come back as its own class."""
        return super().model_dump(**_keep_type(options))

    def model_dump_json(self, **options: Any) -> str:
        """As in pydantic; `round_trip=True` keeps `_type`."""
        return super().model_dump_json(**_keep_type(options))


def trusted(cls: type[M], values: dict[str, Any], fields_set: set[str] | None = None) -> M:
    """An instance of `cls` from a complete and valid field dict, which it takes over without validation.

    For the hot path and for classes without private attributes, validators and `model_post_init`. Unless told otherwise
    all fields count as set; that set is shared by all such instances, since nothing can be added to it.
    """
    new = _new(cls)
    if fields_set is None:
        fields_set = _ALL_FIELDS.get(cls)
        if fields_set is None:
            fields_set = _ALL_FIELDS[cls] = set(cls.model_fields)
    _set(new, "__dict__", values)
    _set(new, "__pydantic_fields_set__", fields_set)
    _set(new, "__pydantic_extra__", None)
    _set(new, "__pydantic_private__", None)
    return new


def _path_of(cls: type[TypedBaseModel]) -> str:
    named = cls.__pydantic_generic_metadata__["origin"] or cls
    return f"{named.__module__}.{named.__qualname__}"


def _keep_type(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("round_trip"):
        options["round_trip"] = False  # pydantic leaves computed fields, and so `_type`, out of such dumps
    return options


def _is_any_form(cls: type[TypedBaseModel], value: TypedBaseModel) -> bool:
    """Whether `cls` is a generic class with Any for its parameters, and `value` an instance of it in whatever form.

    Pydantic knows `Base[Any]` as a class of its own and would make a new instance, of that class, from the value.
    """
    generic = cls.__pydantic_generic_metadata__
    origin = generic["origin"]
    return origin is not None and isinstance(value, origin) and all(argument is Any for argument in generic["args"])


def _subclass(cls: type[M], path: object) -> type[M]:
    """The class at `path`, which is `cls` or derives from it; a ValueError says why not."""
    if not isinstance(path, str) or "." not in path.strip("."):
        raise ValueError(f"'{TYPE_KEY}' must read 'module.Class', not {path!r}.")
    module_name, _, name = path.rpartition(".")
    module = sys.modules.get(module_name)
    found = getattr(module, name, None) or _import(path)
    if not (isinstance(found, type) and issubclass(found, TypedBaseModel)):
        raise ValueError(f"Refusing to deserialize '{path}': class must be a TypedBaseModel subclass.")
    expected: type[Any] = cls.__pydantic_generic_metadata__["origin"] or cls
    if not issubclass(found, expected):
        raise ValueError(f"Cannot deserialize '{path}': class must be a subclass of '{_path_of(expected)}'.")
    actual = cls if found is expected else cast("type[M]", found)
    _RESOLVED[cls, path] = actual
    return actual


def _import(path: str) -> object:
    """The object at an import path; nothing of the standard library is ever imported for it."""
    module_name = path.rpartition(".")[0]
    if path.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"Refusing to deserialize '{path}': the standard library holds no such class.")
    try:
        try:
            importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module is there, and something that it needs is not
        return pkgutil.resolve_name(path)
    except AttributeError as error:
        raise ValueError(f"Cannot deserialize '{path}': {error}.") from error
    except Exception as error:  # whatever a module raises while it is imported is bad input here
        raise ValueError(f"Cannot deserialize '{path}': {type(error).__name__}: {error}.") from error
