"""Compares what is written down with the schemas that ship."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from benchflow.record import schema
from benchflow.record.schemas import Document


@cache
def _validator(name: Document) -> Draft202012Validator:
    """A schema is itself checked once: that takes many times as long as the check of a document."""
    shipped = schema(name)
    Draft202012Validator.check_schema(shipped)
    return Draft202012Validator(shipped)


def check_fits(document: Any, name: Document) -> None:
    """Raise `jsonschema.ValidationError` unless a document fits the schema of that name."""
    _validator(name).validate(document)
