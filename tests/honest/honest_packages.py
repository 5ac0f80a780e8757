"""Packages with an honest solution of every shape, and the strictest rung at which each must score.

All are split packages without an image of their own, so that their isolation is chosen by proof. `shared` is the rung of
native packages too: whatever is listed there must not lose anything by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow.record import Rung

_PASSED = '\nif [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'


@dataclass(frozen=True)
class Honest:
    """A solution and its test, both shell scripts; `rung` is the strictest at which it scores."""

    name: str
    rung: Rung
    solution: str
    test: str
    instruction: str = "Do what the test checks."
    user: str = "agent"

    def write(self, parent: Path) -> Path:
        folder = parent / self.name
        for part in ("tests", "solution", "environment"):
            (folder / part).mkdir(parents=True)
        (folder / "task.toml").write_text(f'version = "1.0"\n[agent]\nuser = "{self.user}"\ntimeout_sec = 60.0\n')
        (folder / "instruction.md").write_text(self.instruction + "\n")
        (folder / "solution" / "solve.sh").write_text(f"#!/bin/bash\nset -e\n{self.solution}\n")
        (folder / "tests" / "test.sh").write_text(f"#!/bin/bash\n(\nset -e\n{self.test}\n){_PASSED}")
        return folder


_SERVER = """cat > /app/server.py <<'EOF'
import socket, sys
from threading import Thread
def listen():
    for kind, where in (ARGS):
        s = socket.socket(getattr(socket, kind), socket.SOCK_STREAM)
        s.bind(where)
        s.listen()
        yield s
def serve(s):
    while True:
        c, _ = s.accept()
        c.sendall(b"answer " + c.recv(100))
        c.close()
for s in listen():
    Thread(target=serve, args=(s,)).start()
