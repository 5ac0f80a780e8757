"""The decisions of the interpreter hook: which module, plugin or setting is the environment's.

The agent's is what `changes` lists as added, at any path that leads to it. What the environment was built with and the
agent changed keeps its place. A program that is itself the agent's, named by the verifier, looks up what it likes.
"""

import os
import sys
from _frozen_importlib_external import BYTECODE_SUFFIXES, SOURCE_SUFFIXES, spec_from_file_location
from _imp import extension_suffixes
from _io import FileIO

import verifier_texts as texts  # type: ignore[import-not-found, unused-ignore] # beside this file in a box

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GROUND = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PLACES = ("/verifier/", "/tests/", GROUND + "/")
"""Where nothing is the agent's."""


class Changes:
    """What the agent added and changed, and survived."""

    def __init__(self, data: bytes, laid: float) -> None:
        self.laid = laid
        """When the verifier's ground was laid: what was written later is the verifier's."""
        self.added: "set[str]" = set()
        self.settings: "dict[str, list[str]]" = {}
        for record in data.split(b"\0"):
            word, _, raw = record.partition(b" ")
            path = raw.decode("utf-8", "surrogateescape")
            if word == b"added":
                self.added.add(path)
            elif word == b"setting":
                self.settings.setdefault(os.path.basename(path), []).append(path)
        self._known: "dict[str, bool]" = {}
        self._settled: "dict[str, bool]" = {}

    def is_agents(self, path: str) -> bool:
        """Whether the agent added a path, something above it or what it leads to, and nobody wrote it since."""
        found = self._known.get(path)
        if found is None:
            here = os.path.abspath(path)
            real = os.path.realpath(here)
            found = (self._below(here) or self._below(real)) and not real.startswith(PLACES)
            # Only what was touched can be a copy: programs that the agent left cost no search for one.
            copied = found and self.is_touched(here) and (self.is_new(here) or texts.is_copy(here))
            found = self._known[path] = found and not copied
        return found

    def is_agents_setting(self, path: str) -> bool:
        """Whether a file is a setting that the agent added, changed or may have supplied to what the verifier made."""
        here, real = os.path.abspath(path), os.path.realpath(path)
        if here.startswith(PLACES) and real.startswith(PLACES):
            return False
        if self.is_touched(path):
            return not self._is_settled(path)
        known = self.settings.get(os.path.basename(path), ())
        if self._below(here) or self._below(real) or here in known or real in known:
            return True
        return any(texts.is_same(path, other) for other in known)

    def _is_settled(self, path: str) -> bool:
        found = self._settled.get(path)
        if found is None:
            found = self._settled[path] = texts.is_known(path)
            if not found:
                sys.stderr.write(path + " is neither the verifier's nor the environment's: not used as a setting.\n")
        return found

    def is_new(self, path: str) -> bool:
        """Whether a file was written since the ground was laid, when no file of the agent had a time in the future."""
        return self.is_touched(path) and os.stat(path).st_mtime > self.laid

    def is_touched(self, path: str) -> bool:
        """Whether a file was made, written or given other rights since the ground was laid."""
        try:
            return max(os.stat(path).st_ctime, os.lstat(path).st_ctime) > self.laid
        except OSError:
            return False

    def _below(self, path: str) -> bool:
        while path not in self.added:
            parent = os.path.dirname(path)
            if parent == path:
                return False
            path = parent
        return True


def _read() -> Changes:
    with FileIO(GROUND + "/changes") as file:  # the interpreter may have no `open` yet
        return Changes(file.read(), os.fstat(file.fileno()).st_ctime)


CHANGES = _read()


def settle(native: "Any", cls: "Any", fullname: str, path: "Any", target: "Any", spec: "Any") -> "Any":
    """The module that is found: the environment's, unless only the agent has one or the program is the agent's."""
    after = _AFTER.get(fullname)
    if after is not None and spec.loader is not None:
        _afterwards(spec.loader, after)
    if _is_agents_program():
        return spec
    _ignore_bytecode(spec)
    if "." in fullname:
        return spec
    if spec.loader is None:
        return None if _is_unasked(fullname, spec.submodule_search_locations) else _portions(spec)
    if spec.origin in _NAMED or not _is_agents(spec.origin):
        return spec
    found = _of_the_environment(native, cls, fullname, path, target)
    if found is None and not _is_in_remade_environment(spec.origin) and not _is_unasked(fullname, [spec.origin]):
        _LET_IN.append(fullname)
        return spec
    return found


