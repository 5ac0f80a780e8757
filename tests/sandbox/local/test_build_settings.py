"""What commands of a build get from this machine, and what they do not."""

import base64
import http.server
import threading
import zipfile

import pytest

from benchflow.errors import EnvironmentFailure, UsageError
from benchflow.sandbox.machine_settings.allowance import VARIABLE as REACH
from benchflow.sandbox.machine_settings.allowance import allows
from benchflow.sandbox.machine_settings.collected import collect, current, lay, trust_and_proxies
from benchflow.sandbox.machine_settings.programs import BUNDLE, FOLDER, Places
from benchflow.sandbox.network.addresses import VARIABLE, permitted_networks

INDEX = "127.0.0.2"
PASSWORD = "s3cret-of-the-mirror"


def test_only_proxies_and_certificates_are_passed_on_without_permission(tmp_path):
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("certificates")
    given = {
        "HTTPS_PROXY": "http://u:hidden@p",
        "no_proxy": "x",
        "TOKEN": "secret",
        "PIP_CERT": str(bundle),
        "HOME": "/h",
    }
    settings = trust_and_proxies(given)
    laid = lay(settings, "public")
    assert (laid.env["HTTPS_PROXY"], laid.env["no_proxy"]) == ("http://u:hidden@p", "x")
    assert not {"TOKEN", "HOME"} & set(laid.env)
    (mount,) = laid.mounts
    assert (mount.target, (mount.source / "ca-certificates.crt").read_text()) == (FOLDER, "certificates")
    assert laid.env["SSL_CERT_FILE"] == laid.env["PIP_CERT"] == BUNDLE
    assert settings.secrets == {"hidden"}
    assert "HTTPS_PROXY" not in lay(settings, "allowlist").env
    assert lay(settings, "none").env == {}


@pytest.mark.parametrize("given", [{}, {"SSL_CERT_FILE": "/nowhere"}, {"SSL_CERT_FILE": ""}])
def test_without_a_bundle_no_certificates_are_mounted(given):
    laid = lay(trust_and_proxies(given), "public")
    assert (laid.env, laid.mounts) == ({}, ())


def test_apt_knows_when_there_is_only_one_user():
    laid = lay(trust_and_proxies({}), "public", one_user=True)
    (mount,) = laid.mounts
    assert (mount.source / "apt.conf").read_text() == 'APT::Sandbox::User "root";\n'
    assert laid.env == {"APT_CONFIG": f"{FOLDER}/apt.conf"}


def test_networks_are_permitted_by_the_operator_alone():
    assert permitted_networks({}) == ()
    found = permitted_networks({VARIABLE: "10.1.2.3, 192.168.0.0/16,fd00::/8,"})
    assert [str(network) for network in found] == ["10.1.2.3/32", "192.168.0.0/16", "fd00::/8"]


def test_what_is_no_network_is_wrong_usage():
    with pytest.raises(UsageError, match="nonsense"):
        permitted_networks({VARIABLE: "10.0.0.0/8,nonsense"})


def test_each_reach_includes_those_before_it():
    phases = ("build", "verify", "agent")
    found = {reach: [phase for phase in phases if allows(phase, {REACH: reach})] for reach in ("", "build", "verify")}
    assert found == {"": [], "build": ["build"], "verify": ["build", "verify"]}
    assert allows("agent", {REACH: "all"})
    with pytest.raises(UsageError, match="none, build, verify, all"):
        allows("build", {REACH: "everything"})


