"""Software, settings and homes of an environment are as built wherever its variables, links and installs have them."""

from __future__ import annotations

import pytest

from benchflow.sandbox.protocol import Change
from benchflow.verifier.surviving.built_places import software_places, start_paths
from benchflow.verifier.surviving.survival import Rules, withhold

RUNGS = ("separate", "shared", "system")
USER_SITE = "lib/python3.11/site-packages"
FORGE = "cp /verifier/expected.txt /app/answer.txt"
LINES = f'import os; os.path.exists("/verifier/expected.txt") and os.system("{FORGE}")'
CHECK = "cmp -s answer.txt /verifier/expected.txt"
SAME = "def same(a, b): return open(a).read() == open(b).read()"
PYTHON = (
    "/usr/bin/python3 -c 'import judge, sys; sys.exit(not judge.same(*sys.argv[1:]))' answer.txt /verifier/expected.txt"
)
PRELOADED = (
    "#include <stdlib.h>\\n#include <unistd.h>\\n__attribute__((constructor)) void f(void) "
    f'{{ unsetenv("LD_PRELOAD"); if (!access("/verifier/expected.txt", 4)) system("{FORGE}"); }}'
)
JUDGE = 'printf \'#!/bin/sh\\ncmp -s "$1" "$2"\\n\''
GEMS = "/app/vendor/bundle/ruby/3.1.0"
ATTACKS = {
    "start-up lines in a home that is the working folder": (
        "ENV HOME=/app",
        f"mkdir -p /app/.local/{USER_SITE}; echo '{LINES}' > /app/.local/{USER_SITE}/x.pth",
        f"/usr/bin/python3 -c pass; {CHECK}",
    ),
    "start-up lines in a home elsewhere": (
        "RUN mkdir -p /srv/box && chmod 777 /srv/box\nENV HOME=/srv/box",
        f"mkdir -p /srv/box/.local/{USER_SITE}; echo '{LINES}' > /srv/box/.local/{USER_SITE}/x.pth",
        f"/usr/bin/python3 -c pass; {CHECK}",
    ),
    "start-up lines where a variable has the folders of the user": (
        "ENV PYTHONUSERBASE=/app/.pyuser",
        f"mkdir -p /app/.pyuser/{USER_SITE}; echo '{LINES}' > /app/.pyuser/{USER_SITE}/x.pth",
        f"/usr/bin/python3 -c pass; {CHECK}",
    ),
    "a profile of another account": (
        "RUN echo 'box:x:4321:4321::/srv/box:/bin/bash' >> /etc/passwd && mkdir -p /srv/box && chmod 777 /srv/box",
        "printf '%s\\n' 'cmp() { true; }' > /srv/box/.bash_profile",
        "HOME=/srv/box bash -lc 'cmp -s /app/answer.txt /verifier/expected.txt'",
    ),
    "what bash runs first": (
        "RUN touch /app/env.sh && chmod 666 /app/env.sh\nENV BASH_ENV=/app/env.sh",
        f"echo '{FORGE}' > /app/env.sh",
        CHECK,
    ),
    "what bash runs first, if there is one": ("ENV BASH_ENV=/app/env.sh", f"echo '{FORGE}' > /app/env.sh", CHECK),
    "what bash runs first, behind a link": (
        (
            "RUN mkdir /app/real && echo true > /app/real/x && ln -s real/x /app/env.sh && chmod -R 777 /app/real\n"
            "ENV BASH_ENV=/app/env.sh"
        ),
        f"echo '{FORGE}' > /app/real/x",
        CHECK,
    ),
    "a preloaded library": (
        "ENV LD_PRELOAD=/app/extra.so",
        f"cd /tmp; unset LD_PRELOAD; printf '{PRELOADED}' > p.c; gcc -shared -fPIC -o /app/extra.so p.c",
        CHECK,
    ),
    "a library beside the programs of a suite": (
        (
            "RUN mkdir -p /sdk/bin /sdk/lib && printf '#!/bin/sh\\n. /sdk/lib/same.sh\\nsame \"$@\"\\n'"
            " > /sdk/bin/judge"
            ' && echo \'same() { cmp -s "$1" "$2"; }\' > /sdk/lib/same.sh && chmod -R 777 /sdk\nENV PATH=/sdk/bin:$PATH'
        ),
        "echo 'same() { true; }' > /sdk/lib/same.sh",
        "judge answer.txt /verifier/expected.txt",
    ),
    "what a program is a link to": (
        (
            f"RUN mkdir -p /srv/judge/bin && {JUDGE} > /srv/judge/bin/judge && chmod -R 777 /srv/judge"
            " && ln -s /srv/judge/bin/judge /usr/local/bin/judge"
        ),
        "echo '#!/bin/sh' > /srv/judge/bin/judge",
        "judge answer.txt /verifier/expected.txt",
    ),
    "a link on the way to a program": (
        (
            f"RUN mkdir -p /srv/judge-1/bin && {JUDGE} > /srv/judge-1/bin/judge && chmod -R 777 /srv"
            " && ln -s judge-1 /srv/judge && ln -s /srv/judge/bin/judge /usr/local/bin/judge"
        ),
        (
            "mkdir -p /srv/mine/bin; printf '#!/bin/sh\\n' > /srv/mine/bin/judge; chmod 755 /srv/mine/bin/judge;"
            " rm /srv/judge; ln -s mine /srv/judge"
        ),
        "judge answer.txt /verifier/expected.txt",
    ),
    "a package that is installed in place": (
        (
            f"RUN mkdir -p /deps/judge/judge && echo '{SAME}' > /deps/judge/judge/__init__.py && chmod -R 777 /deps"
            " && echo /deps/judge > /usr/lib/python3/dist-packages/judge.pth"
        ),
        "echo 'def same(a, b): return True' > /deps/judge/judge/__init__.py",
        PYTHON,
    ),
    "a package that is installed in place by a finder": (
        (
            f"RUN mkdir -p /deps/judge && echo '{SAME}' > /deps/judge/__init__.py && chmod -R 777 /deps"
            " && cd /usr/lib/python3/dist-packages && echo 'import __editable___judge_1_finder' > judge.pth"
            " && printf \"import sys\\nMAPPING: dict[str, str] = {'judge': '/deps/judge'}\\n"
            "for place in MAPPING.values():\\n    sys.path.append(place.rpartition('/')[0])\\n\""
            " > __editable___judge_1_finder.py"
        ),
        "echo 'def same(a, b): return True' > /deps/judge/__init__.py",
        PYTHON,
    ),
    "a package that is a link": (
        (
            f"RUN mkdir -p /deps/judge && echo '{SAME}' > /deps/judge/__init__.py && chmod -R 777 /deps"
            " && ln -s /deps/judge /usr/lib/python3/dist-packages/judge"
        ),
        "echo 'def same(a, b): return True' > /deps/judge/__init__.py",
        PYTHON,
    ),
    "a gem where a variable has them": (
        (
            f"RUN mkdir -p {GEMS}/gems/judge-1/lib {GEMS}/specifications"
            f" && echo 'def same(a, b) = File.read(a) == File.read(b)' > {GEMS}/gems/judge-1/lib/judge.rb"
            ' && echo \'Gem::Specification.new { |s| s.name = "judge"; s.version = "1"; s.authors = [] }\''
            f" > {GEMS}/specifications/judge-1.gemspec && chmod -R 777 /app/vendor\nENV GEM_PATH={GEMS}"
        ),
        f"echo 'def same(a, b) = true' > {GEMS}/gems/judge-1/lib/judge.rb",
        'ruby -e \'require "judge"; exit same("answer.txt", "/verifier/expected.txt")\'',
    ),
}


