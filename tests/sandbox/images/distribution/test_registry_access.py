"""Who is asked for an image, and what is shown to whom: credentials, token servers, mirrors, certificates, proxies."""

import base64
import json
import os
import ssl
import subprocess
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from benchflow.sandbox.images.distribution import ImageUnavailable, PullSettings, pull_image
from benchflow.sandbox.images.distribution.pull import LEARNED

pytestmark = pytest.mark.anyio

SECRET = "$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a"
"""`secret`, hashed."""
AUTH = base64.b64encode(b"ann:secret").decode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, running_registry, layer):
    """A registry that only Ann may use. Its blobs are served by another host, which keeps what it is sent."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "htpasswd").write_text(f"ann:{SECRET}\n")
    settings = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"
    with running_registry(folder, settings=settings) as registry:
        registry.headers["Authorization"] = f"Basic {AUTH}"
        registry.push("private", layer(a="a"))
        yield registry


def write_docker_config(home, **values):
    (home / ".docker").mkdir()
    (home / ".docker" / "config.json").write_text(json.dumps(values))


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


async def test_without_credentials_a_private_image_is_refused_and_the_reason_said(guarded, images):
    with pytest.raises(ImageUnavailable, match="demands credentials; there are no credentials for it") as caught:
        await pull_image(images, guarded.name("private"))
    assert caught.value.reason == "refused"


async def test_credentials_of_docker_are_used(guarded, images, home):
    write_docker_config(home, auths={guarded.host: {"auth": AUTH}})
    assert (await pull_image(images, guarded.name("private"))).manifests


async def test_wrong_credentials_are_said_to_be_wrong(guarded, images, home):
    write_docker_config(home, auths={guarded.host: {"username": "ann", "password": "guess"}})
    with pytest.raises(ImageUnavailable, match="401.*the credentials for it are not accepted"):
        await pull_image(images, guarded.name("private"))


async def test_a_credential_helper_is_asked(guarded, images, home, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "docker-credential-test"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nread server\n[ \"$1 $server\" = 'get {guarded.host}' ] || exit 1\n"
        'echo \'{"Username": "ann", "Secret": "secret"}\'\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    write_docker_config(home, credHelpers={guarded.host: "test"})
    assert (await pull_image(images, guarded.name("private"))).manifests


async def test_a_missing_helper_is_named_when_the_registry_refuses(guarded, images, home):
    write_docker_config(home, credsStore="nowhere")
    with pytest.raises(ImageUnavailable, match="docker-credential-nowhere is not installed"):
        await pull_image(images, guarded.name("private"))


async def test_credentials_of_a_package_are_used_for_its_image_only(guarded, images):
    own = PullSettings(credentials={guarded.name("private"): "ann:secret"})
    assert (await pull_image(images, guarded.name("private"), settings=own)).manifests
    other = PullSettings(credentials={guarded.name("other"): "ann:secret"})
    with pytest.raises(ImageUnavailable, match="there are no credentials"):
        await pull_image(images, guarded.name("private"), settings=other)


async def test_a_redirect_to_another_host_carries_no_credentials(guarded, images, web, home):
    """The front asks for credentials and sends whoever wants a blob elsewhere, as registries in clouds do."""
    elsewhere, front = [], []

    def other_host(method, path, headers, body):
        elsewhere.append(dict(headers))
        return guarded.forward(path, headers)

    def registry(method, path, headers, body):
        front.append(headers.get("Authorization"))
        if headers.get("Authorization") != f"Basic {AUTH}":
            return 401, {"WWW-Authenticate": 'Basic realm="test"'}, b""
        if "/blobs/" in path:
            return 307, {"Location": f"http://127.0.0.1:{other}{path}"}, b""
        return guarded.forward(path, headers)

    with web(other_host) as other, web(registry) as port:
        write_docker_config(home, auths={f"127.0.0.1:{port}": {"auth": AUTH}})
        assert (await pull_image(images, f"127.0.0.1:{port}/private:1")).manifests
    assert f"Basic {AUTH}" in front
    assert len(elsewhere) == 2
    assert not any("Authorization" in headers for headers in elsewhere)


class TokenServer:
    """Gives out tokens as Docker's token servers do, signed with a key whose certificate the registry trusts."""

    def __init__(self, folder):
        self.folder = folder
        self.asked = []

    def token(self, scope, actions=("pull",)):
        _, name, _ = scope.split(":")
        der = ssl.PEM_cert_to_DER_cert((self.folder / "cert.pem").read_text())
        now = int(time.time())
        head = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
        claims = {
            "iss": "test", "sub": "x", "aud": "images", "exp": now + 300, "nbf": now - 300, "iat": now, "jti": "1",
            "access": [{"type": "repository", "name": name, "actions": list(actions)}],
        }  # fmt: skip
        text = ".".join(_plain(json.dumps(part).encode()) for part in (head, claims))
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.folder / "key.pem")]
        signed = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
        return f"{text}.{_plain(signed)}"

    def __call__(self, method, path, headers, body):
        values = {key: value[0] for key, value in parse_qs(body.decode() or urlsplit(path).query).items()}
        self.asked.append((method, values, headers.get("Authorization")))
        known = headers.get("Authorization") == f"Basic {AUTH}" or values.get("refresh_token") == "identity"
        if "private" in values["scope"] and not known:
            return 401, {}, b"{}"
        field = "access_token" if method == "POST" else "token"
        return 200, {}, json.dumps({field: self.token(values["scope"])}).encode()


