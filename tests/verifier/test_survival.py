"""What survives of an agent's changes, by path alone."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.protocol import Change
from benchflow.verifier.surviving.built_places import lookup_folders
from benchflow.verifier.surviving.survival import Rules, below, resolve, withhold

RULES = Rules(workdir="/app")
SITE = "/usr/local/lib/python3.11/dist-packages"

WITHHELD = {
    "/verifier/test.sh": "scope",
    "/tests": "scope",
    "/logs/verifier/reward.txt": "scope",
    "/oracle/solve.sh": "scope",
    "/usr/bin/python3": "system",
    "/etc/ld.so.preload": "system",
    "/opt/tool": "system",
    "/root/.bashrc": "home",
    "/var/lib/dpkg/info/x.postinst": "system",
    "/home/agent/.local/lib/x.py": "home",
    "/home/agent/.bashrc": "home",
    "/home/agent/bin/cmp": "home",
    "/conftest.py": "above",
    "/pyproject.toml": "above",
    "/package.json": "above",
    "/.git": "above",
    "/results.txt": "above",
    "/app/.cargo/Config.TOML": "hook",
    "/app/Jest.Config.JS": "hook",
    "/app/sub/SiteCustomize.py": "startup",
    "/app/ｓitecustomize.py": "startup",
    "/app/.git/hooks/post-checkout": "hook",
    "/app/.git/modules/sub/hooks/post-checkout": "hook",
    "/app/--checkpoint=1": "option",
    "/app/deep/-rf": "option",
    "/data/-x": "option",
    "/app/lib/rubygems.rb": "hook",
    "/app/lib/rubygems/defaults": "hook",
    "/app/rakelib/mine.rake": "hook",
    "/app/Makefile.sh": "hook",
    "/app/rules.mk.o": "hook",
    "/app/.cargo/config.toml": "hook",
    "/app/jest.config.js": "hook",
    "/app/sitecustomize.py": "startup",
    "/app/sub/usercustomize.cpython-311-x86_64-linux-gnu.so": "startup",
    "/tmp/sitecustomize.pyc": "startup",
    "/app/pkg/__pycache__": "bytecode",
    "/tmp/check_7.py/__main__.py": "startup",
    "/data/tool/__main__.cpython-311-x86_64-linux-gnu.so": "startup",
    "/node_modules/left-pad/index.js": "path",
}
KEPT = [
    "/app/answer.txt",
    "/app/tool/__main__.py",
    "/app/.git/refs/heads/hooks/mine",
    "/app/.git/modules/hooks/HEAD",
    "/app/Makefile.am",
    "/app/node_modules/left-pad/index.js",
    "/app/src/json.py",
    "/app/json.py",
    "/app/conftest.py",
    "/app/pytest.ini",
    "/app/x.egg-info/entry_points.txt",
    "/app/model.pth",
    "/app/challenge.pyc",
    "/tmp/subprocess.py",
    "/var/lib/app/state.db",
    "/root/result.csv",
    "/app/test.py",
    "/app/test/__init__.py",
    "/app/requests",
    "/app/pyproject.toml",
    "/app/setup.py",
    "/app/.git/hooks/pre-commit.sample",
    "/app/.git/config",
    "/tmp/out.txt",
    "/data/result.csv",
    "/home/agent/notes.txt",
    "/srv/www/index.html",
    "/var/log/app.log",
    "/logs/agent/trajectory.json",
    "/logs/artifacts/x",
]


def reasons(changes, rules=RULES):
    return {item.path: item.reason for item in withhold(changes, rules)}


@pytest.mark.parametrize(("path", "reason"), WITHHELD.items())
def test_what_could_act_is_withheld(path, reason):
    assert reasons([Change(path, "added", "file")]) == {path: reason}


@pytest.mark.parametrize("path", KEPT)
def test_everything_else_survives(path):
    kind = "directory" if path == "/app/requests" else "file"
    assert reasons([Change(path, "added", kind)]) == {}


def test_only_the_outermost_of_a_tree_is_named():
    changes = [Change("/usr/local/x", "added", "directory"), Change("/usr/local/x/y", "added", "file")]
    assert reasons(changes) == {"/usr/local/x": "system"}


def test_opt_outs_keep_what_they_name():
    changes = [Change("/usr/bin/x", "added", "file"), Change("/app/jest.config.js", "added", "file")]
    assert reasons(changes, Rules("/app", keep_system=True)) == {"/app/jest.config.js": "hook"}
    assert reasons(changes, Rules("/app", keep_hooks=True)) == {"/usr/bin/x": "system"}
    scope = [Change("/verifier/x", "added", "file"), Change("/app/p", "added", "special")]
    assert len(reasons(scope, Rules("/app", keep_system=True, keep_hooks=True))) == 2


def test_a_file_above_everything_survives_where_the_task_names_its_path():
    changes = [Change("/results.txt", "added", "file"), Change("/package.json", "added", "file")]
    rules = Rules("/app", expected=frozenset({"package.json"}), named=frozenset({"/results.txt"}))
    assert reasons(changes, rules) == {"/package.json": "above"}


@pytest.mark.parametrize("kind", ["changed", "deleted"])
def test_files_that_configure_pytest_are_as_built_and_those_that_were_added_stay_as_data(kind):
    assert reasons([Change("/app/conftest.py", kind, "file")]) == {"/app/conftest.py": "hook"}
    assert reasons([Change("/app/pyproject.toml", kind, "file")]) == {}


def test_software_of_the_environment_stays_and_a_folder_that_the_agent_made_beside_it_is_data():
    changes = [
        Change("/opt/data", "added", "directory"),
        Change("/opt/data/x.csv", "added", "file"),
        Change("/opt/tool/plugin.so", "added", "file"),
    ]
    assert reasons(changes) == {"/opt/tool/plugin.so": "system"}


def test_the_working_folder_may_lie_in_the_system():
    rules = Rules("/opt/project")
    changes = [Change("/opt/project", "added", "directory"), Change("/opt/project/a.txt", "added", "file")]
    assert reasons([*changes, Change("/opt/other", "added", "file")], rules) == {"/opt/other": "system"}


def test_a_home_as_working_folder_keeps_files_and_loses_settings():
    rules = Rules("/home/agent")
    changes = [Change("/home/agent/a.txt", "added", "file"), Change("/home/agent/.bashrc", "changed", "file")]
    assert reasons(changes, rules) == {"/home/agent/.bashrc": "home"}


def test_places_of_programs_count_as_system_wherever_they_are():
    lookup = lookup_folders({"PATH": "/app/.venv/bin:/usr/bin:/data/bin", "PYTHONPATH": "/app/src"}, "/app")
    assert lookup == ("/app/.venv", "/usr/bin", "/data/bin")
    rules = Rules("/app", lookup=lookup)
    changes = [Change(path, "added", "file") for path in ("/app/.venv/lib/x.py", "/data/bin/cmp", "/app/src/os.py")]
    assert reasons(changes, rules) == {"/app/.venv/lib/x.py": "path", "/data/bin/cmp": "path"}


LINKS = {
    "inside": ("/app/a", "b/c", None),
    "inside, up and down": ("/app/x/a", "../b", None),
    "to itself through its own folder": ("/app/a", "/app/b", None),
    "to the system": ("/app/.venv/bin/python", "/usr/bin/python3", None),
    "to the verifier": ("/app/a", "/verifier/expected.txt", "link"),
    "to its alias": ("/app/a", "../tests/x", "link"),
    "out of the folder": ("/app/a", "/data/x", "link"),
    "climbing after going down": ("/app/a", "u/../../verifier/x", "link"),
    "to processes": ("/tmp/a", "/proc/1/root", "link"),
    "elsewhere to elsewhere": ("/data/a", "/data/b", None),
    "elsewhere to the verifier": ("/data/a", "/tests", "link"),
    "unknown": ("/app/a", None, "link"),
}


@pytest.mark.parametrize(("path", "target", "reason"), LINKS.values(), ids=LINKS)
def test_links_survive_when_they_stay(path, target, reason):
    found = reasons([Change(path, "added", "symlink", target=target)])
    assert found == ({path: reason} if reason else {})


def test_a_link_to_a_changed_part_of_the_system_does_not_survive():
    changes = [Change("/app/a", "added", "symlink", target="/usr/x"), Change("/usr/x", "added", "file")]
    assert reasons(changes) == {"/app/a": "link", "/usr/x": "system"}


@pytest.mark.parametrize("path", ["/app", "/logs"])
def test_the_way_to_important_places_is_no_link(path):
    assert reasons([Change(path, "changed", "symlink", target="/data")]) == {path: "scope"}


def test_a_link_to_a_changed_part_of_the_system_survives_where_the_system_does():
    changes = [Change("/app/a", "added", "symlink", target="/usr/x"), Change("/usr/x", "added", "file")]
    assert reasons(changes, Rules("/app", keep_system=True)) == {}


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/python3.11._pth",
        "/usr/bin/lib/python3.11/os.py",
        "/usr/bin/.sysless",
        "/usr/bin/libjli.so",
        "/usr/lib/python311.zip",
        "/usr/lib/x86_64-linux-gnu/libnss_db.so.2",
        "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libmine.so.1",
        "/usr/lib/gcc/x86_64-linux-gnu/12/real-ld",
        "/usr/x86_64-linux-gnu/lib/specs",
        "/usr/lib/ruby/3.1.0/rbconfig.rb",
        "/usr/lib/x86_64-linux-gnu/ruby/3.1.0/enc/mine.so",
        "/usr/local/lib/ruby/3.3.0/mine/mine.rb",
        "/usr/lib/jvm/java-17-openjdk-amd64/lib/mine.jar",
        "/usr/lib/locale/C.UTF-8/LC_COLLATE",
        "/usr/share/locale/en_US/LC_MESSAGES/diffutils.mo",
        "/usr/include/stdio.h.gch",
        "/usr/share/perl/5.36/strict.pmc",
        "/usr/lib/x86_64-linux-gnu/perl-base/auto/POSIX/POSIX.bs",
        "/etc/syslesskey",
    ],
)
def test_where_the_system_is_kept_nothing_stands_before_what_programs_were_built_with(path):
    assert list(reasons([Change(path, "added", "file")], Rules("/app", keep_system=True))) == [path]


def test_what_a_compiler_as_built_takes_first_is_as_built_also_through_a_link():
    rules = Rules("/app", keep_system=True, programs=frozenset({"x86_64-linux-gnu-gcc"}))
    link = Change("/usr/x86_64-linux-gnu/lib", "added", "symlink", 0, "/opt/any")
    other = Change("/usr/aarch64-linux-gnu/lib/libc.so", "added", "file")
    assert list(reasons([link, other], rules)) == [link.path]


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/libtool",
        "/usr/bin/jq",
        "/usr/lib/x86_64-linux-gnu/libjq.so.1",
        "/usr/lib/postgresql/15/bin/postgres",
        "/usr/lib/gcc/x86_64-linux-gnu/13/cc1",
        "/opt/tool/bin/lib/x.py",
    ],
)
def test_where_the_system_is_kept_new_software_is_too(path):
    folders = [f"/usr/lib/{name}" for name in ("postgresql", "postgresql/15", "gcc/x86_64-linux-gnu/13")]
    made = [Change(folder, "added", "directory") for folder in (*folders, "/usr/lib/postgresql/15/bin", "/opt/tool")]
    assert reasons([*made, Change(path, "added", "file")], Rules("/app", keep_system=True)) == {}


MODULE = "/go/pkg/mod/example.com/same@v1.0.0"


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        Change(f"{MODULE}/same.go", "changed", "file"),
        Change(f"{MODULE}/more.go", "added", "file"),
        Change("/root/go/pkg/mod/cache/download/example.com/same/@v/v1.0.0.ziphash", "changed", "file"),
        Change("/root/go", "changed", "symlink", target="/srv/go"),
        Change("/go/pkg/mod/example.com", "changed", "symlink", target="/srv/example.com"),
    ],
    ids=str,
)
def test_modules_of_go_that_the_environment_was_built_with_are_as_built(change, system):
    assert reasons([change], Rules("/app", keep_system=system)) == {change.path: "path"}


@pytest.mark.parametrize("system", [False, True])
def test_archives_of_modules_of_go_survive_and_are_compared_again(system):
    new, cache = MODULE.replace("same@", "other@"), "/go/pkg/mod/cache/download"
    kept = [f"{cache}/example.com/other/@v/v1.0.0.zip", f"{cache}/sumdb/sum.golang.org/lookup/example.com/other@v1.0.0"]
    changes = [Change(new, "added", "directory"), *(Change(path, "added", "file") for path in kept)]
    unpacked = Change(f"{new}/other.go", "added", "file")
    compared = Change(f"{cache}/example.com/other/@v/v1.0.0.ziphash", "added", "file")
    own = Change("/app/pkg/mod/parse.go", "changed", "file")
    found = reasons([*changes, unpacked, compared, own], Rules("/app", keep_system=system))
    assert found == {new: "path", compared.path: "path"}


@pytest.mark.parametrize("path", ["/root/go", "/home/agent/go", "/go/pkg", "/go/pkg/mod", "/go/pkg/mod/example.com"])
def test_no_link_leads_to_modules_of_go_elsewhere(path):
    link = Change(path, "added", "symlink", target="/srv/go")
    assert reasons([link], Rules("/app", keep_system=True)) == {path: "path"}


@pytest.mark.parametrize("path", ["/usr/local/bin/go", "/usr/local/go", "/app/pkg/mod/other.go"])
def test_other_links_of_go_survive(path):
    assert reasons([Change(path, "added", "symlink", target="/usr/lib/go")], Rules("/app", keep_system=True)) == {}


def test_libraries_in_hidden_folders_of_homes_are_as_built_where_the_system_is_kept():
    library = Change("/root/.m2/repository/junit/junit.jar", "changed", "file")
    added = Change("/root/.m2/repository/mine/mine.jar", "added", "file")
    assert reasons([library, added], Rules("/app", keep_system=True)) == {library.path: "startup"}
    asked = Rules("/app", keep_system=True, expected=frozenset({"junit.jar"}))
    assert reasons([library], asked) == {}


def test_languages_that_the_task_asks_for_survive_where_the_system_does():
    asked = Rules("/app", keep_system=True, expected=frozenset({"locale"}))
    assert reasons([Change("/usr/lib/locale/locale-archive", "added", "file")], asked) == {}


def test_a_folder_above_a_mount_is_no_change_but_a_link_in_its_place_is():
    rules = Rules("/app", mounted=("/opt/tool/data",))
    folders = [Change(path, "added", "directory") for path in ("/opt", "/opt/tool", "/opt/tool/data")]
    assert reasons(folders, rules) == {}
    assert reasons([Change("/opt/tool", "changed", "symlink", target="/app/mine")], rules) == {"/opt/tool": "system"}
    assert reasons([Change("/opt/tool/data", "changed", "symlink", target="/app/mine")], rules) == {
        "/opt/tool/data": "system"
    }
    assert reasons([Change("/opt/tool/other", "added", "directory")], rules) == {"/opt/tool/other": "system"}


def test_what_lies_beside_a_withheld_tree_is_judged_by_itself():
    changes = [Change(path, "added", "file") for path in ("/usr/x-y", "/usr/x/z", "/usr/x", "/app/a", "/srv/app-2")]
    assert [item.path for item in withhold(changes, RULES)] == ["/usr/x", "/usr/x-y"]


def test_a_withheld_change_is_recorded_with_its_kind_and_reason():
    (item,) = withhold([Change("/usr/bin/x", "deleted", "file")], RULES)
    assert item.to_dict() == {"path": "/usr/bin/x", "kind": "deleted", "reason": "system"}


PROGRAMS = Rules("/app", lookup=("/data/bin",), built=("/srv/tools",))
PLACES = {
    "a program in a place of programs": (PROGRAMS, Change("/data/bin/cmp", "added", "file"), "path"),
    "a folder above a place of programs": (PROGRAMS, Change("/data", "changed", "directory"), None),
    "a deleted folder above a place of programs": (PROGRAMS, Change("/data", "deleted", "directory"), "path"),
    "a file instead of a folder above it": (PROGRAMS, Change("/data", "changed", "file"), "path"),
    "a tool that the environment built": (PROGRAMS, Change("/srv/tools/x", "changed", "file"), "path"),
    "a folder above the tools": (PROGRAMS, Change("/srv", "changed", "directory"), None),
    "a link instead of the folder of modules": (
        RULES,
        Change("/node_modules", "added", "symlink", target="/app/m"),
        "path",
    ),
    "a folder above the working folder": (Rules("/opt/a/b"), Change("/opt/a", "added", "directory"), None),
    "a folder beside the working folder": (Rules("/opt/a/b"), Change("/opt/a/c", "added", "directory"), "system"),
    "a file above the working folder": (Rules("/opt/a/b"), Change("/opt/a", "changed", "file"), "scope"),
    "a folder above the verifier's": (RULES, Change("/logs", "changed", "directory"), None),
    "a file above the verifier's": (RULES, Change("/logs", "changed", "file"), "scope"),
    "the deleted working folder": (RULES, Change("/app", "deleted", "directory"), None),
    "a home": (RULES, Change("/home/agent", "added", "directory"), None),
    "a hidden folder among homes": (RULES, Change("/home/.agent", "added", "directory"), None),
    "a file deep in a setting": (RULES, Change("/home/agent/.config/a/b", "added", "file"), "home"),
    "a hidden file deeper in a home": (RULES, Change("/home/agent/a/.b", "added", "file"), None),
    "a hidden file below another folder": (RULES, Change("/data/agent/.bashrc", "added", "file"), None),
    "a home below another folder": (RULES, Change("/data/home/agent/.bashrc", "added", "file"), None),
    "a hidden file in a working folder": (RULES, Change("/app/.env", "added", "file"), None),
    "a hidden file in a working folder of a home": (
        Rules("/home/agent/work"),
        Change("/home/agent/work/.env", "added", "file"),
        None,
    ),
    "a setting beside that working folder": (
        Rules("/home/agent/work"),
        Change("/home/agent/.profile", "added", "file"),
        "home",
    ),
    "the working folder that is a home": (Rules("/root"), Change("/root", "changed", "directory"), None),
    "a file in it": (Rules("/root"), Change("/root/a.txt", "added", "file"), None),
    "a setting in it": (Rules("/root"), Change("/root/.profile", "added", "file"), "home"),
    "its programs": (Rules("/root"), Change("/root/bin/cmp", "added", "file"), "home"),
    "a special file": (RULES, Change("/data/pipe", "added", "special"), "special"),
    "a deleted link": (RULES, Change("/app/a", "deleted", "symlink", target="/verifier"), None),
}


@pytest.mark.parametrize(("rules", "change", "reason"), PLACES.values(), ids=PLACES)
def test_a_change_is_judged_by_its_place(rules, change, reason):
    assert reasons([change], rules) == ({change.path: reason} if reason else {})


ASKED = Rules("/app", expected=frozenset({"__main__.py", "jest.config.js"}))
KEEPING = Rules("/app", keep_system=True, keep_hooks=True)
ACTING = {
    "a program that the task asks for": (ASKED, "/data/tool/__main__.py", None),
    "a program nobody asked for": (RULES, "/data/tool/__main__.py", "startup"),
    "a runner's file that the task asks for": (ASKED, "/app/jest.config.js", None),
    "bytecode where hooks are kept": (KEEPING, "/app/__pycache__/a.pyc", "bytecode"),
    "start-up code of a working folder in the system": (Rules("/opt/a"), "/opt/a/sitecustomize.py", "startup"),
    "start-up code where hooks are kept": (KEEPING, "/app/usercustomize.py", "startup"),
    "start-up code of a system that is kept": (KEEPING, "/usr/lib/python3/sitecustomize.py", "startup"),
    "settings of pytest above everything": (RULES, "/setup.cfg", "above"),
    "the same in a folder": (RULES, "/data/setup.cfg", None),
    "cargo's settings": (RULES, "/app/a/.cargo/config", "hook"),
    "another tool's settings of that name": (RULES, "/app/a/.tool/config", None),
    "a git hook": (RULES, "/data/repo/.git/hooks/pre-push", "hook"),
    "a folder of hooks that is not git's": (RULES, "/data/repo/hooks/pre-push", None),
}


@pytest.mark.parametrize(("rules", "path", "reason"), ACTING.values(), ids=ACTING)
def test_a_file_that_acts_is_judged_by_its_name_and_folder(rules, path, reason):
    assert reasons([Change(path, "added", "file")], rules) == ({path: reason} if reason else {})


@pytest.mark.parametrize(
    "target", ["/", "/proc/self/cwd", "/dev/fd", "/sys/kernel", "/logs/agent", "a\0b", "", "../.."]
)
def test_a_link_elsewhere_that_leads_into_what_is_not_data_is_withheld(target):
    assert reasons([Change("/srv/x", "added", "symlink", target=target)]) == {"/srv/x": "link"}


RESOLVED = {
    "b": "/app/x/b",
    "./b//c/": "/app/x/b/c",
    "../b": "/app/b",
    "../../../../b": "/b",
    "..": "/app",
    "/b/./c": "/b/c",
    "/../b": "/b",
    "/": "/",
    "b/..": None,
    "../b/../c": None,
    "a\0b": None,
    "": None,
    None: None,
}


@pytest.mark.parametrize(("target", "place"), RESOLVED.items())
def test_a_link_is_followed_by_its_words(target, place):
    assert resolve("/app/x/link", target) == place


@pytest.mark.parametrize(
    "variable", ["PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "NODE_PATH", "PERL5LIB"]
)
def test_every_variable_that_names_programs_or_libraries_counts(variable):
    assert lookup_folders({variable: "/data/X/:relative::/data/X"}, "/app") == ("/data/X",)


@pytest.mark.parametrize("name", [".venv", "venv", "env", ".env", "virtualenv"])
def test_a_virtual_environment_counts_as_a_whole(name):
    assert lookup_folders({"PATH": f"/app/{name}/bin"}, "/app") == (f"/app/{name}",)
    assert lookup_folders({"PATH": f"/app/{name}/sbin:/app/my{name}/bin"}, "/app") == (
        f"/app/{name}/sbin",
        f"/app/my{name}/bin",
    )


def test_folders_of_modules_are_told_apart_by_the_working_folder():
    env = {"PYTHONPATH": "/app/src:/data/lib:/app:/app/src", "PATH": "/app:/:/data/lib"}
    assert lookup_folders(env, "/app") == ("/data/lib",)
    assert lookup_folders({}, "/app") == ()


names = st.sampled_from(["a", "b", "..", ".", ""])


@given(st.lists(names, max_size=6).map("/".join), st.booleans())
def test_a_resolved_link_is_where_the_kernel_would_go_without_other_links(target, absolute):
    target = ("/" if absolute else "") + target
    found = resolve("/app/x/link", target)
    if found is not None:
        assert found == posixpath.normpath(posixpath.join("/app/x", target)).replace("//", "/")


@given(st.text(max_size=5), st.text(max_size=5))
def test_below_is_about_whole_names(folder, rest):
    assert below(f"/{folder}/{rest}", f"/{folder}") is True
    assert below(f"/X/{rest}", "/X/")
    assert not below("/data/b", "/dataX")
    assert below(f"/x{folder}", "/x") is (folder == "" or folder.startswith("/"))


paths = st.lists(
    st.sampled_from(
        [
            "app",
            "usr",
            "tmp",
            "logs",
            "verifier",
            "home",
            "agent",
            "etc",
            "conftest.py",
            "sitecustomize.py",
            "src",
            "a",
            ".bashrc",
            "x.pth",
            "site-packages",
        ]
    )
    | st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
).map(lambda names: "/" + "/".join(names))
changes = st.lists(
    st.builds(
        Change,
        paths,
        st.sampled_from(["added", "changed", "deleted"]),
        st.sampled_from(["file", "directory", "symlink", "special"]),
        target=st.none() | paths,
    ),
    max_size=12,
)


@given(changes, st.booleans(), st.booleans())
def test_whatever_is_changed_each_change_survives_or_lies_below_one_withheld_path(found, keep_system, keep_hooks):
    rules = Rules(workdir="/app", keep_system=keep_system, keep_hooks=keep_hooks)
    withheld = [item.path for item in withhold(found, rules)]
    assert set(withheld) <= {change.path for change in found}
    for number, path in enumerate(withheld):
        assert not below(path, *withheld[:number]), "only the outermost is named"
    for change in found:
        if change.type == "special" or below(
            change.path, "/verifier", "/tests", "/logs/verifier", "/oracle", "/solution"
        ):
            assert below(change.path, *withheld)
        if change.path.endswith("/sitecustomize.py"):
            assert below(change.path, *withheld)


@given(changes)
def test_more_opt_outs_never_withhold_more(found):
    strict = {item.path for item in withhold(found, Rules(workdir="/app"))}
    lax = {item.path for item in withhold(found, Rules(workdir="/app", keep_system=True, keep_hooks=True))}
    assert all(below(path, *strict) for path in lax)


KEPT_SYSTEM = Rules(
    "/app",
    keep_system=True,
    programs=frozenset({"cmp", "libz.so.1", "tmux", "nginx", "ssh"}),
    built=("/app/.venv",),
    expected=frozenset({"Nginx", "SSH", ".vimrc"}),
)
SYSTEM_CHANGES = {
    "a program as built": ("/usr/bin/cmp", "changed", "path"),
    "a deleted program": ("/usr/bin/cmp", "deleted", "path"),
    "a program before it": ("/usr/local/bin/cmp", "added", "path"),
    "a library before it": ("/usr/local/lib/libz.so.1", "added", "path"),
    "a new program": ("/usr/local/bin/mine", "added", None),
    "a new module": ("/usr/lib/python3/dist-packages/mine.py", "added", None),
    "a file of a module as built": ("/usr/lib/python3/dist-packages/yaml/mine.py", "added", "path"),
    "a module of the standard library": ("/usr/lib/python3.11/mine.py", "added", "path"),
    "a line for the start of Python": ("/usr/lib/python3/dist-packages/x.pth", "added", "startup"),
    "the same for one user": ("/root/.local/lib/python3.11/site-packages/x.pth", "added", "startup"),
    "a home for the interpreter": ("/usr/bin/pyvenv.cfg", "added", "startup"),
    "a module in a virtual environment as built": ("/app/.venv/lib/python3.11/site-packages/mine.py", "added", None),
    "a library to preload": ("/etc/ld.so.preload", "added", "startup"),
    "where libraries are": ("/etc/ld.so.conf.d/mine.conf", "added", "startup"),
    "a shell's start": ("/etc/profile.d/mine.sh", "added", "startup"),
    "the same for one user, in another case": ("/root/.BashRC", "added", "startup"),
    "settings of pip": ("/root/.config/pip/pip.conf", "added", "startup"),
    "functions of jq": ("/root/.jq", "added", "startup"),
    "settings of pip for all": ("/etc/pip.conf", "added", "startup"),
    "settings of PHP": ("/etc/php/8.2/cli/conf.d/mine.ini", "added", "startup"),
    "a setting of a program as built": ("/etc/tmux.conf", "added", "startup"),
    "a folder of such settings": ("/etc/tmux.conf.d/mine", "added", "startup"),
    "a setting of a program of the agent": ("/etc/mine.conf", "added", None),
    "a setting in a home that nobody has heard of": ("/root/.minerc", "added", "startup"),
    "the same where programs of today look": ("/home/agent/.config/mine/settings", "added", "startup"),
    "a setting that the task speaks of": ("/root/.vimrc", "added", None),
    "a unit of the machine": ("/etc/systemd/system/mine.service", "added", None),
    "a file of a package of Go as built": ("/usr/share/go-1.19/src/fmt/mine.go", "added", "path"),
    "a file of a gem as built": ("/var/lib/gems/3.1.0/gems/rspec-3.0/lib/mine.rb", "added", "path"),
    "a changed gem": ("/var/lib/gems/3.1.0/gems/rspec-3.0/lib/rspec.rb", "changed", "path"),
    "a new gem": ("/var/lib/gems/3.1.0/specifications/mine.gemspec", "added", None),
    "a file of RubyGems": ("/usr/lib/ruby/vendor_ruby/rubygems/defaults/ruby.rb", "added", "path"),
    "a file of a package of Node as built": ("/usr/lib/node_modules/npm/mine.js", "added", "path"),
    "a package of R as built": ("/usr/lib/R/library/stats/R/mine", "added", "path"),
    "a library of Rust": ("/usr/lib/rustlib/x/lib/libmine.rlib", "added", "path"),
    "a jar that Java loads": ("/usr/lib/jvm/java-8/jre/lib/ext/mine.jar", "added", "path"),
    "a program in /opt as built": ("/opt/jdk/lib/modules", "changed", "path"),
    "a setting of software in /opt": ("/opt/tomcat/conf/server.xml", "changed", None),
    "settings of a service": ("/etc/nginx/nginx.conf", "changed", None),
    "accounts": ("/etc/passwd", "changed", None),
    "data": ("/var/lib/postgresql/data/x", "changed", None),
    "keys of a user": ("/root/.ssh/authorized_keys", "added", None),
    "bytecode": ("/usr/lib/python3/dist-packages/__pycache__/yaml.pyc", "added", "bytecode"),
}


@pytest.mark.parametrize(("path", "kind", "reason"), SYSTEM_CHANGES.values(), ids=SYSTEM_CHANGES)
def test_of_a_system_that_is_kept_what_was_built_and_what_is_read_at_start_stays(path, kind, reason):
    assert reasons([Change(path, kind, "file")], KEPT_SYSTEM) == ({path: reason} if reason else {})


def test_packages_that_the_agent_added_to_other_languages_are_whole():
    folders = ("/usr/lib/node_modules/mine", "/usr/local/lib/R/site-library/mine", "/usr/local/go", "/opt/mine")
    inside = (("", "directory"), ("/src", "directory"), ("/src/x.go", "file"))
    changes = [Change(path + rest, "added", kind) for path in folders for rest, kind in inside]
    assert reasons(changes, KEPT_SYSTEM) == {}


@pytest.mark.parametrize("path", ["/root", "/home/agent", "/etc/ssh", "/var/run/nscd", "/root/.config", "/etc"])
def test_no_link_stands_where_settings_are_read(path):
    assert reasons([Change(path, "changed", "symlink", target="/app/mine")], KEPT_SYSTEM) == {path: "startup"}


def test_a_package_and_a_virtual_environment_that_the_agent_added_are_whole():
    root = "/usr/lib/python3/dist-packages/mine"
    made = [Change(root, "added", "directory"), Change(f"{root}/a.py", "added", "file")]
    venv = [Change("/usr/local/venv", "added", "directory"), Change("/usr/local/venv/pyvenv.cfg", "added", "file")]
    assert reasons([*made, *venv], KEPT_SYSTEM) == {}


def test_a_link_in_place_of_the_hooks_of_a_repository_is_withheld():
    link = Change("/app/.git/hooks", "changed", "symlink", target="/app/mine")
    assert reasons([link]) == {"/app/.git/hooks": "hook"}


def test_a_name_like_an_option_that_the_task_speaks_of_survives():
    rules = Rules("/app", expected=frozenset({"-notes-"}))
    assert reasons([Change("/app/-notes-", "added", "file")], rules) == {}


@pytest.mark.parametrize("path", ["/app/encodings.py", "/app/x/encodings/__init__.py", "/app/Encodings.so"])
def test_what_python_imports_before_its_hook_does_not_survive(path):
    rules = Rules("/app", early=frozenset({"encodings"}))
    assert [item.reason for item in withhold([Change(path, "added", "file")], rules)] == ["startup"]
    assert withhold([Change(path, "added", "file")], Rules("/app")) == []


def test_a_folder_of_that_name_with_other_files_survives():
    changes = [Change("/app/encodings", "added", "directory"), Change("/app/encodings/faces.npy", "added", "file")]
    assert withhold(changes, Rules("/app", early=frozenset({"encodings"}))) == []


def test_a_cache_of_cmake_survives_only_in_the_work_or_where_the_task_mentions_it():
    planted = Change("/tmp/build/CMakeCache.txt", "added", "file")
    assert reasons([planted]) == {"/tmp/build/CMakeCache.txt": "startup"}
    assert reasons([Change("/app/build/CMakeCache.txt", "added", "file")]) == {}
    assert reasons([planted], Rules("/app", expected=frozenset({"CMakeCache.txt"}))) == {}


def test_start_up_lines_of_the_system_are_withheld_whoever_made_their_folder():
    rules = Rules("/app", keep_system=True)
    folders = [
        Change(path, "added", "directory") for path in ("/usr/local", "/usr/local/lib", SITE.rpartition("/")[0], SITE)
    ]
    assert reasons([*folders, Change(f"{SITE}/zz.pth", "added", "file")], rules) == {f"{SITE}/zz.pth": "startup"}
    assert reasons([*folders, Change(f"{SITE}/flask.py", "added", "file")], rules) == {}