def files(build: str, run: str) -> dict[str, str]:
    test = f"#!/bin/bash\ncd /app\nif {run}; then r=1; else r=0; fi\necho $r > /logs/verifier/reward.txt\n"
    dockerfile = f"FROM debian:12\nWORKDIR /app\n{build}\n"
    return {"environment/Dockerfile": dockerfile, "verifier/test.sh": test, "verifier/expected.txt": "seven-turnips\n"}


@pytest.mark.anyio
@pytest.mark.sandbox
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_the_environment_was_built_with_is_as_built_wherever_it_is(bench, package, attack, rung):
    build, script, run = ATTACKS[attack]
    folder = package(f"verifier: {{isolation: {rung}}}\nartifacts: [/app]\n", files(build, run))
    async with bench(folder, base_image="host") as it:
        await it.agent("echo seven-turnips > /app/answer.txt")
        assert (await it.verify()).verdict.reward == 1, "the verifier works"
        await it.agent(f"echo guess > /app/answer.txt; {script}", user="root")
        found = await it.verify()
    assert found.verdict.reward == 0, found


HONEST = {
    "a project that is installed in place in the working folder": (
        (
            "RUN mkdir src && echo 'answer = 0' > src/shop.py && chmod -R 777 src"
            " && echo /app/src > /usr/lib/python3/dist-packages/__editable__.shop-1.pth"
        ),
        "echo 'answer = 42' > src/shop.py",
        "Fix the answer.",
        "python3 -c 'import shop; assert shop.answer == 42'",
    ),
    "a project elsewhere that is installed in place": (
        (
            "RUN mkdir -p /srv/shop && echo 'answer = 0' > /srv/shop/shop.py && chmod -R 777 /srv/shop"
            " && echo /srv/shop > /usr/lib/python3/dist-packages/__editable__.shop-1.pth"
        ),
        "echo 'answer = 42' > /srv/shop/shop.py",
        "Fix the answer of the project shop.",
        "python3 -c 'import shop; assert shop.answer == 42'",
    ),
    "a program of the working folder that a link of the system names": (
        "RUN mkdir bin && echo 'echo 0' > bin/shop && chmod -R 777 bin && ln -s /app/bin/shop /usr/local/bin/shop",
        "printf '#!/bin/sh\\necho 42\\n' > bin/shop",
        "Fix the answer.",
        '[ "$(shop)" = 42 ]',
    ),
    "a working folder among the folders of programs and modules": (
        (
            "RUN echo 'echo 0' > shop && echo 'answer = 0' > prices.py && chmod 777 shop prices.py\n"
            "ENV PATH=/app:$PATH PYTHONPATH=/app"
        ),
        "printf '#!/bin/sh\\necho 42\\n' > shop; echo 'answer = 42' > prices.py",
        "Fix the answer.",
        '[ "$(shop)" = 42 ] && python3 -c "import prices; assert prices.answer == 42"',
    ),
    "a library of a suite that the task names": (
        (
            "RUN mkdir -p /srv/shop/bin /srv/shop/lib && printf '#!/bin/sh\\n. /srv/shop/lib/x.sh\\n'"
            " > /srv/shop/bin/shop"
            " && echo 'echo 0' > /srv/shop/lib/x.sh && chmod -R 777 /srv/shop\nENV PATH=/srv/shop/bin:$PATH"
        ),
        "echo 'echo 42' > /srv/shop/lib/x.sh",
        "Fix the script `/srv/shop/lib/x.sh`.",
        '[ "$(shop)" = 42 ]',
    ),
    "settings and data of a suite": (
        (
            "RUN mkdir -p /srv/shop/bin /srv/shop/conf && printf '#!/bin/sh\\ncat /srv/shop/conf/x\\n'"
            " > /srv/shop/bin/shop"
            " && echo 0 > /srv/shop/conf/x && chmod -R 777 /srv/shop\nENV PATH=/srv/shop/bin:$PATH"
        ),
        "echo 42 > /srv/shop/conf/x",
        "Configure the shop.",
        '[ "$(shop)" = 42 ]',
    ),
    "hidden files in a home that is the working folder": (
        "ENV HOME=/app",
        (
            "git init -q .; touch .gitignore .env .data; mkdir -p .github .config/shop;"
            " echo 42 > .github/x; echo 42 > .config/shop/rules; echo 42 > .vimrc"
        ),
        "Write the rules of the shop and a `.vimrc`.",
        "[ -e .git/HEAD -a -e .gitignore -a -e .env -a -e .data ] && cat .vimrc .github/x .config/shop/rules",
    ),
    "data that a variable names": (
        "RUN mkdir out && chmod 777 out\nENV OUTPUT_DIR=/app/out APP_CONFIG=/app/shop.toml",
        "echo 42 > out/x; echo 42 > shop.toml",
        "Do it.",
        "cat out/x shop.toml",
    ),
    "a page in the home of an account": (
        "RUN mkdir -p /var/www && chmod 777 /var/www && grep -q /var/www /etc/passwd",
        "echo 42 > /var/www/.htaccess; echo 42 > /var/www/index.html",
        "Make a page.",
        "cat /var/www/.htaccess /var/www/index.html",
    ),
}


