"""At the rung `system` the agent's system is seen, and what the environment was built with stays as built before it."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

DOCKERFILE = """\
FROM debian:12
WORKDIR /app
RUN mkdir -p /usr/lib/python3/dist-packages/judge && echo 'def verdict(): return 0' \
 > /usr/lib/python3/dist-packages/judge/__init__.py && echo 'def single(): return 0' \
 > /usr/lib/python3/dist-packages/single.py \
 && printf '#!/bin/sh\\nexit 1\\n' > /usr/bin/judge && chmod 755 /usr/bin/judge
"""
TEST = """\
#!/bin/bash
. ~/.bashrc
if judge; then r=1; else r=$(python3 -c 'import json, judge, single; print(judge.verdict() + single.single())'); fi
echo ${r:-0} > /logs/verifier/reward.txt
"""
SITES = "/usr/local/lib/python3.11/dist-packages"
SYSTEM = "/usr/lib/python3/dist-packages"
USERS = "/root/.local/lib/python3.11/site-packages"
EVIL = "import os; os.write(1, bytes([49, 10])); os._exit(0)"
ATTACKS = {
    "a program replaced": "printf '#!/bin/sh\\n' > /usr/bin/judge",
    "a program deleted and put elsewhere": "mv /usr/bin/true /usr/local/bin/judge; rm /usr/bin/judge",
    "a program before it": "printf '#!/bin/sh\\n' > /usr/local/bin/judge; chmod 755 /usr/local/bin/judge",
    "a linked program before it": "ln -s /usr/bin/true /usr/local/bin/judge",
    "an interpreter before it": (
        "printf '#!/bin/sh\\necho 1\\n' > /usr/local/bin/python3; chmod 755 /usr/local/bin/python3"
    ),
    "a library changed": f"echo '{EVIL}' > {SYSTEM}/judge/__init__.py",
    "a library before it": f"mkdir -p {SITES}; echo '{EVIL}' > {SITES}/judge.py",
    "a linked library before it": (
        f"mkdir -p {SITES} /app/x; echo '{EVIL}' > /app/x/__init__.py; ln -s /app/x {SITES}/judge"
    ),
    "a package before a module of the same folder": (
        f"mkdir {SYSTEM}/single; echo '{EVIL}' > {SYSTEM}/single/__init__.py"
    ),
    "a module in the standard library": (
        f"mkdir /usr/lib/python3.11/judge; echo '{EVIL}' > /usr/lib/python3.11/judge/__init__.py"
    ),
    "a module of the user": f"mkdir -p {USERS}; echo '{EVIL}' > {USERS}/judge.py",
    "start-up lines": f"mkdir -p {SITES}; echo '{EVIL}' > {SITES}/x.pth",
    "start-up lines of the user": f"mkdir -p {USERS}; echo '{EVIL}' > {USERS}/x.pth",
    "start-up code": f"echo '{EVIL}' > /usr/lib/python3.11/sitecustomize.py",
    "start-up code of the user": f"mkdir -p {USERS}; echo '{EVIL}' > {USERS}/usercustomize.py",
    "bytecode": (
        f"cd {SYSTEM}; echo '{EVIL}' > /tmp/e.py; mkdir -p __pycache__; python3 -c 'import py_compile; "
        'py_compile.compile("/tmp/e.py", "__pycache__/single.cpython-311.pyc", invalidation_mode='
        "py_compile.PycInvalidationMode.UNCHECKED_HASH)'"
    ),
    "a shell's start": "echo 'judge() { true; }; export -f judge' >> /root/.bashrc",
}


@pytest.fixture
def folder(package):
    frontmatter = "verifier: {isolation: system}\nagent: {user: root}\n"
    return package(frontmatter, {"environment/Dockerfile": DOCKERFILE, "verifier/test.sh": TEST})


@pytest.mark.parametrize("attack", ATTACKS)
async def test_nothing_that_the_agent_added_stands_before_what_was_built(bench, folder, attack):
    async with bench(folder, base_image="host") as it:
        await it.sandbox.exec(["/bin/bash", "-c", ATTACKS[attack]], user="root", timeout=60)
        naive = TEST.replace("> /logs/verifier/reward.txt", "")
        seen = await it.sandbox.exec(["/bin/bash", "-c", naive], user="root", env={"HOME": "/root"}, timeout=60)
        assert seen.stdout.strip() == b"1", (seen, "the attack works where nothing is done against it")
        found = await it.verify()
        assert found.verdict.reward == 0, ((it.output / "test-stdout.txt").read_text(), found)


HONEST = f"""\
mkdir -p {SITES}/installed {SITES}/installed-1.dist-info /etc/app /opt/tool
echo 'value = 1' > {SITES}/installed/__init__.py
printf '[console_scripts]\\nx = installed\\n' > {SITES}/installed-1.dist-info/entry_points.txt
printf 'Metadata-Version: 2.1\\nName: installed\\nVersion: 1\\n' > {SITES}/installed-1.dist-info/METADATA
printf '#!/bin/sh\\necho 1\\n' > /usr/local/bin/newtool; chmod 755 /usr/local/bin/newtool
echo 1 > /etc/app/app.conf; echo 'app:x:999:999::/:/bin/sh' >> /etc/passwd
"""
SEES = """\
#!/bin/bash
set -e
echo 0 > /logs/verifier/reward.txt
python3 -c 'import installed, importlib.metadata as m; assert installed.value == 1
assert m.version("installed") == "1" and m.distribution("installed").entry_points'
newtool; grep -q 1 /etc/app/app.conf; id app
echo 1 > /logs/verifier/reward.txt
"""


async def test_what_the_agent_installed_and_configured_is_seen(bench, package):
    frontmatter = "verifier: {isolation: system}\nagent: {user: root}\n"
    folder = package(frontmatter, {"environment/Dockerfile": DOCKERFILE, "verifier/test.sh": SEES})
    async with bench(folder, base_image="host") as it:
        await it.agent(HONEST, user="root")
        found = await it.verify()
        assert found.verdict.reward == 1, ((it.output / "test-stdout.txt").read_text(), found)
