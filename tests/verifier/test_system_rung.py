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


SHOP = """\
FROM debian:12
WORKDIR /app
RUN mkdir /etc/acme && echo port=80 > /etc/acme/settings.ini \\
 && printf '#!/bin/sh\\n. /etc/acme/settings.ini\\necho $port\\n' > /usr/bin/zz-shop && chmod 755 /usr/bin/zz-shop
"""
SHOPS = """\
#!/bin/bash
if [ "$(zz-shop)" = 8080 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize(
    ("more", "reward"),
    [
        ({"oracle/solve.sh": "#!/bin/sh\nsed -i s/80/8080/ /etc/acme/settings.ini\n"}, 1),
        ({"verifier/README.md": "The settings are in /etc/acme.\n"}, 1),
        ({}, 0),
    ],
    ids=["solution", "verifier", "nobody"],
)
async def test_settings_that_a_program_reads_by_itself_are_the_agents_if_named(bench, package, more, reward):
    frontmatter = "verifier: {isolation: system}\nagent: {user: root}\n"
    folder = package(frontmatter, {"environment/Dockerfile": SHOP, "verifier/test.sh": SHOPS, **more})
    async with bench(folder, base_image="host") as it:
        await it.agent("echo port=8080 > /etc/acme/settings.ini", user="root")
        found = await it.verify()
        assert found.verdict.reward == reward, found


INSTALLS = """\
cd /tmp; echo 'int zz_seven() { return 7; }' > zz.c
gcc -shared -fPIC -Wl,-soname,%s -o /usr/local/lib/%s zz.c; ldconfig
"""
LINKS = """\
#!/bin/bash
cd /tmp; echo 'int zz_seven(); int main() { return zz_seven() != 7; }' > main.c; gcc -o main main.c -l:%s && ./main
echo $((! $?)) > /logs/verifier/reward.txt
"""


async def test_the_loader_finds_a_library_that_the_agent_installed(bench, package):
    frontmatter = "verifier: {isolation: system}\nagent: {user: root}\n"
    folder = package(frontmatter, {"verifier/test.sh": LINKS % "libzzseven.so"})
    async with bench(folder, base_image="host") as it:
        await it.agent(INSTALLS % (("libzzseven.so",) * 2), user="root")
        found = await it.verify()
        assert found.verdict.reward == 1, ((it.output / "test-stdout.txt").read_text(), found)


LOADS = """\
#!/bin/bash
cd /tmp; printf '#include <dlfcn.h>\\nint main() { return dlopen("lib" "zz" "plugin.so", RTLD_NOW) != 0; }' > main.c
gcc -o main main.c && ./main
echo $? > /logs/verifier/reward.txt
"""
"""Its reward is 1 if a library is found that no text names."""


async def test_the_loader_finds_no_library_that_programs_look_for_in_vain(bench, package):
    frontmatter = "verifier: {isolation: system}\nagent: {user: root}\n"
    async with bench(package(frontmatter, {"verifier/test.sh": LOADS}), base_image="host") as it:
        await it.agent(INSTALLS % (("libzzplugin.so",) * 2), user="root")
        found = await it.verify()
        assert found.verdict.reward == 0, found


async def test_no_library_of_another_name_stands_for_one_of_the_environment(bench, package):
    frontmatter = "verifier: {isolation: system}\nagent: {user: root}\n"
    shown = "ldconfig -p | grep -c '/usr/local/lib/libz.so.1' > /logs/verifier/reward.txt"
    async with bench(package(frontmatter, {"verifier/test.sh": f"#!/bin/bash\n{shown}\n"}), base_image="host") as it:
        await it.agent(INSTALLS % ("libz.so.1", "libzzseven.so"), user="root")
        found = await it.verify()
        assert found.verdict.reward == 0, found
