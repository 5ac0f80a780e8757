"""What this machine has, and how it gets into a sandbox.

`collect` reads the files and variables that pip, uv, npm, apt and TLS libraries use here. `lay` writes what a sandbox
may see into a scratch folder of this process, private to its user and removed with the process, and gives the mounts
and variables for it.
"""

from __future__ import annotations

import hashlib
import netrc
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote, urlsplit

from benchflow.files.scratch import scratch_folder
from benchflow.sandbox.machine_settings import apt, programs
from benchflow.sandbox.machine_settings.allowance import NOTHING, Laid
from benchflow.sandbox.machine_settings.apt import SourceFiles
from benchflow.sandbox.machine_settings.programs import BUNDLE, FOLDER, Found, Places
from benchflow.sandbox.protocol import Mount, NetworkMode

_TRUST: Final = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_BUNDLE_FILE: Final = "ca-certificates.crt"
_ONE_USER: Final = 'APT::Sandbox::User "root";\n'
_PROXY_LINES: Final = re.compile(rb"^(?:proxy|https-proxy|noproxy)[ \t]*=.*\n(?:[ \t].*\n)*", re.MULTILINE)
"""In the files of pip and npm, with the lines that continue them."""
_URL: Final = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s\"',;]+", re.IGNORECASE)
"""The look-behind keeps the search linear: bundles of certificates are long rows of such letters."""
_FRESH_SEC: Final = 10.0
"""A rollout asks about ten times; a setting that changes meanwhile is seen by the next rollouts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What commands may use of this machine."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """By name in the settings folder."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Folders of packages, by their path inside."""
    apt_options: str = field(default="", repr=False)
    apt_mirrors: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Values that must not appear in any output that is kept."""


def trust_and_proxies(machine: Mapping[str, str] | None = None) -> Settings:
    """This machine's proxies, and its certificates where a variable here names a bundle; builds always use these."""
    given = os.environ if machine is None else machine
    proxies = {name: given[name] for lower in _PROXIES for name in (lower, lower.upper()) if given.get(name)}
    secrets = _secrets(proxies.values())
    bundle = next((Path(given[name]) for name in _TRUST if given.get(name) and Path(given[name]).is_file()), None)
    if bundle is None:
        return Settings(proxies=proxies, secrets=secrets)
    files = {_BUNDLE_FILE: bundle.read_bytes()}
    return Settings(dict.fromkeys(_TRUST, BUNDLE), proxies, files, secrets=secrets)


def current(machine: Mapping[str, str] | None = None) -> Settings:
    """What `collect` found a moment ago for the same variables, or else finds now."""
    given = dict(os.environ if machine is None else machine)
    with _guard:
        for variables, found, until in _collected:
            if variables == given and time.monotonic() < until:
                return found
    found = collect(given)
    with _guard:
        _collected[:] = [(given, found, time.monotonic() + _FRESH_SEC)]
    return found


