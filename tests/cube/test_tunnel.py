"""Tunnels to other machines: the stock `ssh` to a real server, which forwards to a real service."""

import http.client
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from peers import SSH_SERVER, PeerUnavailable, peer_environment

from cube.infra_utils import open_tunnel

SERVER = """
import asyncio, sys
import asyncssh

class Session(asyncssh.SSHServer):
    def connection_requested(self, host, port, *origin):
        return True

async def main(folder):
    options = {"server_host_keys": [asyncssh.generate_private_key("ssh-ed25519")]}
    options["authorized_client_keys"] = folder + "/key.pub"
    server = await asyncssh.create_server(Session, "127.0.0.1", 0, **options)
    print(server.get_port(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


class Screen(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"a screen")

    def log_message(self, *words):
        pass


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """An SSH server that knows one key; `ssh` finds it in place of port 22."""
    if shutil.which("ssh") is None:
        pytest.skip("needs ssh (Debian: openssh-client)")
    try:
        python = peer_environment(*SSH_SERVER) / "python"
    except PeerUnavailable as error:
        pytest.skip(str(error))
    for name in ("key", "other"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
        subprocess.run(words, check=True)
    server = subprocess.Popen([python, "-c", SERVER, tmp_path], stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -p {port} -o UserKnownHostsFile={tmp_path}/known "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    yield tmp_path
    server.kill()
    server.communicate()


@pytest.mark.slow
def test_a_service_of_another_machine_is_reached_through_a_tunnel_that_ends_with_its_process(remote):
    with ThreadingHTTPServer(("127.0.0.1", 0), Screen) as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.01,))
        thread.start()
        key, target = str(remote / "key"), service.server_port
        process, port = open_tunnel("127.0.0.1", "agent", key, target)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/screenshot")
        assert connection.getresponse().read() == b"a screen"
        connection.close()
        process.terminate()
        process.communicate()
        with pytest.raises(ConnectionRefusedError):
            http.client.HTTPConnection("127.0.0.1", port, timeout=10).connect()
        with pytest.raises(
            ConnectionError, match=f"No tunnel to port {target} of 127.0.0.1 after 1 .*Permission denied"
        ):
            open_tunnel("127.0.0.1", "agent", str(remote / "other"), target, max_attempts=1)
        call = f"open_tunnel('127.0.0.1', 'agent', {key!r}, {target})"
        script = f"from cube.infra_utils import open_tunnel; print({call}[0].pid, flush=True); input()"
        owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        tunnel = Path("/proc", owner.stdout.readline().decode().strip())
        assert tunnel.exists()
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
        deadline = time.monotonic() + 30
        while tunnel.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not tunnel.exists()
        service.shutdown()
        thread.join()


def test_a_tunnel_without_ssh_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConnectionError, match="apt-get install openssh-client"):
        open_tunnel("127.0.0.1", "agent", "key", 5000)
