"""Writes YAML: block style, given key order, readable text; every value reads back equal."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import yaml

_WIDTH = 100
_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
"""Characters that only double quotes preserve."""


class _Dumper(yaml.SafeDumper):
    """Without anchors: a value that occurs twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - as above
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if _BREAKS.search(value) else "|" if _reads_well_as_block(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _reads_well_as_block(value: str) -> bool:
    lines = value.split("\n")
    return (
        len(lines) > 1
        and bool(lines[0].strip())
        and not lines[0][0].isspace()
        and all(line == line.rstrip() and line.isprintable() for line in lines)
        and not value.endswith("\n\n")
    )


def _moment(dumper: yaml.SafeDumper, value: dt.datetime) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:timestamp", value.isoformat(" "))


_Dumper.add_representer(str, _text)
_Dumper.add_representer(dt.datetime, _moment)
_Dumper.add_multi_representer(dict, yaml.SafeDumper.represent_dict)
_Dumper.add_representer(tuple, yaml.SafeDumper.represent_list)


def dump_yaml(value: dict[str, Any]) -> str:
    """`value` as YAML text with a final newline; an empty mapping is an empty string.

    Raises `ValueError` for what plain YAML cannot represent, such as a time of day without a date.
    """
    if not value:
        return ""
    try:
        return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    except yaml.representer.RepresenterError as error:
        raise ValueError(f"YAML cannot represent {error.args[-1]!r}") from None