def _ignore_bytecode(spec: "Any") -> None:
    """Have a module compiled anew where bytecode appeared beside it since, perhaps out of an archive of the agent's."""
    cached = getattr(spec, "cached", None)
    if cached and hasattr(spec.loader, "path_stats") and _is_new_bytecode(cached):
        spec.loader.path_stats = _unknown


def _is_new_bytecode(path: str) -> bool:
    return not path.startswith(PLACES) and not _is_installed(path) and CHANGES.is_touched(path)


def _unknown(path: str) -> "Any":
    """Says of no source how old it is; then the interpreter looks for no bytecode of it."""
    raise OSError(path)


_LET_IN: "list[str]" = []
"""Modules of the agent that the verifier asked for: from then on code of the agent runs in this process by right."""


def _is_in_remade_environment(origin: str) -> bool:
    """Whether a module is one that the agent left where the verifier then made its own virtual environment."""
    inside = sys.prefix != sys.base_prefix and origin.startswith(sys.prefix + "/")
    return inside and CHANGES.is_agents(origin) and CHANGES.is_touched(sys.prefix + "/pyvenv.cfg")


def _is_unasked(fullname: str, places: "Any") -> bool:
    """Whether a library of the environment asks for a module that only the agent has.

    Libraries import what other systems and versions have, as `subprocess` does with `msvcrt`, and do without it where
    it is missing. Names that a program gets as arguments are imported by a call, and are not in the library's text.
    """
    if not all(CHANGES.is_agents(os.path.abspath(place or os.getcwd())) for place in places):
        return False
    frame: "Any" = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_IMPORTING):
        frame = frame.f_back
    from opcode import opmap  # when it is needed: few programs come here

    if frame is None:
        return False
    asking = frame.f_code.co_filename
    library = asking.startswith(_STDLIB) and not _is_installed(asking)
    other = _is_installed(asking) and not CHANGES.is_agents(asking) and not all(map(_is_installed, places))
    if frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_NAME"]:
        return library or other
    return (library or other) and not _LET_IN and _spells(asking, fullname) and not texts.names(fullname)


def _spells(library: str, name: str) -> bool:
    """Whether the source of a library has a name as a string."""
    try:
        with open(library, "rb") as file:
            text = file.read()
    except OSError:
        return False
    word = name.encode("utf-8", "surrogateescape")
    return b"'" + word + b"'" in text or b'"' + word + b'"' in text


_STDLIB = (os.path.join(os.path.dirname(os.__file__), ""), "<frozen ")
_IMPORTING = ("<frozen importlib", "<frozen zipimport", os.path.join(GROUND, "python", ""), _STDLIB[0] + "importlib/")


def _is_installed(path: str) -> bool:
    return "/site-packages/" in path or "/dist-packages/" in path


_NAMED: "list[str]" = []
"""Files that are being imported by their path."""


def _of_the_environment(native: "Any", cls: "Any", fullname: str, path: "Any", target: "Any") -> "Any":
    """The first module of this name on the path that is not the agent's."""
    portions = []
    for entry in path:
        found = native(cls, fullname, [entry], target)
        if found is None:
            continue
        if found.loader is None:
            portions += [entry for place in found.submodule_search_locations or () if _is_installed(place)]
            continue
        if not _is_agents(found.origin):
            return found
        beside = _beside(fullname, entry, found.origin)
        if beside is not None:
            return beside
    found = native(cls, fullname, portions, target) if portions else None
    return found if found is None or not any(map(CHANGES.is_agents, found.submodule_search_locations)) else None


def _beside(fullname: str, entry: str, other: str) -> "Any":
    """A module as built, or one that the verifier put there, in the same folder as an `other` one of the agent."""
    folder = os.path.abspath(entry)
    built = os.path.basename(folder) in ("site-packages", "dist-packages") and not CHANGES.is_agents(folder)
    for suffix in extension_suffixes() + SOURCE_SUFFIXES + BYTECODE_SUFFIXES:
        place = os.path.join(folder, fullname + suffix)
        if place != other and os.path.isfile(place) and not CHANGES.is_agents(place):
            later = CHANGES.is_new(place) and not CHANGES.is_touched(other)
            if built or later or texts.is_known(place):
                return spec_from_file_location(fullname, place)
    return None


def _portions(spec: "Any") -> "Any":
    """A namespace package, its portions of the environment first."""
    places = spec.submodule_search_locations
    if places:
        ordered = sorted(places, key=CHANGES.is_agents)
        if ordered != list(places):
            spec.submodule_search_locations = ordered
    return spec


