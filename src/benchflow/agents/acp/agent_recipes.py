"""Where popular agents come from, and the scripts that install them: npm, PyPI, a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
"""The certificate bundle of Debian, Alpine and similar systems; node and Python do not use it by default."""
_BEGIN: Final = """\
set -e
command -v {program} >/dev/null 2>&1 && exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"""
_NPM: Final = (
    _BEGIN
    + """\
if ! command -v npm >/dev/null 2>&1; then
  if command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends nodejs npm ca-certificates >/dev/null
  elif command -v apk >/dev/null 2>&1; then
    apk add --no-cache nodejs npm >/dev/null
  else
    echo "the environment has no npm, and neither apt-get nor apk to install it" >&2
    exit 1
  fi
fi
node=""
[ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge {node} ] || node="node@{node}"
[ ! -r {certificates} ] || export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-{certificates}}"
export npm_config_cache="$scratch/cache"
user=$(npm config get userconfig)
global=$(npm config get globalconfig)
registry=$(npm config get registry)
export HOME="$scratch"
npm install --global --prefix {prefix} --userconfig "$user" --globalconfig "$global" \\
  --no-fund --no-audit --no-update-notifier --fetch-retry-maxtimeout=10000 --loglevel=error {packages} $node || {
  [ -z "$HTTP_PROXY" ] || node -e '
    const proxy = new URL(process.env.HTTP_PROXY);
    const host = new URL(process.argv[1]).hostname;
    const asked = { host: proxy.hostname, port: proxy.port, path: `http://${host}/`, headers: { host } };
    const show = (answer) => answer.statusCode === 403 && answer.pipe(process.stderr);
    require("http").get(asked, show).on("error", () => {});
  ' "$registry" || true
  exit 1
}
[ -z "$node" ] || for program in {prefix}/bin/*; do
  file=$(readlink -f "$program")
  [ "$(head -c 19 "$file")" != "#!/usr/bin/env node" ] || sed -i '1s|.*|#!{prefix}/bin/node|' "$file"
done
"""
)
"""An outdated node of the environment is kept: the newer one is used by the agent's own programs only."""
_PYPI: Final = (
    _BEGIN
    + """\
python=""
for version in {pythons}; do
  for name in "python$version" python3; do
    [ -z "$python" ] || continue
    "$name" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null && python=$name
  done
done
if [ -z "$python" ]; then
  echo "the environment has no Python of the versions {pythons}" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "the Python of the environment has no ensurepip" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
fi
"$python" -m venv {prefix}/venv
[ ! -r {certificates} ] || export PIP_CERT="${PIP_CERT:-{certificates}}"
export HOME="$scratch"
{prefix}/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir {packages}
mkdir -p {prefix}/bin
ln -sf {prefix}/venv/bin/{program} {prefix}/bin/{program}
"""
)
_GOOSE: Final = (
    _BEGIN
    + """\
command -v curl >/dev/null 2>&1 || { echo "the environment has no curl, which the installation needs" >&2; exit 1; }
curl -fsSL -o "$scratch/install.sh" https://github.com/block/goose/releases/download/{version}/download_cli.sh
CONFIGURE=false GOOSE_BIN_DIR={prefix}/bin GOOSE_VERSION={version} bash "$scratch/install.sh"
"""
)


class Recipe(Protocol):
    """Where an agent comes from."""

    @property
    def trust(self) -> str | None:
        """The variable that sets the trusted certificates of its programs; None: they find them."""

    def words(self, version: str) -> str:
        """What is installed, as text."""

    def script(self, program: str, prefix: str, version: str) -> str:
        """Installs `program` to `prefix/bin`, unless the environment has it."""


@dataclass(frozen=True, slots=True)
class Npm:
    """A package of npm."""

    package: str
    node: int = 0
    """The oldest supported major version of node; 0: it needs none."""
    beside: tuple[str, ...] = ()
    """Other packages that it needs, with their versions."""
    trust: str | None = "NODE_EXTRA_CA_CERTS"

    def words(self, version: str) -> str:
        return f"{' and '.join([f'{self.package}@{version}', *self.beside])} from npm"

    def script(self, program: str, prefix: str, version: str) -> str:
        packages = " ".join([f"{self.package}@{version}", *self.beside])
        return _filled(_NPM, {"program": program, "prefix": prefix, "packages": packages, "node": str(self.node)})


@dataclass(frozen=True, slots=True)
class PyPI:
    """A package of PyPI, in its own virtual environment."""

    package: str
    pythons: tuple[str, ...]
    """The supported versions of Python, best first; the environment must have one of them."""
    trust: str | None = "SSL_CERT_FILE"

    def words(self, version: str) -> str:
        return f"{self.package}=={version} from PyPI (for Python {' or '.join(self.pythons)} in the environment)"

    def script(self, program: str, prefix: str, version: str) -> str:
        fields = {"program": program, "prefix": prefix, "packages": f"{self.package}=={version}"}
        return _filled(_PYPI, {**fields, "pythons": " ".join(self.pythons)})


@dataclass(frozen=True, slots=True)
class GooseRelease:
    """The release that the authors of Goose publish."""

    trust: str | None = None

    def words(self, version: str) -> str:
        return f"its authors' release {version!r} from github.com"

    def script(self, program: str, prefix: str, version: str) -> str:
        return _filled(_GOOSE, {"program": program, "prefix": prefix, "version": version})


def _filled(script: str, fields: Mapping[str, str]) -> str:
    for name, value in {**fields, "certificates": CERTIFICATES}.items():
        script = script.replace(f"{{{name}}}", value)
    return script