def _plain(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory, certificate, running_registry, web, layer):
    server = TokenServer(certificate)
    with web(server) as port:
        settings = (
            f"auth: {{token: {{realm: 'http://127.0.0.1:{port}/token', service: images, issuer: test, "
            f"rootcertbundle: {certificate}/cert.pem}}}}\n"
        )
        with running_registry(tmp_path_factory.mktemp("tokens"), settings=settings) as registry:
            for name in ("public", "private"):
                token = server.token(f"repository:{name}:pull", ("pull", "push"))
                registry.headers["Authorization"] = f"Bearer {token}"
                registry.push(name, layer(a="a"), layer(b="b"), layer(c="c"))
            yield server, registry


@pytest.mark.parametrize(
    ("name", "entry", "method", "authorization"),
    [
        ("public", None, "GET", None),
        ("private", {"auth": AUTH}, "GET", f"Basic {AUTH}"),
        ("private", {"identitytoken": "identity"}, "POST", None),
    ],
)
async def test_a_token_is_fetched_once_where_the_registry_says(
    tokens, images, home, name, entry, method, authorization
):
    server, registry = tokens
    server.asked.clear()
    if entry is not None:
        write_docker_config(home, auths={registry.host: entry})
    assert (await pull_image(images, registry.name(name))).manifests
    ((asked_with, values, sent),) = server.asked
    assert (asked_with, sent) == (method, authorization)
    assert (values["service"], values["scope"]) == ("images", f"repository:{name}:pull")


async def test_a_token_server_that_refuses_is_named(tokens, images):
    with pytest.raises(ImageUnavailable, match="the token server .* answered 401; there are no credentials"):
        await pull_image(images, tokens[1].name("private"))


@pytest.fixture
def settings(tmp_path, monkeypatch):
    def write(text):
        (tmp_path / "registries.toml").write_text(text)
        monkeypatch.setenv("BENCHCUBE_REGISTRIES", str(tmp_path / "registries.toml"))

    return write


async def test_mirrors_are_asked_first_and_the_registry_when_they_fail(served, images, layer, settings, free_port):
    served.push("library/mirrored", layer(a="a"))
    settings(f'[registry."docker.io"]\nmirrors = ["http://127.0.0.1:{free_port()}", "http://{served.host}"]\n')
    record = await pull_image(images, "mirrored:1")
    assert (record.name, record.source) == ("mirrored:1", f"registry {served.host}")


async def test_a_mirror_with_another_digest_does_not_stop_the_registry_from_being_asked(
    served, images, layer, settings, web
):
    wanted = served.push("both", layer(a="right"))["digest"]
    other = served.push("stale", layer(a="stale"))["digest"]

    def lacking(method, path, headers, body):
        return (404, {}, b"{}") if wanted in path else served.forward(path.replace("/both/", "/stale/"), headers)

    def lying(method, path, headers, body):
        return served.forward(path.replace("/both/", "/stale/").replace(wanted, other), headers)

    with web(lacking) as first, web(lying) as second:
        mirrors = f'["http://127.0.0.1:{first}", "http://127.0.0.1:{second}"]'
        settings(f'[registry."{served.host}"]\nmirrors = {mirrors}\n')
        record = await pull_image(images, f"{served.host}/both:1@{wanted}")
    assert record.source == f"registry {served.host}"


async def test_a_private_ca_is_trusted_by_setting_only(
    certificate, running_registry, images, layer, settings, tmp_path, monkeypatch
):
    tls = f"  tls: {{certificate: {certificate}/cert.pem, key: {certificate}/key.pem}}\n"
    with running_registry(tmp_path / "tls", http_settings=tls) as registry:
        registry.tls = ssl.create_default_context(cafile=certificate / "cert.pem")
        registry.push("x", layer(a="a"))
        with pytest.raises(ImageUnavailable, match="its certificate is not trusted .*name its CA in registries.toml"):
            await pull_image(images, registry.name("x"))
        LEARNED.clear()
        settings(f'[registry."{registry.host}"]\nca = "{certificate}/cert.pem"\n')
        assert (await pull_image(images, registry.name("x"), settings=PullSettings("always"))).manifests


async def test_the_proxy_of_the_machine_is_used_but_not_for_loopback(served, images, layer, web, settings, monkeypatch):
    served.push("x", layer(a="a"))
    asked = []

    def proxy(method, path, headers, body):
        asked.append(path)
        return served.forward(urlsplit(path).path, headers)

    settings('[registry."registry.test:5000"]\nplain_http = true\n')
    with web(proxy) as port:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert (await pull_image(images, "registry.test:5000/x:1")).manifests
        assert asked[0] == "http://registry.test:5000/v2/"
        count = len(asked)
        assert (await pull_image(images, served.name("x"))).manifests
        assert len(asked) == count