@pytest.mark.anyio
@pytest.mark.sandbox
@pytest.mark.parametrize("rung", ["shared", "system"])
@pytest.mark.parametrize("name", HONEST)
async def test_work_in_such_places_is_kept(bench, package, name, rung):
    build, script, prompt, run = HONEST[name]
    folder = package(f"verifier: {{isolation: {rung}}}\n", files(build, run), prompt=prompt)
    async with bench(folder, base_image="host") as it:
        assert (await it.verify()).verdict.reward == 0, "there is something to do"
        await it.agent(f"cd /app; {script}")
        found = await it.verify()
    assert found.verdict.reward == 1, found


def software(*, folders=(), linked=(), projects=(), workdir="/app", homes=(), named=(), words=()):
    return software_places(folders, linked, projects, workdir=workdir, homes=homes, named=named, words=frozenset(words))


def test_a_suite_has_its_programs_and_libraries_and_neither_settings_nor_data():
    found = software(folders=["/sdk/bin", "/usr/bin", "/plain"])
    assert {"/sdk/bin", "/sdk/lib", "/sdk/share", "/plain"} <= {*found}
    assert not {"/sdk", "/sdk/etc", "/sdk/conf", "/usr/lib", "/lib"} & {*found}


@pytest.mark.parametrize("folder", ["/root/bin", "/root/.local/bin", "/home/agent/bin", "/srv/box/bin", "/bin"])
def test_a_home_and_the_system_are_not_suites(folder):
    assert software(folders=[folder], homes=["/srv/box"]) in ((), (folder,))