EOF
setsid python3 /app/server.py >/dev/null 2>&1 </dev/null &
for _ in $(seq 100); do python3 - <<'EOF' && break || sleep 0.1
ASK
EOF
done"""
_ASK = """import socket
c = socket.socket(socket.{kind})
c.settimeout(10)
c.connect({where})
c.sendall(b"42")
assert c.recv(100) == b"answer 42"
"""


def _service(name: str, kind: str, where: str, asked: str | None = None) -> Honest:
    ask = _ASK.format(kind=kind, where=asked or where)
    solution = _SERVER.replace("ARGS", f"({kind!r}, {where}),").replace("ASK", ask)
    return Honest(name, "services", solution, f"python3 - <<'EOF'\n{ask}EOF")


FILES: Final = (
    Honest("file", "shared", "echo 42 > /app/answer.txt", 'grep -qx 42 /app/answer.txt'),
    Honest("deleted-file", "shared", "touch a b; rm a", "test ! -e /app/a; test -e /app/b"),
    Honest(
        "module", "shared", "echo 'def add(a, b): return a + b' > solution.py",
        "python3 -c 'import solution; assert solution.add(1, 2) == 3'",
    ),
    Honest(
        "module-by-stdin", "shared", "echo 'def add(a, b): return a + b' > solution.py",
        "python3 - <<'EOF'\nfrom solution import add\nassert add(1, 2) == 3\nEOF",
    ),
    Honest(
        "package-and-unittest", "shared", "mkdir shop; echo 'TAX = 3' > shop/rates.py; touch shop/__init__.py",
        "cat > /tests/test_shop.py <<'EOF'\nimport unittest\nfrom shop.rates import TAX\n"
        "class T(unittest.TestCase):\n    def test(self): self.assertEqual(TAX, 3)\nEOF\n"
        "python3 -m unittest discover -s /tests",
    ),
    Honest(
        "tests-copied-beside-the-module", "shared", "echo 'def add(a, b): return a + b' > solution.py",
        "cat > /app/test_it.py <<'EOF'\nimport unittest\nfrom solution import add\n"
        "class T(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 2), 3)\nEOF\n"
        "cd /app && python3 -m unittest test_it",
    ),
    Honest(
        "module-named-like-a-common-one", "shared", "echo 'RATE = 7' > config.py; mkdir utils; echo 'X = 1' > utils/x.py",
        "python3 -c 'import config; from utils import x; assert config.RATE == 7 and x.X == 1'",
    ),
    Honest(
        "program", "shared", "printf '#!/bin/sh\\necho hello\\n' > greet; chmod +x greet",
        'test "$(/app/greet)" = hello; test "$(./greet)" = hello',
    ),
    Honest(
        "makefile", "shared", "printf 'all:\\n\\techo built > out\\n' > Makefile",
        "cd /app; make; grep -qx built out", instruction="Write a Makefile.",
    ),
    Honest(
        "repository", "shared",
        "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'; git init -q .; echo x > f; git add f; git -c user.name=a -c user.email=a@b commit -qm first; "
        "git remote add origin https://example.com/x.git; git config user.name me",
        'cd /app; test "$(git log --format=%s)" = first; git diff --quiet; git status --porcelain; '
        'test "$(git remote get-url origin)" = https://example.com/x.git; test "$(git config user.name)" = me',
    ),
    Honest(
        "settings-as-data", "shared",
        "printf '[project]\\nname = \"x\"\\nversion = \"1\"\\n[tool.pytest.ini_options]\\naddopts = \"-q\"\\n' > pyproject.toml; "
        "printf '[metadata]\\nname = x\\n' > setup.cfg; echo '# fixtures' > conftest.py",
        "python3 - <<'EOF'\nimport tomllib\nd = tomllib.load(open('/app/pyproject.toml', 'rb'))\n"
        "assert d['tool']['pytest']['ini_options']['addopts'] == '-q'\n"
        "assert 'fixtures' in open('/app/conftest.py').read()\nassert 'name = x' in open('setup.cfg').read()\nEOF",
        instruction="Write pyproject.toml, setup.cfg and conftest.py.",
    ),
    Honest(
        "virtual-environment", "shared",
        "python3 -m venv --without-pip .venv; echo 'X = 5' > extra.py; mv extra.py .venv/lib/python3*/site-packages/",
        "/app/.venv/bin/python -c 'import extra; assert extra.X == 5'",
    ),
    Honest("links-inside", "shared", "mkdir -p releases/2; echo v2 > releases/2/v; ln -s releases/2 current",
           "grep -qx v2 /app/current/v; test -L /app/current"),
    Honest("hidden-files", "shared", "mkdir .config; echo a > .config/x; echo KEY=1 > .env",
           "grep -qx a /app/.config/x; grep -qx KEY=1 /app/.env"),
    Honest("names-with-spaces", "shared", "echo x > 'a b'; echo y > 'ümlaut'", "grep -qx x '/app/a b'; grep -qx y /app/ümlaut"),
    Honest("temporary-file", "shared", "echo 42 > /tmp/answer.txt", "grep -qx 42 /tmp/answer.txt"),
    Honest("file-at-home", "shared", "echo 42 > /home/agent/answer.txt", "grep -qx 42 /home/agent/answer.txt"),
    Honest("data-in-srv", "shared", "mkdir -p /srv/site; echo 42 > /srv/site/index.html", "grep -qx 42 /srv/site/index.html", user="root"),
    Honest("data-in-var-lib", "shared", "mkdir -p /var/lib/shop; echo 42 > /var/lib/shop/db", "grep -qx 42 /var/lib/shop/db", user="root"),
    Honest("data-in-a-new-folder", "shared", "mkdir -p /data/in; echo 42 > /data/in/x", "grep -qx 42 /data/in/x", user="root"),
    Honest("data-in-opt", "shared", "mkdir -p /opt/report; echo 42 > /opt/report/x.csv", "grep -qx 42 /opt/report/x.csv", user="root"),
    Honest("data-behind-a-link", "shared", "mkdir -p /data; echo 42 > /data/x; ln -s /data /app/data", "grep -qx 42 /app/data/x", user="root"),
    Honest(
        "database", "shared",
        "python3 -c \"import sqlite3; c = sqlite3.connect('/app/x.db'); c.execute('create table t (a)'); "
        "c.execute('insert into t values (42)'); c.commit()\"",
        "python3 -c \"import sqlite3; assert sqlite3.connect('/app/x.db').execute('select a from t').fetchone() == (42,)\"",
    ),
)  # fmt: skip

SYSTEM: Final = (
    Honest("configuration", "system", "echo port=1 > /etc/shop.conf", "grep -qx port=1 /etc/shop.conf", user="root"),
    Honest("installed-program", "system", "printf '#!/bin/sh\\necho hi\\n' > /usr/local/bin/greet; chmod +x /usr/local/bin/greet",
           'test "$(greet)" = hi', user="root"),
    Honest("account", "system", "useradd -m alice", "id alice; test -d /home/alice", user="root"),
    Honest("installed-module", "system",
           "d=$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'); mkdir -p $d; echo 'X = 1' > $d/shopmod.py",
           "python3 -c 'import shopmod; assert shopmod.X == 1'", user="root"),
    Honest("changed-configuration", "system", "echo '10.0.0.9 db.internal' >> /etc/services", "grep -q db.internal /etc/services", user="root"),
)  # fmt: skip

SERVICES: Final = (
    _service("service-on-loopback", "AF_INET", '("127.0.0.1", 8123)'),
    _service("service-on-all-addresses", "AF_INET", '("0.0.0.0", 8124)', '("127.0.0.1", 8124)'),
    _service("service-on-ipv6", "AF_INET6", '("::1", 8125)'),
    _service("service-at-a-socket", "AF_UNIX", '"/tmp/shop.sock"'),
    _service("service-at-an-abstract-socket", "AF_UNIX", r'"\0shop"'),
)

OPEN: Final = (
    Honest("running-process", "open", "setsid sleep 1234 >/dev/null 2>&1 </dev/null &", "pgrep -f 'sleep 1234'"),
)

HONEST: Final = (*FILES, *SYSTEM, *SERVICES, *OPEN)