def _is_agents(origin: str) -> bool:
    """Whether a found module is the agent's, or may be a copy that the verifier made of one together with its folder.

    What the verifier wrote is its own where it says so: in an interpreter's folders, by its text, or by `PYTHONPATH`,
    but not before the standard library.
    """
    if not origin or not origin.startswith("/"):
        origin = os.path.abspath(origin) if origin else os.getcwd()
    if CHANGES.is_agents(origin):
        return True
    if origin.startswith(_own()) or _is_installed(origin) or not CHANGES.is_touched(origin):
        return False
    listed = os.environ.get("PYTHONPATH", "").split(":")
    named = any(place and origin.startswith(place.rstrip("/") + "/") for place in listed)
    return not (named and not _is_in_library(origin)) and not texts.is_known(origin)


def _is_in_library(origin: str) -> bool:
    """Whether the standard library has a module of the name of this file."""
    folder, file = os.path.split(origin)
    name = file.partition(".")[0]
    name = os.path.basename(folder) if name == "__init__" else name
    known = getattr(sys, "stdlib_module_names", None)  # from Python 3.10 on
    if known is not None:
        return name in known
    return name in sys.builtin_module_names or any(os.path.exists(_STDLIB[0] + name + end) for end in ("", ".py"))


def _own() -> "tuple[str, ...]":
    """Where nothing is a copy of the agent's; when asked, since `site` sets the prefix of a virtual environment."""
    return tuple(prefix.rstrip("/") + "/" for prefix in (sys.prefix, sys.base_prefix, "/verifier", "/tests", GROUND))


