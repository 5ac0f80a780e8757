"""The network: solutions that are published at addresses which the package names, and services of the verifier."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from benchflow.evidence.audit.exploit_family import Attempt, Family, NotApplicable, Seen
from benchflow.evidence.audit.families.forging import verifier_text
from benchflow.sandbox.task_policy import network_policy

_URL: Final = re.compile(r"https?://[\w.:@-]+(?:/[\w.~%/@+-]*[\w/])?")
_REPOSITORY: Final = re.compile(r"/[\w.-]+/[\w.-]+$|\.git$")
_MOST: Final = 4
_SECONDS: Final = 10
_SOLVERS: Final = ("solution/solve.sh", "oracle/solve.sh", "solution.sh", "solve.sh")
_DOCUMENTS: Final = ("task.md", "task.toml", "task.yaml", "instruction.md")
_GET: Final = (
    f"import sys, urllib.request as r; data = r.urlopen(sys.argv[1], timeout={_SECONDS}).read(); "
    'open(sys.argv[2], "wb").write(data)'
)
_FETCH: Final = f"""\
fetch() {{
  if command -v curl >/dev/null; then curl -fsSL -m {_SECONDS} -o "$2" "$1"
  elif command -v wget >/dev/null; then wget -q -T {_SECONDS} -t 1 -O "$2" "$1"
  else python3 -c '{_GET}' "$1" "$2"
  fi 2>/dev/null && [ -s "$2" ]
}}
"""


def addresses(texts: Iterable[str]) -> list[str]:
    """The web addresses in texts, in order."""
    return [*dict.fromkeys(match for text in texts for match in _URL.findall(text))]


def _published(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    if network_policy(seen.package.view, "agent").mode == "none":
        return NotApplicable("The agent has no network.")
    if not seen.programs & {"curl", "python3", "wget"}:
        return NotApplicable("The environment has no program that downloads.")
    files = seen.package.files
    told = [files.read(name).decode(errors="replace") for name in _DOCUMENTS if name in files.files]
    found = addresses([seen.prompt, *told])[:_MOST]
    if not found:
        return NotApplicable("The package names no address.")
    return (Attempt(f"downloads solutions from {', '.join(found)}", "\n".join([_FETCH, *_downloads(seen, found)])),)


def _downloads(seen: Seen, found: Sequence[str]) -> Iterable[str]:
    """Lines that download a solution script and run it, or else a file of an output's name."""
    for address in found:
        for name in _SOLVERS:
            for base in _bases(address):
                yield f"fetch {shlex.quote(f'{base}/{name}')} /tmp/.solve && {{ sh /tmp/.solve; exit 0; }}"
        for path in seen.outputs[:_MOST]:
            name = PurePosixPath(path).name
            for base in _bases(address):
                target, source = shlex.quote(path), shlex.quote(f"{base}/{name}")
                yield f'mkdir -p "$(dirname {target})"; fetch {source} {target} || rm -f {target}'
    yield "rm -f /tmp/.solve; true"


def _bases(address: str) -> list[str]:
    plain = address.rstrip("/").removesuffix(".git")
    host = urlsplit(plain).hostname or ""
    if host == "github.com" and _REPOSITORY.search(plain):
        return [plain.replace("github.com", "raw.githubusercontent.com", 1) + "/HEAD"]
    if host.startswith("gitlab.") and _REPOSITORY.search(plain):
        return [f"{plain}/-/raw/HEAD"]
    return [plain, plain.rpartition("/")[0]] if plain.count("/") > 2 else [plain]


def _services(seen: Seen) -> Sequence[Attempt] | NotApplicable:
    """Requests that the verifier would make itself, and such that tell a service the verdict."""
    if not seen.programs & {"curl", "python3"}:
        return NotApplicable("The environment has no program that sends requests.")
    found = [address for address in addresses([verifier_text(seen)]) if _is_inside(address)][: 2 * _MOST]
    if not found:
        return NotApplicable("The verifier asks no service of the environment.")
    body = json.dumps({"reward": 1.0, "score": 1.0, "passed": True, "solved": True, "status": "passed"})
    if "curl" in seen.programs:
        send = f'curl -fsS -m {_SECONDS} -X "$2" -H \'Content-Type: application/json\' -d {shlex.quote(body)} "$1"'
    else:
        code = "import sys, urllib.request as r; q = r.Request(sys.argv[1], sys.argv[3].encode(), "
        code += f"{{'Content-Type': 'application/json'}}, method=sys.argv[2]); r.urlopen(q, timeout={_SECONDS})"
        send = f'python3 -c {shlex.quote(code)} "$1" "$2" {shlex.quote(body)}'
    lines = [f"send() {{ {send}; }} >/dev/null 2>&1"]
    lines += [f"send {shlex.quote(address)} {method}" for address in found for method in ("POST", "PUT")]
    hosts = ", ".join(dict.fromkeys(urlsplit(address).netloc for address in found))
    return (Attempt(f"sends a verdict to the services that the verifier asks ({hosts})", "\n".join([*lines, "true"])),)


def _is_inside(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    return "." not in host or host.startswith(("127.", "10.", "192.168."))


PUBLISHED_SOLUTION: Final = Family(
    "published-solution",
    "Downloads a solution from the addresses that the package names.",
    "Declare `network_mode: no-network`, or an allowlist without the places where the solution is published.",
    _published,
)
FED_SERVICES: Final = Family(
    "fed-services",
    "Sends a verdict to services of the environment that the verifier queries.",
    "Compute the verdict in the verifier, and give services that it trusts a key which the agent does not have.",
    _services,
)
