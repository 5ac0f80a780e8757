"""The interpreter hook: what the agent added never stands before what the environment was built with.

It runs in every Python process of a verifier, of whatever version from 3.6 on, so it does almost nothing at start: it
wraps the one function that finds modules on a path. `verifier_lookups` has the decisions and is imported when a module
was found outside the places that are as built, or when a library that looks up plugins or settings is imported.
"""

import _frozen_importlib_external
import encodings
import posix  # there from the start, when `os` cannot be imported yet
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = __file__.rpartition("/")[0]
GROUND = HERE.rpartition("/")[0]
SETTLED = frozenset(
    {
        "_pytest.assertion.rewrite",
        "_pytest.config",
        "_pytest.config.findpaths",
        "_pytest.pathlib",
        "_pytest.python",
        "coverage.config",
        "importlib.metadata",
        "importlib_metadata",
        "pkg_resources",
        "tox.config.source.discover",
        "unittest.loader",
    }
)
"""Modules that are changed after their import."""
FINDER: "Any" = _frozen_importlib_external.PathFinder
_OURS = ("verifier_ground", "verifier_lookups", "verifier_tests", "verifier_texts")
_HEAD = 1 << 14


def install() -> None:
    """Wrap the finder; once per process."""
    if getattr(FINDER, "verifier_ground", False):
        return
    as_built = _as_built_places()
    if as_built is None:
        return
    native = FINDER._get_spec.__func__

    def get_spec(cls: "Any", fullname: str, path: "Any", target: "Any" = None) -> "Any":
        spec = native(cls, fullname, path, target)
        if spec is None or (spec.loader is None and not spec.submodule_search_locations):
            return spec
        if "io" not in sys.modules:  # early in the start of Python, which knows no other path than the library yet
            return spec
        if fullname not in SETTLED and spec.origin is not None and spec.origin.startswith(as_built):
            return spec
        if fullname in _OURS:
            return spec
        settle = getattr(_lookups(), "settle", None)  # None while it is being imported, with the path of the library
        return spec if settle is None else settle(native, cls, fullname, path, target, spec)

    _settle_site()
    FINDER._get_spec = classmethod(get_spec)
    FINDER.verifier_ground = True
    if not SETTLED.isdisjoint(sys.modules):
        _lookups().settle_imported()


def _settle_site() -> None:
    """Where the verifier made a virtual environment over a folder of the agent's, `site` runs no lines of the agent."""
    try:
        made = posix.stat((sys.executable or "").rpartition("/bin/")[0].encode() + b"/pyvenv.cfg").st_ctime
        if made <= posix.stat((GROUND + "/changes").encode()).st_ctime:
            return
    except OSError:
        return
    native = posix.listdir

    def listdir(path: "Any" = ".") -> "Any":
        found = native(path)
        if sys._getframe(1).f_globals.get("__name__") != "site":
            return found
        is_agents = _lookups().CHANGES.is_agents
        return [name for name in found if not (name.endswith(".pth") and is_agents(path + "/" + name))]

    posix.listdir = listdir


def _as_built_places() -> "tuple[str, ...] | None":
    """Places where nothing is the agent's; None if the package opted out."""
    try:
        file = posix.open((GROUND + "/changes").encode(), posix.O_RDONLY)
    except OSError:
        return None
    head = posix.read(file, _HEAD)
    posix.close(file)
    places = [HERE + "/"]
    for record in head.split(b"\0"):
        word, _, path = record.partition(b" ")
        if word == b"kept":
            return None
        if word != b"place":
            break
        places.append(path.decode("utf-8", "surrogateescape") + "/")
    return tuple(places)


def _lookups() -> "Any":
    return ours("verifier_lookups")


def ours(name: str) -> "Any":
    """A module of this folder, which is on the path only meanwhile."""
    found = sys.modules.get(name)
    if found is None:
        path = sys.path[:]
        sys.path[:] = [HERE, encodings.__path__[0].rpartition("/")[0]]
        try:
            found = __import__(name)
        finally:
            sys.path[:] = path
    return found