def _is_agents_program() -> bool:
    """Whether the verifier started a script of the agent: its own modules and settings are found as usual.

    The interpreter itself says which file it runs; the words of the command line are whatever a program makes of them.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not script or script.startswith("<"):  # standard input, whatever the agent called a file
        return False
    found = _PROGRAMS.get(script)
    if found is None:
        found = _PROGRAMS[script] = CHANGES.is_agents(script)
    return found


_PROGRAMS: "dict[str, bool]" = {}


def settle_imported() -> None:
    """Change the modules that were imported before the hook."""
    for name, change in _AFTER.items():
        if name in sys.modules:
            change(sys.modules[name])


def _afterwards(loader: "Any", change: "Any") -> None:
    """Have a module changed as soon as it was executed."""
    execute = loader.exec_module

    def exec_module(module: "Any") -> None:
        execute(module)
        change(module)

    loader.exec_module = exec_module


def _metadata(module: "Any") -> None:
    """Distributions of the agent have no entry points where all are searched; one that is named has."""
    finder = module.MetadataPathFinder
    find = finder.find_distributions

    def find_distributions(*args: "Any", **options: "Any") -> "Any":
        context = args[0] if args else options.get("context")
        for found in find(*args, **options):
            if getattr(context, "name", None) is None:
                _silence(found)
            yield found

    finder.find_distributions = staticmethod(find_distributions)


def _silence(distribution: "Any") -> None:
    folder = str(getattr(distribution, "_path", ""))
    points = os.path.join(folder, "entry_points.txt")
    if not folder or _is_agents_program():
        return
    if not _has_points_of_agent(folder):
        return
    text = _as_built(points) or ""
    whole = distribution.read_text
    distribution.read_text = lambda name: text if name == "entry_points.txt" else whole(name)


def _has_points_of_agent(folder: str) -> bool:
    """Whether the agent wrote the entry points of a distribution, or of the project that the verifier installed."""
    points = os.path.join(folder, "entry_points.txt")
    if not (_is_installed(points) and CHANGES.is_touched(points)):
        return CHANGES.is_agents_setting(points)
    source = _source_of(os.path.join(folder, "direct_url.json"))
    if source is None or not os.path.isdir(source):
        return source is not None and (CHANGES.is_agents(source) or CHANGES.is_touched(source))
    settings = (os.path.join(source, name) for name in ("pyproject.toml", "setup.cfg", "setup.py"))
    return any(os.path.exists(place) and CHANGES.is_agents_setting(place) for place in settings)


def _source_of(record: str) -> "str | None":
    """The file or folder of this machine that a distribution was installed from."""
    if not os.path.isfile(record):
        return None
    import json
    from urllib.parse import unquote

    with open(record, encoding="utf-8") as file:
        url = json.load(file).get("url", "")
    return unquote(url[len("file://") :]) if url.startswith("file://") else None


def _resources(module: "Any") -> None:
    """The same for `pkg_resources`."""
    of_distribution = module.Distribution.get_entry_map

    def get_entry_map(self: "Any", group: "Any" = None) -> "Any":
        folder = getattr(getattr(self, "_provider", None), "egg_info", None) or self.location or ""
        if folder and not _is_agents_program() and _has_points_of_agent(str(folder)):
            return {}
        return of_distribution(self, group)

    module.Distribution.get_entry_map = get_entry_map


def _as_built(path: "Any") -> "Any":
    """The text of a file that the agent changed, as the environment was built; None if there was none."""
    try:
        with open(_pristine(path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _pristine(path: "Any") -> "Any":
    return GROUND + "/pristine" + os.path.realpath(path)


def _findpaths(module: "Any") -> None:
    """Settings of pytest: as built, or none; a file that the command line names is used as it is."""
    named = set()
    if not hasattr(module, "load_config_dict_from_file"):
        exists = module.exists
        module.exists = lambda path, *rest: _is_settings_of_environment(str(path)) and exists(path, *rest)
        return
    load, determine = module.load_config_dict_from_file, module.determine_setup

    def load_config_dict_from_file(filepath: "Any") -> "Any":
        path = str(filepath)
        if path in named or _is_settings_of_environment(path):
            return load(filepath)
        if not os.path.isfile(_pristine(path)):
            return None
        return load(type(filepath)(_pristine(path)))

    def determine_setup(*args: "Any", **options: "Any") -> "Any":
        inifile = options.get("inifile", args[0] if args else None)
        if inifile:
            named.add(os.path.abspath(str(inifile)))
        return determine(*args, **options)

    module.load_config_dict_from_file = load_config_dict_from_file
    module.determine_setup = determine_setup


def _is_settings_of_environment(path: "Any") -> bool:
    return _is_agents_program() or not CHANGES.is_agents_setting(path)


def _config(module: "Any") -> None:
    """`conftest.py` files of the agent count as empty."""
    manager = module.PytestPluginManager
    load = manager._importconftest

    def _importconftest(self: "Any", conftestpath: "Any", *args: "Any", **options: "Any") -> "Any":
        if _is_settings_of_environment(str(conftestpath)) or _is_named(self, str(conftestpath)):
            return load(self, conftestpath, *args, **options)
        return type(sys)("conftest")

    manager._importconftest = _importconftest


def _is_named(manager: "Any", conftest: str) -> bool:
    """Whether the verifier told pytest to run tests of the agent that this file is for."""
    config = manager.get_plugin("pytestconfig")
    words = getattr(getattr(config, "known_args_namespace", None), "file_or_dir", None) or ()
    for word in words:
        path = os.path.realpath(str(word).partition("::")[0])
        if (os.path.isdir(path) or path.endswith(".py")) and CHANGES.is_agents(path):
            folder = os.path.dirname(os.path.realpath(conftest))
            if path == folder or path.startswith(folder + "/") or folder.startswith(path + "/"):
                return _tests().is_agents(path) if os.path.isfile(path) else not _has_tests(path, _patterns(config))
    return False


def _tests() -> "Any":
    """Decisions on tests, which only test runners need."""
    import verifier_ground  # type: ignore[import-not-found, unused-ignore] # beside this file in a box

    return verifier_ground.ours("verifier_tests")


def _has_tests(folder: str, patterns: "tuple[str, ...]") -> bool:
    return bool(_tests().has_own(folder, patterns))


def _patterns(config: "Any") -> "tuple[str, ...]":
    return tuple(config.getini("python_files"))


def _pathlib(module: "Any") -> None:
    """A folder is a package for tests of others only if its `__init__.py` is not the agent's; a path is a name."""
    resolve = module.resolve_package_path

    def resolve_package_path(path: "Any") -> "Any":
        found = resolve(path)
        if found is None or CHANGES.is_agents(str(path)):
            return found
        kept = None
        parts = [path] + list(path.parents)
        for parent in parts:
            if parent.is_dir():
                if CHANGES.is_agents_setting(str(parent / "__init__.py")) or not (parent / "__init__.py").is_file():
                    break
                kept = parent
                if parent == found:
                    break
        root = str(found.parent)
        if kept != found and root not in sys.path:
            sys.path.append(root)
        return kept

    module.resolve_package_path = resolve_package_path
    imported = getattr(module, "import_path", None)

    def import_path(path: "Any", *args: "Any", **options: "Any") -> "Any":
        _NAMED.append(str(path))
        try:
            return imported(path, *args, **options)  # type: ignore[misc] # of the versions that have it
        finally:
            _NAMED.pop()

    if imported is not None:
        module.import_path = import_path