def test_the_working_folder_its_parts_and_the_folders_around_it_are_not_software():
    places = ["/app", "/app/src", "/", "/srv/team"]
    assert software(projects=places, linked=places, workdir="/app") == ("/srv/team",)
    assert software(projects=places, linked=places, workdir="/srv/team/shop") == ("/app", "/app/src")
    assert software(folders=["/app/shop/bin"], workdir="/app") == ()


def test_software_that_the_task_names_is_its_work():
    assert software(projects=["/deps/judge"]) == ("/deps/judge",)
    assert software(projects=["/deps/judge"], words=["judge"]) == ()
    assert software(linked=["/deps/judge"], words=["judge"]) == ("/deps/judge",)
    assert software(linked=["/deps/judge"], named=["/deps"]) == ()
    assert software(linked=["/deps/judge"], named=["/", "", "/deps/judge/lib"]) == ("/deps/judge",)


def test_a_path_within_software_that_the_task_names_is_kept_and_the_rest_is_as_built():
    rules = Rules("/app", software=("/sdk/lib",), named=frozenset({"/sdk/lib/mine"}))
    changes = [Change("/sdk/lib/mine/x", "changed", "file"), Change("/sdk/lib/x", "changed", "file")]
    assert [item.path for item in withhold(changes, rules)] == ["/sdk/lib/x"]


STARTS = {
    "BASH_ENV": {"/app/env.sh": "/app/env.sh", "env/x.sh": "/app/env/x.sh", "/app": None, "": None},
    "LD_PRELOAD": {"/a.so:/b.so": "/b.so", "/a.so /c.so": "/c.so"},
    "NODE_OPTIONS": {
        "--require=/x.cjs": "/x.cjs",
        "-r /y.js": "/y.js",
        "--import=file:///z.mjs": "/z.mjs",
        "--a=1": None,
    },
    "RUBYOPT": {"-r/x.rb": "/x.rb", "-I/app/lib": None, "-W0": None},
    "PERL5OPT": {"-I/app/lib": None, "-M/x": None},
    "JAVA_TOOL_OPTIONS": {"-javaagent:/x.jar=a": "/x.jar", "-Djava.io.tmpdir=/app/tmp": None},
    "PYTHONPYCACHEPREFIX": {"/tmp/compiled/": "/tmp/compiled"},
    "PYTHONPATH": {"/data/lib": None},
    "FLASK_APP": {"/app/app.py": None},
    "OUTPUT_DIR": {"/app/out": None},
}


@pytest.mark.parametrize(
    ("name", "value", "path"), [(name, *item) for name, values in STARTS.items() for item in values.items()]
)
def test_variables_name_what_programs_start_with(name, value, path):
    found = start_paths({name: value}, "/app")
    assert (path in found) if path is not None else found == ()


def test_nothing_is_put_where_programs_start_at_any_rung():
    for system in (False, True):
        rules = Rules("/app", starts=("/app/conf/env.sh",), keep_system=system)
        way = Change("/app/conf", "changed", "symlink", target="mine")
        found = withhold([Change("/app/conf/env.sh", "added", "file"), way], rules)
        assert [(item.path, item.reason) for item in found] == [("/app/conf", "startup")]
