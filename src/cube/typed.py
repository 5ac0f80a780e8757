"""`TypedBaseModel`: models that say which class they are, and come back as that class.

A dump carries `_type`, the import path of the class, as its last key. Validation reads it, imports the class, and accepts it
only if it is a subclass of what was asked for; the caller's data is left as it was. Fields that hold such models are declared
as `SerializeAsAny[Base]`, or a dump would keep only the base's fields.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, Self, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, computed_field
from pydantic_core import CoreSchema, core_schema

TYPE_KEY: Final = "_type"

M = TypeVar("M", bound="TypedBaseModel")
_set = object.__setattr__


class TypedBaseModel(BaseModel):
    """Base of everything that travels as JSON."""

    _type_path: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        named = cls.__pydantic_generic_metadata__["origin"] or cls
        cls._type_path = f"{named.__module__}.{named.__qualname__}"

    @computed_field(repr=False)  # type: ignore[prop-decorator]  # mypy cannot see through decorated properties
    @property
    def _type(self) -> str:
        return self._type_path

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(partial(_dispatch, cls), handler(source))

    def model_dump(self, **options: Any) -> dict[str, Any]:  # type: ignore[override]  # same options, passed through
        """As in pydantic; `round_trip=True` keeps `_type`, without which nothing would come back as its own class."""
        return super().model_dump(**_keep_type(options))

    def model_dump_json(self, **options: Any) -> str:  # type: ignore[override]  # same options, passed through
        """As in pydantic; `round_trip=True` keeps `_type`."""
        return super().model_dump_json(**_keep_type(options))

    def _clone(self, **updates: Any) -> Self:
        """A shallow copy with `updates` that are known to be valid, at the cost of a dict; runtime state is not copied."""
        new = _make(type(self), {**self.__dict__, **updates})
        _set(new, "__pydantic_fields_set__", self.__pydantic_fields_set__ | updates.keys())
        return new


def trusted(cls: type[M], values: dict[str, Any]) -> M:
    """An instance of `cls` from a complete and valid field dict, which it takes over without validation.

    For the hot path and for classes without private attributes, validators and `model_post_init`.
    """
    new = _make(cls, values)
    _set(new, "__pydantic_fields_set__", set(values))
    return new


def _make(cls: type[M], values: dict[str, Any]) -> M:
    new = cls.__new__(cls)
    _set(new, "__dict__", values)
    _set(new, "__pydantic_extra__", None)
    _set(new, "__pydantic_private__", None)
    return new


def _keep_type(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("round_trip"):
        options["round_trip"] = False  # pydantic leaves computed fields, and so `_type`, out of such dumps
    return options


def _dispatch(
    cls: type[TypedBaseModel],
    value: Any,
    handler: Callable[[Any], Any],
    info: core_schema.ValidationInfo,
) -> Any:
    """Validate `value` as `cls`, or as the subclass of it that `_type` names."""
    if type(value) is dict or isinstance(value, Mapping):
        path = value.get(TYPE_KEY)
        if path is not None:
            actual = _subclass(cls, path)
            value = {key: item for key, item in value.items() if key != TYPE_KEY}
            if actual is not cls:
                return actual.__pydantic_validator__.validate_python(value, context=info.context)
        elif cls.__abstractmethods__:
            raise ValueError(
                f"Cannot deserialize abstract class '{cls.__name__}' directly: the data needs '{TYPE_KEY}', the import "
                f"path of a concrete subclass."
            )
    return handler(value)


def _subclass(cls: type[TypedBaseModel], path: object) -> type[TypedBaseModel]:
    """The class at `path`, which is `cls` or derives from it; a ValueError says why not."""
    if path == cls._type_path:
        return cls
    if not isinstance(path, str):
        raise ValueError(f"'{TYPE_KEY}' must be the import path of a class, not {path!r}.")  # noqa: TRY004  # pydantic reports ValueError
    found = _find(path)
    if not (isinstance(found, type) and issubclass(found, TypedBaseModel)):
        raise ValueError(f"Refusing to deserialize '{path}': class must be a TypedBaseModel subclass.")
    expected = cls.__pydantic_generic_metadata__["origin"] or cls
    if not issubclass(found, expected):
        raise ValueError(f"Cannot deserialize '{path}': class must be a subclass of '{expected._type_path}'.")
    return cls if found is expected else found


def _find(path: str) -> object:
    """The object at an import path: the longest importable module, then attributes."""
    module_name, dot, rest = path.rpartition(".")
    if not dot or not module_name:
        raise ValueError(f"Cannot deserialize '{path}': '{TYPE_KEY}' must read 'module.Class'.")
    module = sys.modules.get(module_name)
    if module is not None:
        found = module.__dict__.get(rest)
        if found is not None:
            return found
    return _import(path)


def _import(path: str) -> object:
    parts = path.split(".")
    if parts[0] in sys.stdlib_module_names:
        raise ValueError(f"Refusing to deserialize '{path}': the standard library holds no such class.")
    found: object = None
    depth = 0
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise ValueError(f"Cannot deserialize '{path}': importing '{name}' failed: {error}.") from error
            if depth == 1:
                raise ValueError(f"Cannot deserialize '{path}': there is no module '{name}' here.") from error
            depth -= 1
            break
        except Exception as error:  # noqa: BLE001  # whatever a module raises while it is imported is bad input here
            raise ValueError(
                f"Cannot deserialize '{path}': importing '{name}' failed: {type(error).__name__}: {error}."
            ) from error
    for attribute in parts[depth:]:
        found = getattr(found, attribute, None)
    if found is None:
        raise ValueError(f"Cannot deserialize '{path}': module '{'.'.join(parts[:depth])}' has no such class.")
    return found
