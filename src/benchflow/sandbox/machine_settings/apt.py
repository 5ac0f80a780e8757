"""The settings of apt: how it reaches its archives, credentials for them, and the mirrors this machine uses.

An image has sources for its own release, so the machine's list is never used as it is: in the image's list the address
of an archive is replaced by the one that this machine has for the same archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from benchflow.sandbox.machine_settings.programs import FOLDER

_KEPT: Final = re.compile(
    r'^(Acquire::(?:(?:http|https|ftp)::[\w.:-]*|Retries|Check-Valid-Until|Check-Date|ForceIPv[46])) "(.*)";$',
    re.MULTILINE,
)
_FILES: Final = (
    "::CaInfo",
    "::CaPath",
    "::SslCert",
    "::SslKey",
    "::CrlFile",
    "::Proxy-Auto-Detect",
    "::ProxyAutoDetect",
)
"""Settings that name files of this machine; certificates have their own way."""
_ONE_LINE: Final = re.compile(r"^(?P<head>(?:deb|deb-src)\s+(?:\[[^]]*\]\s+)?)(?P<uri>\S+)(?P<rest>\s.*)$")
_ARCHIVES: Final = ("debian-security", "debian", "ubuntu-ports", "ubuntu")
SourceFiles = Mapping[str, str]
"""Texts of `sources.list` and of the files of `sources.list.d`, by path."""


def apt_options(dump: str) -> str:
    """The settings of `apt-config dump` that a sandbox needs to reach archives as this machine does."""
    kept = [(name, value) for name, value in _KEPT.findall(dump) if value and not name.endswith(_FILES)]
    return "".join(f'{name} "{value}";\n' for name, value in kept)


def archive_of(uri: str) -> str | None:
    """Which archive an address leads to, by the last parts of its path; None for one that is not a distribution's."""
    parts = [part for part in urlsplit(uri.strip()).path.split("/") if part]
    return next((name for name in _ARCHIVES if name in parts[-2:]), None) if parts else None


def mirrors(files: SourceFiles) -> dict[str, str]:
    """The address that this machine uses for each archive."""
    found: dict[str, str] = {}
    for path, text in files.items():
        for line in text.splitlines() if path.endswith(".list") else one_line_form(text):
            match = _ONE_LINE.match(line)
            archive = archive_of(match["uri"]) if match else None
            if match and archive is not None:
                found.setdefault(archive, match["uri"].rstrip("/"))
    return found


def one_line_form(text: str) -> list[str]:
    """The entries of a `.sources` file as lines of a `.list` file."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)):
        fields: dict[str, str] = {}
        for key, value in re.findall(r"^([\w-]+):[ \t]*((?:.*)(?:\n[ \t].*)*)", block, re.MULTILINE):
            fields[key.lower()] = value
        if fields.get("enabled", "yes").strip().lower() in ("no", "false") or "\n" in fields.get("signed-by", ""):
            continue
        options = {"signed-by": "signed-by", "architectures": "arch", "trusted": "trusted"}
        given = " ".join(
            f"{short}={','.join(fields[long].split())}" for long, short in options.items() if long in fields
        )
        for kind in fields.get("types", "").split():
            for uri in fields.get("uris", "").split():
                for suite in fields.get("suites", "").split():
                    components = " ".join(fields.get("components", "").split())
                    lines.append(f"{kind} {f'[{given}] ' if given else ''}{uri} {suite} {components}".rstrip())
    return lines


def mirrored(image: SourceFiles, known: Mapping[str, str]) -> tuple[str, list[str]] | None:
    """One list in place of the image's files that name an archive with a mirror, and the names of those files.

    None if no address changes. Other files of the image, and those that a command adds, are read as they are.
    """
    lines: list[str] = []
    replaced: list[str] = []
    changed = False
    for path, text in image.items():
        entries = text.splitlines() if path.endswith(".list") else one_line_form(text)
        rewritten = [_rewritten(line, known) for line in entries]
        main = path.endswith("/sources.list")
        if rewritten != entries or main:
            lines += rewritten
            replaced += [] if main else [path.rpartition("/")[2]]
            changed = changed or rewritten != entries
    return ("\n".join(lines) + "\n", replaced) if changed else None


def _rewritten(line: str, known: Mapping[str, str]) -> str:
    match = _ONE_LINE.match(line)
    archive = archive_of(match["uri"]) if match else None
    if match is None or archive is None or archive not in known or match["uri"].rstrip("/") == known[archive]:
        return line
    return f"{match['head']}{known[archive]}{match['rest']}"


def apt_configuration(options: str, *, auth: bool, bundle: str | None, replaced: Iterable[str] | None) -> str:
    """The file that `APT_CONFIG` names."""
    lines = [options]
    if auth:
        lines.append(f'Dir::Etc::netrc "{FOLDER}/apt-auth.conf";\n')
    if bundle is not None:
        lines.append(f'Acquire::https::CaInfo "{bundle}";\n')
    if replaced is not None:
        lines.append(f'Dir::Etc::sourcelist "{FOLDER}/sources.list";\n')
        lines += [f'Dir::Ignore-Files-Silently:: "^{re.escape(name)}$";\n' for name in replaced]
    return "".join(lines)