def _python(module: "Any") -> None:
    """No code of a folder runs because pytest passes through it, and no test of the agent among the verifier's."""
    package = module.Package
    setup = package.setup

    def quiet_setup(self: "Any") -> None:
        init = os.path.join(str(getattr(self, "path", None) or self.fspath), "__init__.py")
        if not CHANGES.is_agents_setting(init):
            setup(self)

    package.setup = quiet_setup
    collect = module.Module.collect

    def collect_invited(self: "Any") -> "Any":
        path = str(getattr(self, "path", None) or self.fspath)
        return collect(self) if _is_agents_program() or not is_uninvited(self.config, path) else []

    def is_uninvited(config: "Any", path: str) -> bool:
        words = [str(word).partition("::")[0] for word in getattr(config, "args", ())]
        return bool(_tests().is_uninvited(path, words, _patterns(config)))

    module.Module.collect = collect_invited


def _unittest(module: "Any") -> None:
    """No test of the agent among the verifier's, and no code of a folder because unittest passes through it."""
    loader = module.TestLoader
    find = loader._find_test_path

    def find_invited(self: "Any", full_path: str, pattern: str, *args: "Any", **options: "Any") -> "Any":
        if _is_agents_program():
            return find(self, full_path, pattern, *args, **options)
        if os.path.isfile(full_path) and _tests().is_uninvited(full_path, (), (pattern,)):
            return None, False
        init = os.path.join(full_path, "__init__.py")
        around = os.path.dirname(full_path)
        if os.path.isfile(init) and CHANGES.is_agents_setting(init) and _has_tests(around, (pattern,)):
            if not _has_tests(full_path, (pattern,)):
                return None, False
            package = type(sys)(self._get_name_from_path(full_path))
            package.__file__, package.__path__ = init, [full_path]
            sys.modules.setdefault(package.__name__, package)
        return find(self, full_path, pattern, *args, **options)

    loader._find_test_path = find_invited


def _rewrite(module: "Any") -> None:
    """Bytecode of tests that pytest compiled."""
    read = module._read_pyc

    def _read_pyc(source: "Any", pyc: "Any", *args: "Any", **options: "Any") -> "Any":
        return None if _is_new_bytecode(str(pyc)) else read(source, pyc, *args, **options)

    module._read_pyc = _read_pyc


def _coverage(module: "Any") -> None:
    """Settings of coverage, which name plugins: as built, or none."""
    read = module.CoverageConfig.from_file

    def from_file(self: "Any", filename: "Any", *args: "Any", **options: "Any") -> "Any":
        if not _is_settings_of_environment(str(filename)):
            return False
        return read(self, filename, *args, **options)

    module.CoverageConfig.from_file = from_file


def _tox(module: "Any") -> None:
    """Settings of tox that it finds by itself: as built, or none."""
    locate = module._locate_source

    def _locate_source() -> "Any":
        found = locate()
        if found is None or _is_settings_of_environment(str(found.path)):
            return found
        return type(found)(_as_built_path(found.path)) if os.path.isfile(_pristine(found.path)) else None

    module._locate_source = _locate_source


def _as_built_path(path: "Any") -> "Any":
    """A path with the place of a changed file and its content as built."""
    pristine = type(path)(_pristine(path))

    class AsBuilt(type(path)):  # type: ignore[misc] # a path of whatever kind
        def open(self, *args: "Any", **options: "Any") -> "Any":
            return pristine.open(*args, **options)

        def read_text(self, *args: "Any", **options: "Any") -> "Any":
            return pristine.read_text(*args, **options)

        def read_bytes(self) -> "Any":
            return pristine.read_bytes()

    return AsBuilt(str(path))


_AFTER = {
    "coverage.config": _coverage,
    "_pytest.assertion.rewrite": _rewrite,
    "_pytest.config": _config,
    "_pytest.config.findpaths": _findpaths,
    "_pytest.pathlib": _pathlib,
    "_pytest.python": _python,
    "importlib.metadata": _metadata,
    "importlib_metadata": _metadata,
    "pkg_resources": _resources,
    "tox.config.source.discover": _tox,
    "unittest.loader": _unittest,
}