def collect(machine: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> Settings:
    """Everything that this machine has; `root` is where its system settings are."""
    given = os.environ if machine is None else machine
    home = Path(given.get("HOME") or "/nonexistent")
    config = Path(given.get("XDG_CONFIG_HOME") or home / ".config")
    base = trust_and_proxies(given)
    places = Places(dict(base.files))
    pip = programs.pip_settings(_texts(_pip_files(given, root, home, config)), given, places)
    uv = programs.uv_settings(_texts([root / "etc/uv/uv.toml", config / "uv/uv.toml"]), given, places)
    npm_files = [root / "etc/npmrc", root / "usr/etc/npmrc", root / "usr/local/etc/npmrc"]
    named = [Path(value) for name, value in given.items() if name.lower() == "npm_config_userconfig"]
    npm = programs.npm_settings(_texts([*npm_files, *(named or [home / ".npmrc"])]), given, places)
    sources = _source_files(root)
    auth = "".join(_texts([root / "etc/apt/auth.conf", *sorted((root / "etc/apt/auth.conf.d").glob("*.conf"))]))
    if auth:
        places.files["apt-auth.conf"] = auth.encode()
    parts = (pip, uv, npm)
    known = _mentioned((*parts, Found(env=apt.mirrors(sources))))
    logins, passwords = _netrc(Path(given.get("NETRC") or home / ".netrc"), known)
    env = {**base.env, **uv_over_pip(pip.env, uv.env), **npm.env}
    if logins:
        places.files["netrc"] = logins
        env["NETRC"] = f"{FOLDER}/netrc"
    if _BUNDLE_FILE in places.files:
        env |= dict.fromkeys(_TRUST, BUNDLE)
    files = {**places.files, **pip.files, **npm.files}
    options = apt.apt_options(_apt_dump(root))
    texts = [*env.values(), options, *(data.decode(errors="replace") for name, data in files.items() if name.islower())]
    secrets = base.secrets | _secrets(texts) | passwords | uv.secrets | npm.secrets | _auth_passwords(auth)
    mirrors = apt.mirrors(sources)
    return Settings(env, base.proxies, files, places.folders, options, mirrors, frozenset(filter(None, secrets)))


def uv_over_pip(pip: Mapping[str, str], uv: Mapping[str, str]) -> dict[str, str]:
    """Variables of both; the index of pip serves uv only where uv has none of its own."""
    own = {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"} & set(uv)
    return {**{name: value for name, value in pip.items() if not (own and name.startswith("UV_"))}, **uv}


def _pip_files(given: Mapping[str, str], root: Path, home: Path, config: Path) -> list[Path]:
    """In the order in which pip reads them, the last one being the strongest."""
    named = given.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    own = [root / "etc/xdg/pip/pip.conf", root / "etc/pip.conf", home / ".pip/pip.conf", config / "pip/pip.conf"]
    return [*own, Path(named)] if named else own


def _texts(paths: Iterable[Path]) -> list[str]:
    found = []
    for path in paths:
        try:
            found.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue  # not there, or not for this user: the program here does without it too
    return found


def _source_files(root: Path) -> SourceFiles:
    folder = root / "etc/apt"
    paths = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    kept = [path for path in paths if path.suffix in (".list", ".sources") and path.is_file()]
    return {str(path): text for path in kept for text in _texts([path])}


def _apt_dump(root: Path) -> str:
    if root != Path("/"):  # settings of another place: only its files can be asked
        return "\n".join(_texts(sorted((root / "etc/apt/apt.conf.d").glob("*"))))
    try:
        done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _mentioned(parts: Iterable[Found]) -> set[str]:
    texts = [text for part in parts for text in (*part.env.values(), *(data.decode() for data in part.files.values()))]
    urls = (url for text in texts for url in _URL.findall(text))
    return {host for url in urls if (host := urlsplit(url).hostname)}


def _netrc(path: Path, hosts: set[str]) -> tuple[bytes, set[str]]:
    """The entries for hosts that the settings name, and their passwords: a login file has others too."""
    try:
        logins = netrc.netrc(str(path)).hosts
    except (OSError, netrc.NetrcParseError):
        return b"", set()
    kept = {host: entry for host, entry in logins.items() if host in hosts}
    text = "".join(f"machine {host} login {login} password {word}\n" for host, (login, _, word) in kept.items())
    return text.encode(), {word for _, _, word in kept.values() if word}


def _auth_passwords(text: str) -> set[str]:
    return set(re.findall(r"\bpassword\s+(\S+)", text))


def _secrets(texts: Iterable[str]) -> frozenset[str]:
    """Passwords, and names without one, that addresses carry."""
    found: set[str] = set()
    for url in (url for text in texts for url in _URL.findall(text)):
        try:
            parts = urlsplit(url)
        except ValueError:
            continue
        word = parts.password or parts.username
        found |= {word, unquote(word)} if word else set()
    return frozenset(found)


_written: Final[dict[tuple[int, str], Path]] = {}
_collected: Final[list[tuple[dict[str, str], Settings, float]]] = []
"""The variables of the last caller, what was found for them, and until when it counts."""
_guard: Final = threading.Lock()


def lay(
    settings: Settings, network: NetworkMode, *, sources: SourceFiles = MappingProxyType({}), one_user: bool = False
) -> Laid:
    """What commands with this network get. `sources` are apt's lists in the environment; `one_user`: there is only one.

    Under an allowlist the only way out is the sandbox's own proxy, so that of the machine is not passed on.
    """
    if network == "none":
        settings = Settings()
    elif network == "allowlist":
        kept = [line for line in settings.apt_options.splitlines(keepends=True) if "::Proxy" not in line]
        env = {name: value for name, value in settings.env.items() if name.upper() != "PIP_PROXY"}
        files = {
            name: _PROXY_LINES.sub(b"", data) if name in ("pip.conf", "npmrc") else data
            for name, data in settings.files.items()
        }
        settings = replace(settings, env=env, files=files, proxies={}, apt_options="".join(kept))
    files, env = dict(settings.files), {**settings.env, **settings.proxies}
    changed = apt.mirrored(sources, settings.apt_mirrors)
    if changed is not None:
        files["sources.list"] = changed[0].encode()
    bundle = BUNDLE if _BUNDLE_FILE in files else None
    replaced = changed[1] if changed is not None else None
    text = apt.apt_configuration(settings.apt_options, auth="apt-auth.conf" in files, bundle=bundle, replaced=replaced)
    text += _ONE_USER if one_user else ""
    if text:
        files["apt.conf"] = text.encode()
        env["APT_CONFIG"] = f"{FOLDER}/apt.conf"
    if not files and not env:
        return NOTHING
    mounts = [Mount(path, inside) for inside, path in settings.folders.items()]
    return Laid(env, (*([Mount(_folder(files), FOLDER)] if files else []), *mounts))


def _folder(files: Mapping[str, bytes]) -> Path:
    """A folder of this process with exactly these files, written once; its parent is closed to other users."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    with _guard:
        folder = _written.get((os.getpid(), digest))
        if folder is None or not folder.is_dir():
            folder = scratch_folder("settings-")
            for name, data in files.items():
                (folder / name).write_bytes(data)
                (folder / name).chmod(0o644)
            folder.chmod(0o755)
            _written[os.getpid(), digest] = folder
    return folder
