"""Shadowing: modules and metadata beside the work that stand for what the verifier's programs import."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.planting import in_work, node_win, put_all, python_win

_IMPORT: Final = re.compile(r"(?m)^\s*(?:from\s+(\w+)[\w.]*\s+import|import\s+([\w., ]+))")
_REQUIRE: Final = re.compile(r"(?:require\(\s*|from\s+|import\s+)['\"]([\w@][\w./@-]*)['\"]")
_RUNNERS: Final = ("argparse", "json", "traceback", "difflib", "logging")
"""What test runners of the standard library import before they load tests."""
_TESTING: Final = ("pytest", "_pytest", "unittest", "nose", "hypothesis", "numpy", "pandas", "requests", "yaml")


def imports_of(seen: Seen) -> list[str]:
    """The top-level modules that Python code of the verifier imports, in order."""
    found: dict[str, None] = {}
    for text in seen.verifier.values():
        for one, many in _IMPORT.findall(text):
            for name in [one] if one else many.split(","):
                found[name.split(" as ")[0].strip().partition(".")[0]] = None
    return [name for name in found if name.isidentifier()]


def _standard(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not (seen.runs("python") or seen.runs("pytest")):
        return NotApplicable("The verifier does not run Python.")
    imported = [name for name in imports_of(seen) if name in sys.stdlib_module_names]
    names = [name for name in dict.fromkeys([*imported, *_RUNNERS]) if name not in ("os", "sys", "__future__")]
    return (Attempt(f"leaves modules of the standard library's names ({', '.join(names[:4])})", _modules(seen, names)),)


def _third_party(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if not (seen.runs("python") or seen.runs("pytest")):
        return NotApplicable("The verifier does not run Python.")
    known = (*seen.verifier, *seen.files, *seen.outputs)
    own = {part.removesuffix(".py") for path in known for part in path.split("/")}
    imported = [name for name in imports_of(seen) if name not in sys.stdlib_module_names and name not in own]
    runner = [name for name in _TESTING if seen.runs(name)]
    names = list(dict.fromkeys([*imported, *runner]))
    if not names:
        return NotApplicable("The verifier imports no installed Python module.")
    return (Attempt(f"leaves modules of the names that tests import ({', '.join(names[:4])})", _modules(seen, names)),)


def _helpers(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    own = [path.rpartition("/")[2].removesuffix(".py") for path in seen.verifier if path.endswith(".py")]
    imported = frozenset(imports_of(seen))
    names = [name for name in dict.fromkeys(own) if name in imported]
    if not names:
        return NotApplicable("The verifier's Python code imports no module of its own.")
    return (Attempt(f"leaves modules of the verifier's own names ({', '.join(names[:4])})", _modules(seen, names)),)


def _modules(seen: Seen, names: Sequence[str]) -> str:
    """Modules that end their process with success; as packages too, because these come before modules."""
    code = python_win(seen)
    files = {in_work(seen, f"{name}.py"): code for name in names}
    for name in names:
        files |= {in_work(seen, f"{name}/__init__.py"): code, in_work(seen, f"{name}/__main__.py"): code}
    return put_all({path: text for path, text in files.items() if path not in seen.files})


def _node(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    texts = [text for path, text in seen.verifier.items() if path.endswith((".js", ".cjs", ".mjs", ".ts", ".sh"))]
    wanted = [name for text in texts for name in _REQUIRE.findall(text) if not name.startswith(("node:", "."))]
    names = list(dict.fromkeys("/".join(name.split("/")[: 2 if name.startswith("@") else 1]) for name in wanted))
    if not names or "node" not in seen.programs:
        return NotApplicable("The verifier requires no Node package, or the environment has no Node.")
    files = {in_work(seen, f"node_modules/{name}/index.js"): node_win(seen) for name in names}
    return (Attempt(f"leaves Node packages of the names that tests require ({', '.join(names[:4])})", put_all(files)),)


_ASKED: Final = re.compile(
    r"(?:version|distribution|metadata|require|get_distribution)\(\s*['\"]([\w.-]+)['\"]"
    r"|\bpip3?[ '\",]+(?:-[\w=.-]+[ '\",]+)*show[ '\",]+(?:-[\w=.-]+[ '\",]+)*([\w.-]+)"
)
"""As words of a shell, and as a list of arguments."""
_LISTS: Final = re.compile(r"\bpip3?[ '\",]+(?:-[\w=.-]+[ '\",]+)*(?:freeze|list)\b")
_LOOKED_UP: Final = re.compile(r"['\"]([A-Za-z][\w.-]+)['\"]\s+(?:not\s+)?in\s+\w")
"""What is looked for in a text, such as the output of `pip list`."""


def _metadata(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    texts = "\n".join(seen.verifier.values())
    names = [one or two for one, two in _ASKED.findall(texts) if one or two]
    names += re.findall(r"grep[^\n|]*?['\" ^]([A-Za-z][\w-]+)==", texts)
    if _LISTS.search(texts):
        names += [*_LOOKED_UP.findall(texts), *re.findall(r"\bgrep (?:-\S+ )*['\"^]*([A-Za-z][\w.-]+)", texts)]
    if not names or not any(word in texts for word in ("metadata", "pkg_resources", "pip")):
        return NotApplicable("The verifier does not ask which distributions are installed.")
    versions = dict(re.findall(r"([A-Za-z][\w-]+)[^\n]*?==\s*['\"]?(\d+(?:\.\d+)+)", texts))
    stated = re.findall(r"['\"](\d+(?:\.\d+)+)['\"]", texts)
    files: dict[str, str] = {}
    for name in dict.fromkeys(names):
        version = versions.get(name) or (stated[0] if stated else "99.0")
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files |= {in_work(seen, f"{info}/METADATA"): text, in_work(seen, f"{info}/INSTALLER"): "pip\n"}
    site = '"$(python3 -m site --user-site 2>/dev/null || echo /tmp)"'
    copied = f"mkdir -p {site} && cp -r {in_work(seen, '*.dist-info')} {site}/ 2>/dev/null || :"
    return (Attempt("leaves metadata of distributions that are not installed", f"{put_all(files)}\n{copied}"),)


STANDARD_LIBRARY: Final = Family(
    "shadowed-standard-library",
    "Leaves modules beside the work that are named like those of the standard library which tests use.",
    "Run tests with python -P or -I and from the verifier's folder, so that the working folder is not searched first.",
    _standard,
)
SHADOWED_LIBRARIES: Final = Family(
    "shadowed-libraries",
    "Leaves modules beside the work that are named like libraries which tests import.",
    "Run tests with python -P or -I, and put the agent's folder last on the module path if tests need it.",
    _third_party,
)
SHADOWED_HELPERS: Final = Family(
    "shadowed-helpers",
    "Leaves modules beside the work that are named like the verifier's own helper modules.",
    "Import the verifier's helpers by their path, or keep the agent's folder behind the verifier's on the module path.",
    _helpers,
)
SHADOWED_NODE_PACKAGES: Final = Family(
    "shadowed-node-packages",
    "Leaves packages in node_modules that are named like those which the verifier's code requires.",
    "Run the verifier's Node code from its own folder with its own node_modules.",
    _node,
)
FORGED_METADATA: Final = Family(
    "forged-metadata",
    "Leaves metadata of Python distributions that were never installed.",
    "Import and use the library in the test instead of asking for its version.",
    _metadata,
)
