"""Tools that an environment built for itself: virtual and conda environments, `node_modules`, their interpreters.

They are searched for in a pristine sandbox of the environment, once per image, using only its shell. Changes of an
agent in them do not survive; see `survival`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import anyio

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.protocol import Limits, NetworkPolicy
from benchflow.verifier.survival import SYSTEM, below

_TIMEOUT_SEC: Final = 300.0
_WALK: Final = r"""
look() {
  [ -d "$1" ] || return 0
  found=
  case $1 in */node_modules) found=yes;; esac
  [ -d "$1/conda-meta" ] && found=yes
  if [ -f "$1/pyvenv.cfg" ]; then
    found=yes
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in "home = "*) printf '%s\0' "${line#home = }";; esac
    done <"$1/pyvenv.cfg"
  fi
  if [ "$found" ]; then
    printf '%s\0' "$1"
    case $WORKDIR/ in "$1"/*) ;; *) return 0;; esac
  fi
  [ -L "$1" ] || walk "$1"
}
walk() {
  for entry in "$1"/* "$1"/.[!.]*; do
    case $SKIPPED in *":$entry:"*) ;; *) look "$entry";; esac
  done
}
walk ""
look "$WORKDIR"
"""
"""Prints roots of tools and the home of virtual environments. A link to such a root is one too."""

_PARTS: Final = ("bin", "conda-meta", "lib", "lib64", "pyvenv.cfg")
"""The parts of a root above the working folder that do not belong to the agent."""

_known: Final[dict[tuple[str, str, str], tuple[str, ...]]] = {}
"""By backend, digest of the image and working folder, which determine the result."""


async def built_tools(environment: Environment) -> tuple[str, ...]:
    """Where the environment's own tools are, outside the system folders, outermost only.

    An environment without an image is the machine's userland, which has none.
    """
    spec = environment.preparation.spec
    if spec.image is None:
        return ()
    key = (environment.backend.name, spec.image.digest, spec.workdir)
    if key not in _known:
        _known[key] = await _search(environment)
    return _known[key]


async def _search(environment: Environment) -> tuple[str, ...]:
    declared = environment.preparation.spec
    spec = replace(declared, composition=None, mounts=(), network=NetworkPolicy("none"), limits=Limits())
    pristine = environment.backend.create(spec)
    await pristine.start()
    try:
        words = {"WORKDIR": spec.workdir, "SKIPPED": f":{':'.join(SYSTEM)}:"}
        result = await pristine.exec(_WALK, user="root", env=words, cwd="/", timeout=_TIMEOUT_SEC)
    finally:
        with anyio.CancelScope(shield=True):
            await pristine.stop()
    if not result.ok:
        said = result.stderr.decode(errors="replace").strip()[-400:] or f"exit code {result.exit_code}"
        how = f"exceeded its limit of {_TIMEOUT_SEC:g} s" if result.timed_out else f"failed: {said}"
        raise EnvironmentFailure(f"The search for tools in the environment {how}", code="listing-failed")
    return outermost(result.stdout.decode(errors="surrogateescape").split("\0"), spec.workdir)


def outermost(found: Iterable[str], workdir: str) -> tuple[str, ...]:
    """The roots that were found, without those of the system; one above the working folder is replaced by its parts."""
    places: set[str] = set()
    for path in found:
        if not path.startswith("/"):
            continue
        folder = path.rstrip("/")
        root = folder.removesuffix("/bin")
        places |= {f"{root}/{name}" for name in _PARTS} if below(workdir, root) else {root}
    roots: list[str] = []
    for place in sorted(places):
        of_system = below(place, *SYSTEM) and not below(place, workdir)
        if not of_system and not below(workdir, place) and not below(place, *roots):
            roots.append(place)
    return tuple(roots)