@pytest.fixture
def write(tmp_path):
    """Writes settings of a machine below `tmp_path`, with a home in `home`."""

    def put(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return {"HOME": str(tmp_path / "home")}

    return put


def files_of(laid):
    (mount,) = [mount for mount in laid.mounts if mount.target == FOLDER]
    return {path.name: path.read_text() for path in mount.source.iterdir()}


def test_settings_are_collected_once_for_a_moment_and_anew_for_other_variables(tmp_path, write):
    machine = write(home___dot_config__pip__pip_dot_conf="[global]\nindex-url = https://me:first-word@one.test/\n")
    first = current(machine)
    assert "first-word" in first.secrets
    assert current(dict(machine)) is first
    write(home___dot_config__pip__pip_dot_conf="[global]\nindex-url = https://me:second-word@one.test/\n")
    assert "second-word" in current({**machine, "PIP_TIMEOUT": "9"}).secrets


def test_pip_uv_and_npm_get_where_packages_come_from_and_nothing_else(tmp_path, write):
    machine = write(
        etc__pip_dot_conf="[global]\nindex-url = https://one.test/simple\nuser = yes\n",
        home___dot_config__pip__pip_dot_conf=f"[global]\nindex_url = https://me:pw-of-pip@two.test/simple\n"
        f"find-links = {tmp_path}/wheels /not/there\n[install]\ntarget = /somewhere\n",
        home___dot_npmrc="registry=https://npm.test/\n//npm.test/:_authToken=${TOKEN}\nprefix=/opt\n; registry=no\n",
        home___dot_netrc="machine npm.test login me password word-of-npm\nmachine other.test login x password other\n",
        wheels__x="",
    )
    settings = collect({**machine, "TOKEN": "npm-token", "PIP_TARGET": "/t", "PIP_TIMEOUT": "9"}, root=tmp_path)
    laid = lay(settings, "public")
    files = files_of(laid)
    assert files["pip.conf"].split() == [
        *("[global]", "index-url", "=", "https://me:pw-of-pip@two.test/simple", "find-links", "="),
        "/dev/benchflow/packages-0",
    ]
    assert {mount.target: mount.source for mount in laid.mounts}["/dev/benchflow/packages-0"] == tmp_path / "wheels"
    assert files["npmrc"] == "registry=https://npm.test/\n//npm.test/:_authToken=npm-token\n"
    assert files["netrc"] == "machine npm.test login me password word-of-npm\n"
    assert laid.env["UV_INDEX_URL"] == "https://me:pw-of-pip@two.test/simple"
    assert laid.env["PIP_TIMEOUT"] == "9"
    assert "PIP_TARGET" not in laid.env
    assert settings.secrets == {"pw-of-pip", "npm-token", "word-of-npm"}


def test_under_an_allowlist_no_program_is_sent_to_the_proxy_of_the_machine(tmp_path, write):
    machine = write(
        etc__pip_dot_conf="[global]\nproxy = http://proxy.test:1\nindex-url = https://one.test/simple\n",
        home___dot_npmrc="proxy=http://proxy.test:1\nhttps-proxy=http://proxy.test:1\nregistry=https://npm.test/\n",
    )
    settings = collect({**machine, "PIP_PROXY": "http://proxy.test:1"}, root=tmp_path)
    assert "proxy.test" in files_of(lay(settings, "public"))["npmrc"]
    laid = lay(settings, "allowlist")
    files = files_of(laid)
    assert files["pip.conf"].split() == ["[global]", "index-url", "=", "https://one.test/simple"]
    assert files["npmrc"] == "registry=https://npm.test/\n"
    assert "PIP_PROXY" not in laid.env


def test_settings_of_uv_win_over_those_of_pip(tmp_path, write):
    machine = write(
        etc__pip_dot_conf="[global]\nindex-url = https://pip.test/simple\n",
        etc__uv__uv_dot_toml='[[index]]\nurl = "https://uv.test/simple"\ndefault = true\n[[index]]\nname = "a"\n'
        'url = "https://a.test"\n',
    )
    env = collect({**machine, "UV_INDEX_A_PASSWORD": "word-of-uv", "UV_CACHE_DIR": "/c"}, root=tmp_path).env
    uv = {name: value for name, value in env.items() if name.startswith("UV_")}
    assert uv == {
        "UV_DEFAULT_INDEX": "https://uv.test/simple",
        "UV_INDEX": "a=https://a.test",
        "UV_INDEX_A_PASSWORD": "word-of-uv",
    }


def test_apt_gets_the_mirror_of_the_same_archive_for_the_release_of_the_image(tmp_path, write):
    machine = write(
        etc__apt__sources_dot_list="deb [arch=amd64] https://mirror.test/pub/debian bookworm main\n",
        etc__apt__auth_dot_conf="machine mirror.test login me password word-of-apt\n",
        etc__apt__apt_dot_conf_dot_d__90='Acquire::http::Proxy "http://proxy.test:3142";\nAPT::Get::Fix "true";\n',
    )
    settings = collect(machine, root=tmp_path)
    image = {
        "/etc/apt/sources.list": "# nothing here\n",
        "/etc/apt/sources.list.d/debian.sources": "# a comment\nTypes: deb\nURIs: http://archive.test/debian\n"
        "Suites: trixie trixie-updates\nComponents: main\nSigned-By: /usr/share/keyrings/d.gpg\n\n"
        "Types: deb\nURIs: http://archive.test/debian-security\nSuites: trixie-security\nComponents: main\n",
        "/etc/apt/sources.list.d/tool.list": "deb https://tool.test/apt stable main\n",
    }
    files = files_of(lay(settings, "public", sources=image))
    signed = "[signed-by=/usr/share/keyrings/d.gpg] https://mirror.test/pub/debian"
    assert files["sources.list"].splitlines() == [
        "# nothing here",
        f"deb {signed} trixie main",
        f"deb {signed} trixie-updates main",
        "deb http://archive.test/debian-security trixie-security main",
    ]
    assert files["apt.conf"].splitlines() == [
        'Acquire::http::Proxy "http://proxy.test:3142";',
        f'Dir::Etc::netrc "{FOLDER}/apt-auth.conf";',
        f'Dir::Etc::sourcelist "{FOLDER}/sources.list";',
        'Dir::Ignore-Files-Silently:: "^debian\\.sources$";',
    ]
    assert settings.secrets == {"word-of-apt"}
    other = {"/etc/apt/sources.list": "deb http://archive.ubuntu.com/ubuntu noble main\n"}
    assert "sources.list" not in files_of(lay(settings, "public", sources=other))


@pytest.fixture
def index(tmp_path):
    """A package index that asks for a password; it has the package `demo-of-mirror`."""
    name = "demo_of_mirror-1.0-py3-none-any.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("demo_of_mirror.py", "")
        info = "demo_of_mirror-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo-of-mirror\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    expected = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            allowed = self.headers.get("Authorization") == expected
            page = f'<a href="/{name}">{name}</a>'.encode()
            body = page if self.path.endswith("/demo-of-mirror/") else (tmp_path / name).read_bytes()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Type", "text/html" if body is page else "application/zip")
            self.send_header("Content-Length", str(len(body) if allowed else 0))
            self.end_headers()
            self.wfile.write(body if allowed else b"")

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer((INDEX, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://me:{PASSWORD}@{INDEX}:{server.server_port}/simple/"
        server.shutdown()
        thread.join()


@pytest.mark.anyio
async def test_a_build_uses_the_mirror_and_keeps_nothing_of_it(backend, tmp_path, monkeypatch, index):
    home = tmp_path / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(f"[global]\nindex-url = {index}\n")
    for name in ("XDG_CONFIG_HOME", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    context = tmp_path / "context"
    context.mkdir()
    install = "python3 -m pip install -q --no-cache-dir --target /opt/lib demo-of-mirror"
    (context / "Dockerfile").write_text(
        f'FROM any:1\nRUN {install} && test -e /opt/lib/demo_of_mirror.py && grep -v = "$PIP_CONFIG_FILE" > /opt/seen\n'
    )
    monkeypatch.setenv(REACH, "build")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(EnvironmentFailure, match=f"permit it with {VARIABLE}") as caught:
        await backend.build(context, base_image="host")
    assert "line 2" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    monkeypatch.setenv(VARIABLE, INDEX)
    image = await backend.build(context, base_image="host")
    kept = [path for layer in image.layers for path in layer.rglob("*")]
    assert {"demo_of_mirror.py", "seen"} <= {path.name for path in kept}
    assert not [path for path in kept if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert not {"dev", "pip.conf", "settings"} & {path.name for path in kept}
    assert not [name for name in image.env if name.startswith(("PIP_", "UV_"))]


def test_a_local_index_is_mounted_with_the_files_that_its_pages_link_to(tmp_path):
    (tmp_path / "simple").mkdir()
    places = Places()
    assert places.package_source(f"file://{tmp_path}/simple") == "file:///dev/benchflow/packages-0/simple"
    assert places.folders == {"/dev/benchflow/packages-0": tmp_path}
