"""A real registry on loopback, images pushed over its HTTP API, and servers in between that misbehave."""

import gzip
import hashlib
import http.client
import io
import json
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchflow.sandbox.images import ImageRegistry, LayerStore
from benchflow.sandbox.images.distribution.pull import LEARNED
from benchflow.sandbox.images.oci import machine_architecture

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker"
FORMATS = {
    "oci": {
        "manifest": f"{OCI}.manifest.v1+json",
        "index": f"{OCI}.index.v1+json",
        "config": f"{OCI}.config.v1+json",
        "layer": f"{OCI}.layer.v1.tar+gzip",
    },
    "docker": {
        "manifest": f"{DOCKER}.distribution.manifest.v2+json",
        "index": f"{DOCKER}.distribution.manifest.list.v2+json",
        "config": f"{DOCKER}.container.image.v1+json",
        "layer": f"{DOCKER}.image.rootfs.diff.tar.gzip",
    },
}


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(**files):
    """A compressed layer with these files, names with `__` for slashes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


@dataclass
class Served:
    """A registry that runs; `push` fills it."""

    port: int
    folder: Path
    headers: dict = field(default_factory=dict)
    tls: object = None

    @property
    def host(self):
        return f"127.0.0.1:{self.port}"

    def name(self, repository, tag="1"):
        return f"{self.host}/{repository}:{tag}"

    def forward(self, path, headers):
        """What the registry answers to a request that another server was sent, for `web`."""
        status, answered, data = self.request("GET", path, headers={"Accept": headers.get("Accept", "*/*")})
        return status, {"Content-Type": answered.get("Content-Type", "")}, data

    def request(self, method, path, body=None, headers=None):
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = kind("127.0.0.1", self.port, timeout=20, **({"context": self.tls} if self.tls else {}))
        try:
            connection.request(method, path, body=body, headers={**self.headers, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def blob(self, repository, data):
        status, headers, body = self.request("POST", f"/v2/{repository}/blobs/uploads/")
        assert status == 202, body
        path = "/v2/" + headers["Location"].partition("/v2/")[2]
        path += f"{'&' if '?' in path else '?'}digest={digest_of(data)}"
        status, _, body = self.request("PUT", path, data, {"Content-Type": "application/octet-stream"})
        assert status == 201, body
        return {"digest": digest_of(data), "size": len(data)}

    def manifest(self, repository, target, values, kind):
        data = json.dumps(values).encode()
        where = target or digest_of(data)
        status, _, body = self.request("PUT", f"/v2/{repository}/manifests/{where}", data, {"Content-Type": kind})
        assert status == 201, body
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    def push(self, repository, *layers, tag="1", form="oci", architecture=None, kinds=None, **config):
        """An image of compressed layers; gives the descriptor of its manifest. Without a tag it has only a digest."""
        kinds = {**FORMATS[form], **(kinds or {})}
        values = {"os": "linux", "architecture": architecture or machine_architecture(), "config": config}
        blobs = [{"mediaType": kinds["layer"], **self.blob(repository, data)} for data in layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": kinds["manifest"],
            "config": {"mediaType": kinds["config"], **self.blob(repository, json.dumps(values).encode())},
            "layers": blobs,
        }
        return self.manifest(repository, tag, manifest, kinds["manifest"])

    def push_index(self, repository, members, tag="1", form="oci"):
        """An index of manifests by platform."""
        kinds = FORMATS[form]
        listed = [
            {**item, "platform": dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))}
            for platform, item in members.items()
        ]
        values = {"schemaVersion": 2, "mediaType": kinds["index"], "manifests": listed}
        return self.manifest(repository, tag, values, kinds["index"])

    def stored_blob(self, digest):
        """The file in which the registry keeps a blob."""
        code = digest.removeprefix("sha256:")
        return self.folder / "data/docker/registry/v2/blobs/sha256" / code[:2] / code / "data"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_registry(folder, http_settings="", settings=""):
    """`docker-registry` with its data below `folder`; ready when it answers."""
    program = shutil.which("docker-registry")
    assert program, "docker-registry is not installed; scripts/system-packages installs it"
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http:\n  addr: 127.0.0.1:{port}\n{http_settings}{settings}"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "the registry does not start"
                time.sleep(0.02)
        yield Served(port, folder)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with running_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def images(tmp_path):
    return ImageRegistry(LayerStore(tmp_path / "store"))


@pytest.fixture(autouse=True)
def own_machine(tmp_path, monkeypatch):
    """No settings, credentials or knowledge of the machine that runs the tests."""
    LEARNED.clear()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "BENCHCUBE_REGISTRIES"):
        monkeypatch.delenv(name, raising=False)
    yield
    LEARNED.clear()


@pytest.fixture(name="layer", scope="session")
def make_layer():
    return layer


@contextmanager
def running(handler_or_forward):
    """A small server of this process on a port of its own; gives the port. At the end every connection is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections, threads = [], []

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                threads.append(threading.Thread(target=handler_or_forward, args=(connection,), daemon=True))
                threads[-1].start()

        accepting = threading.Thread(target=serve, daemon=True)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                with suppress(OSError):  # the handler or the client was first
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(30)
            for connection in connections:
                connection.close()


class Cutter:
    """Forwards connections to a registry and cuts those that carry a blob after `after` bytes, `times` times."""

    def __init__(self, port, after=100_000, times=2):
        self.port, self.after, self.times = port, after, times
        self.only_the_first = False
        """Whether connections after the first one that is cut carry nothing of a blob."""
        self.requests = []
        self._lock = threading.Lock()

    def __call__(self, client):
        with client, socket.create_connection(("127.0.0.1", self.port)) as upstream, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(65536)
                if not data or data[:1] == b"\x16":  # the start of TLS
                    return
                head += data
            blob = b"/blobs/" in head.partition(b"\r\n")[0]
            with self._lock:
                self.requests.append(head.decode())
            upstream.sendall(head)
            passed = 0
            while data := upstream.recv(16384):
                if blob and self.times > 0 and passed + len(data) > self.after:
                    self.times -= 1
                    self.after = 0 if self.only_the_first else self.after
                    return
                client.sendall(data)
                passed += len(data)

    @property
    def blobs(self):
        return [text for text in self.requests if "/blobs/" in text.partition("\r\n")[0]]


@pytest.fixture(name="serve", scope="session")
def serve_fixture():
    return running


@pytest.fixture(name="cutter", scope="session")
def cutter_fixture():
    return Cutter


@contextmanager
def web(answer):
    """An HTTP server whose answers a function gives: `answer(method, path, headers, body) -> status, headers, body`."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def handle_any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, data = answer(self.command, self.path, self.headers, body)
            self.send_response(status)
            for name, value in {"Content-Length": len(data), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = handle_any  # noqa: N815 (the names that the base class calls)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that `server_close` waits until every connection is closed
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(name="web", scope="session")
def web_fixture():
    return web


@pytest.fixture(name="running_registry", scope="session")
def running_registry_fixture():
    return running_registry


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A key and a certificate for 127.0.0.1 that no machine trusts."""
    folder = tmp_path_factory.mktemp("certificate")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=127.0.0.1"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], cwd=folder, check=True, capture_output=True
    )
    return folder


@pytest.fixture(name="free_port", scope="session")
def free_port_fixture():
    return free_port
