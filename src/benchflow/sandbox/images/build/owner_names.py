"""Owners by name: looked up in the text of an environment's own `passwd` and `group`."""

from __future__ import annotations

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.images.layer_tree import LayerTree


def resolve_owner(owner: str, tree: LayerTree) -> tuple[int, int]:
    """User and group ids of `USER[:GROUP]`; a user without group means the group of the same number."""
    user, _, group = owner.partition(":")
    uid = _number(user or "0", tree, "/etc/passwd", "user")
    gid = _number(group, tree, "/etc/group", "group") if group else uid
    if not group and not user.isdecimal():
        gid = int(_fields(tree, "/etc/passwd", user)[3])
    return uid, gid


def _number(name: str, tree: LayerTree, file: str, kind: str) -> int:
    if name.isdecimal():
        return int(name)
    fields = _fields(tree, file, name)
    if len(fields) < 3 or not fields[2].isdecimal():
        raise EnvironmentFailure(f"the environment has no {kind} {name}", code="copy-failed")
    return int(fields[2])


def _fields(tree: LayerTree, file: str, name: str) -> list[str]:
    lines = (tree.read_text(file) or "").splitlines()
    return next((fields for line in lines if (fields := line.split(":"))[0] == name), [])
