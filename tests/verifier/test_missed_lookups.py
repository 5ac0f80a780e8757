"""What a verifier's programs look for in vain is known by watching them, and the agent cannot provide it."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.protocol import Change
from benchflow.verifier.surviving.missed_lookups import (
    Lookups,
    MissedPaths,
    Named,
    may_be_looked_for,
    missed_folders,
    missed_paths,
    read_lookups,
)
from benchflow.verifier.watched import learned_lookups, watch

PROGRAM = Path(watch.__file__).parents[1] / f"kit/missed/missed-{platform.machine()}"


def spelled(path):
    """As it is recorded: with the part that does not exist told apart."""
    folder, _, name = path.rpartition("/")
    return f"{folder}//{name}"


def judged(missed, *, found=(), text="", verifier="", given=(), asked=()):
    spellings = (frozenset(map(spelled, paths)) for paths in (missed, asked))
    lookups = Lookups(*spellings, frozenset(found), given=frozenset(given))
    return missed_paths(lookups, Named.in_texts(text, [verifier]), "/app").paths


def test_what_nobody_names_stays_missing():
    paths = {"/etc/zz-rules", "/usr/lib/zz/start.sh", "/root/.zzrc", "/opt/zz/lib/x", "/pyproject.toml"}
    assert judged(paths, text="Compare the two files ... -- and more.") == paths


@pytest.mark.parametrize("path", ["/app/x", "/tmp/x", "/var/www/x", "/srv/x", "/data/x", "/run/x.sock", "/proc/1/x"])
def test_data_is_not_looked_for_by_programs_of_their_own(path):
    assert judged({path}) == frozenset()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/usr/bin/nginx", "nginx -t"),
        ("/etc/app/rules.d", "cat /etc/app/rules.d"),
        ("/etc/app/rules.d/first.conf", "ls /etc/app/rules.d/"),
        ("/opt/venv/bin/python3", "VENV=/opt/venv"),
        ("/usr/lib/ruby/vendor_ruby/sinatra.rb", 'require "sinatra"'),
        ("/usr/local/share/perl/5.36.0/Flask.pm", "use Flask;"),
        ("/usr/lib/x86_64-linux-gnu/libfoo.so", "gcc main.c -lfoo"),
        ("/root/.toolrc", "Configure the tool in ~/.toolrc."),
    ],
)
def test_what_task_or_verifier_name_may_be_the_work(path, text):
    assert judged({path}) == {path}
    assert judged({path}, text=text) == frozenset()
    assert judged({path}, verifier=text) == frozenset()


def test_a_task_may_speak_of_a_library_or_program_that_it_is_about():
    assert judged({"/usr/lib/libfastsum.so"}, text="Build the library fastsum.") == frozenset()
    assert judged({"/etc/tmux.conf"}, found={"/usr/bin/tmux"}, text="Configure tmux for all users.") == frozenset()


def test_a_word_of_the_verifier_is_no_name_of_a_library_and_no_setting_of_its_programs():
    numa = "/usr/lib/x86_64-linux-gnu/libnuma.so"
    assert judged({numa}, verifier="# On machines with NUMA ps is slow.") == {numa}
    assert judged({"/etc/tmux.conf"}, found={"/usr/bin/tmux"}, verifier="tmux ls") == {"/etc/tmux.conf"}


def test_what_a_script_of_the_verifier_computes_may_be_the_work():
    shards = {"/opt/shards/shard_1.csv", "/root/out-2"}
    assert judged(shards) == shards
    assert judged(shards, asked=shards) == frozenset()


@pytest.mark.parametrize("path", ["/etc/localtime", "/etc/timezone", "/etc/ssl/certs/abc.0", "/usr/lib/locale/de_DE/x"])
def test_facts_about_the_machine_may_be_the_work(path):
    assert judged({path}) == frozenset()


@pytest.mark.parametrize(
    ("path", "found", "text"),
    [
        ("/usr/local/bin/python3", "/usr/bin/python3", "python3 check.py"),
        ("/usr/bin/python3.11._pth", "/usr/bin/python3", "python3 check.py"),
        ("/usr/lib/ruby/vendor_ruby/json.rb", "/usr/lib/ruby/3.1.0/json.rb", 'require "json"'),
    ],
)
def test_a_name_that_the_environment_has_elsewhere_is_never_the_work(path, found, text):
    assert judged({path}, found={found}, text=text) == {path}
    assert judged({path}, found={f"/app{found}"}, text=text) == frozenset(), "a folder of that name is no program"


def test_what_the_solution_of_the_package_adds_may_be_the_work():
    assert judged({"/etc/zone", "/etc/zz"}, given={"/etc/zone"}) == {"/etc/zz"}


def test_links_and_files_on_the_way_are_withheld_and_folders_are_not():
    missed = missed_paths(Lookups(frozenset({"/usr/share//zz/start"})), Named(), "/app")
    assert missed.answers(Change("/usr/share/zz", "added", "symlink", target="/opt/zz"))
    assert missed.answers(Change("/usr/share/zz", "changed", "file"))
    assert missed.answers(Change("/usr/share/zz/start", "added", "file"))
    assert not missed.answers(Change("/usr/share/zz", "added", "directory"))
    assert not missed.answers(Change("/usr/share/zz/other", "added", "file"))
    assert not missed.answers(Change("/usr/share/zz/start", "deleted", "file"))
    assert not MissedPaths().answers(Change("/etc/x", "added", "file"))


def listed(*folders, text=""):
    named = Named.in_texts(text)
    return missed_paths(Lookups(listed=frozenset(folders)), named, "/app")


def test_no_file_is_added_to_a_folder_of_software_that_a_program_lists():
    missed = listed("/usr/lib/x86_64-linux-gnu/sasl2", "/opt/tool/plugins")
    assert missed.answers(Change("/usr/lib/x86_64-linux-gnu/sasl2/libzz.so", "added", "file"))
    assert missed.answers(Change("/opt/tool/plugins/zz", "added", "symlink", target="/opt/zz"))
    assert not missed.answers(Change("/opt/tool/plugins/zz", "added", "directory"))
    assert not missed.answers(Change("/opt/tool/plugins/zz/inner", "added", "file"))


@pytest.mark.parametrize(
    "folder",
    [
        "/usr/bin",
        "/usr/lib/python3/dist-packages",
        "/usr/local/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/ruby/gems/3.1.0/specifications",
        "/etc/cron.d",
        "/srv/pages",
        "/app/lib",
    ],
)
def test_where_software_and_settings_are_added_a_list_says_nothing(folder):
    assert not listed(folder).answers(Change(f"{folder}/zz", "added", "file"))


def test_a_search_through_a_tree_is_not_a_look_up():
    tree = ("/usr", "/usr/share", "/usr/share/app", "/usr/share/app/parts")
    assert not listed(*tree).answers(Change("/usr/share/app/zz", "added", "file"))
    assert listed(tree[-1]).answers(Change("/usr/share/app/parts/zz", "added", "file"))


def test_a_list_of_what_is_named_is_not_a_look_up():
    change = Change("/usr/share/app/zz.conf", "added", "file")
    assert listed("/usr/share/app").answers(change)
    assert not listed("/usr/share/app", text="ls /usr/share/app/").answers(change)
    assert not listed("/usr/share/app", text="Write zz.conf there.").answers(change)


def test_no_file_of_the_working_folder_is_withheld_because_a_program_lists_the_folder():
    lookups = Lookups(listed=frozenset({"/opt/app/plugins", "/opt/zz/plugins"}))
    missed = missed_paths(lookups, Named(), "/opt/app")
    assert not missed.answers(Change("/opt/app/plugins/mine", "added", "file"))
    assert missed.answers(Change("/opt/zz/plugins/mine", "added", "file"))


def settings(*paths, task="", verifier="", solution="", **more):
    named = Named.in_texts(task, [verifier], [solution])
    lookups = Lookups(settings=frozenset(paths), found=frozenset({"/usr/bin/hg", "/usr/sbin/apache2"}), **more)
    return missed_paths(lookups, named, "/app")


@pytest.mark.parametrize("path", ["/etc/mercurial/hgrc", "/opt/judge/conf/rules.conf", "/etc/x/../mercurial/hgrc"])
def test_settings_that_programs_find_by_themselves_are_as_built(path):
    plain = os.path.normpath(path)
    missed = settings(path, task="Write the code.", verifier="hg status")
    assert missed.answers(Change(plain, "changed", "file"))
    assert missed.answers(Change(plain, "changed", "symlink", target="/srv/x"))
    assert missed.answers(Change(plain, "deleted", "file"))
    assert missed.answers(Change(plain.rpartition("/")[0], "changed", "symlink", target="/srv"))
    assert missed.answers(Change(plain.rpartition("/")[0], "deleted", "directory"))
    assert not missed.answers(Change(plain.rpartition("/")[0], "changed", "directory"))
    assert not missed.answers(Change(plain + ".d", "added", "file"))
    assert not missed.answers(Change("/etc", "changed", "directory"))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/etc/mercurial/hgrc", {"task": "Configure Mercurial."}),
        ("/etc/mercurial/hgrc", {"task": "Edit /etc/mercurial/hgrc."}),
        ("/etc/mercurial/hgrc", {"verifier": "cat /etc/mercurial/*"}),
        ("/etc/mercurial/hgrc", {"solution": "cd /etc/mercurial; sed -i s/a/b/ hgrc"}),
        ("/etc/acme/settings.ini", {"solution": "for f in acme; do echo > /etc/$f/settings.ini; done"}),
        ("/etc/acme/settings.ini", {"verifier": "Path('/etc', 'acme') / name"}),
        ("/etc/acme/settings.ini", {"given": frozenset({"/etc/acme/settings.ini"})}),
        ("/etc/apache2/ports.conf", {"task": "Let Apache listen on port 8080.", "verifier": "apache2ctl start"}),
        ("/etc/postgresql/15/main/pg_hba.conf", {"task": "Let Postgres accept passwords."}),
        ("/etc/postgresql/15/main/pg_hba.conf", {"verifier": "service postgresql start"}),
        ("/opt/shop/config.py", {"verifier": "python3 /opt/shop/server.py"}),
    ],
)
def test_settings_that_task_solution_or_verifier_name_are_the_work(path, words):
    assert settings(path).answers(Change(path, "changed", "file"))
    assert not settings(path, **words).answers(Change(path, "changed", "file"))
    assert not settings(path, **words).leaves([Change(path, "changed", "file")])


def test_a_program_that_the_verifier_runs_is_not_a_name_of_its_settings():
    path = "/etc/apache2/ports.conf"
    assert settings(path, verifier="apache2 -t").answers(Change(path, "changed", "file"))


@pytest.mark.parametrize(
    "path",
    ["/etc/hosts", "/etc/passwd", "/etc/shadow-", "/etc/fstab", "/etc/security/limits.conf", "/etc/init.d/shop",
     "/etc/sysctl.conf", "/etc/cron.d/shop", "/etc/ssl/certs/ca-certificates.crt", "/etc/systemd/system/x.service"],
)  # fmt: skip
def test_accounts_and_settings_of_the_machine_may_be_the_work(path):
    assert not settings(path).answers(Change(path, "changed", "file"))


def test_what_a_search_finds_is_not_what_programs_look_for():
    path = "/etc/acme/settings.ini"
    change = Change(path, "changed", "file")
    assert not settings(path, listed=frozenset({"/etc", "/etc/acme"})).answers(change)
    assert settings(path, listed=frozenset({"/etc/acme"})).answers(change)


def test_what_a_changed_setting_means_is_seen_with_the_work_once_more():
    change = Change("/etc/acme/settings.ini", "changed", "file")
    assert settings("/etc/other/settings.ini").leaves([change])
    assert not settings(change.path).leaves([change])


def runs(*executed, looked_for, task="", verifier="", given=()):
    asked = frozenset(map(spelled, looked_for))
    named = Named.in_texts(task, [verifier])
    return missed_paths(Lookups(asked=asked, executed=frozenset(executed), given=frozenset(given)), named, "/app").paths


@pytest.mark.parametrize(
    "other", ["/usr/bin/curl", "/root/.local/bin/curl", "/opt/curl/bin/curl", "/verifier/bin/curl"]
)
def test_no_program_of_the_agent_stands_before_one_that_the_verifier_runs(other):
    path = "/usr/local/bin/curl"
    assert runs(other, looked_for={path}, verifier="curl -s localhost") == {path}
    assert runs(looked_for={path}, verifier="curl -s localhost") == frozenset(), "nothing of that name ran"
    assert runs(other, looked_for={other}, verifier="curl -s localhost") == frozenset(), "it is the same one"
    assert runs(other, looked_for={path}, verifier="/usr/local/bin/curl -s localhost") == frozenset()
    assert runs(other, looked_for={path}, given={path}) == frozenset()


def test_a_program_of_the_verifier_may_be_compared_with_one_that_the_task_is_about():
    path, task = "/usr/local/bin/sorter", "Install a program `sorter`."
    assert runs("/verifier/bin/sorter", "/app/sorter", looked_for={path}, task=task) == frozenset()
    assert runs("/usr/bin/sorter", looked_for={path}, task=task) == {path}


def test_what_is_no_program_may_have_the_name_of_one():
    assert runs("/usr/sbin/shop", looked_for={"/etc/default/shop", "/usr/share/doc/shop"}) == frozenset()
    assert runs("/tools/shop", looked_for={"/usr/lib/tools/shop"}) == frozenset()
    assert runs("/usr/bin/shop", "/usr/lib/tools/x", looked_for={"/usr/lib/tools/shop"}) == {"/usr/lib/tools/shop"}


def test_programs_of_the_work_and_of_a_solution_say_nothing_of_the_environment():
    seen = Lookups(
        found=frozenset({"/usr/bin/x"}),
        executed=frozenset({"/opt/mine/bin/x", "/srv/x", "/usr/bin/x", "/root/.local/bin/x"}),
        settings=frozenset({"/etc/x"}),
    )
    assert seen.of_the_work == Lookups(executed=frozenset({"/usr/bin/x", "/root/.local/bin/x"}), settings=seen.settings)
    assert seen.of_a_solution == Lookups()


def test_a_library_that_the_loader_misses_is_missing_wherever_its_cache_could_find_it():
    missed = missed_paths(
        Lookups(frozenset({"/usr/lib/x86_64-linux-gnu//libzz.so.1", "/usr/lib/r//libyy.so"})), Named(), "/app"
    )
    assert missed.answers(Change("/usr/local/lib/libzz.so.1", "added", "symlink", target="libother.so"))
    assert not missed.answers(Change("/usr/local/lib/libother.so", "added", "file"))
    assert not missed.answers(Change("/usr/local/lib/libyy.so", "added", "file"))
    assert not missed.answers(Change("/srv/libzz.so.1", "added", "file"))


PARTS = st.sampled_from(["app", "etc", "gems", "home", "lib", "lib64", "opt", "root", "srv", "usr", "var", "x", "zz"])
PATHS = st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))


@given(
    looked_for=st.frozensets(PATHS, max_size=8),
    listed=st.frozensets(PATHS, max_size=4),
    settings=st.frozensets(PATHS, max_size=4),
    path=PATHS,
    workdir=st.one_of(PATHS, st.just("/")),
    kind=st.sampled_from(["added", "changed", "deleted"]),
    type_=st.sampled_from(["file", "symlink", "directory"]),
)
def test_a_change_that_look_ups_could_answer_is_never_taken_for_one_that_they_could_not(
    looked_for, listed, settings, path, workdir, kind, type_
):
    missed = missed_paths(
        Lookups(frozenset(map(spelled, looked_for)), listed=listed, settings=settings), Named(), workdir
    )
    change = Change(path, kind, type_)
    assert may_be_looked_for(change, workdir) or not missed.answers(change)


def test_only_what_may_be_a_folder_is_made_to_look_into_it():
    paths = {"/usr/share/zz", "/usr/lib/x.so", "/usr/bin/nginx", "/etc/zz", "/usr/lib/python3.11/x", "/app/lib"}
    assert missed_folders(Lookups(frozenset(map(spelled, paths))), "/app") == ["/usr/lib/python3.11/x", "/usr/share/zz"]


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(*[st.frozensets(NAMES)] * 6)
def test_records_are_read_as_they_were_written(missed, asked, found, listed, executed, settings):
    parts = {"-": missed, "~": asked, "+": found, "=": listed, "@": executed, "<": settings}
    data = b"".join(f"{kind}{text}\0".encode() for kind, part in parts.items() for text in part)
    assert read_lookups(data) == (Lookups(missed, asked, found, listed, executed, settings), bool(found))


@pytest.mark.parametrize("record", [b"?\0", b"!\0", b"\0"])
def test_records_that_are_not_all_say_so(record):
    data = b"+/bin/sh\0-/etc/x\0"
    lookups = Lookups(frozenset({"/etc/x"}), found=frozenset({"/bin/sh"}))
    assert read_lookups(data) == (lookups, True)
    assert read_lookups(data + record) == (lookups, False)


def recorded(folder: Path, *words: str) -> tuple[Lookups, int]:
    """What a command looks for, and how it ends; `work` is the agent's folder."""
    lookups, whole, code = followed(folder, *words)
    assert whole
    return lookups, code


def followed(folder: Path, *words: str) -> tuple[Lookups, bool, int]:
    """The same, and whether that is all."""
    records = folder / "records"
    records.write_bytes(b"")
    words = (str(PROGRAM), str(records), f"{folder}/work", *words)
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False, timeout=60)
    return *read_lookups(records.read_bytes()), done.returncode


def watched(folder: Path, command: str) -> tuple[set[str], set[str], int]:
    """What a command looks for in vain, whoever names it, and finds."""
    lookups, code = recorded(folder, "/bin/sh", "-c", command)
    missed = {path.replace("//", "/") for path in lookups.missed | lookups.asked}
    return missed, {path.rpartition("/")[2] for path in lookups.found}, code


def own(folder: Path, paths: frozenset[str]) -> set[str]:
    """The names of what was looked for in a folder."""
    return {path.rpartition("/")[2] for path in paths if path.startswith(str(folder))}


@pytest.mark.slow
def test_settings_that_a_program_was_not_given_are_recorded(tmp_path):
    link, work = tmp_path / "link", tmp_path / "work"
    link.symlink_to("/etc/fstab")
    work.mkdir()
    (work / "own.py").write_text("open('/etc/host.conf')\n")
    by_itself = f"open('/etc/hos' + 'tname'); open('{tmp_path}/li' + 'nk'); open('/usr/share/common-licenses/GPL-3')"
    lookups, _ = recorded(tmp_path, "/usr/bin/python3", "-c", by_itself)
    assert {"/etc/hostname", "/etc/fstab"} <= lookups.settings
    assert all(path.startswith(("/etc/", "/opt/")) for path in lookups.settings)
    given, _ = recorded(tmp_path, "/bin/cat", "/etc/hostname", str(link))
    assert not {"/etc/hostname", "/etc/fstab"} & given.settings
    lookups, _ = recorded(tmp_path, "/usr/bin/python3", f"{work}/own.py")
    assert "/etc/host.conf" not in lookups.settings


@pytest.mark.slow
def test_a_path_among_the_arguments_is_asked_for(tmp_path):
    script = f"import os; [os.path.exists('{tmp_path}/' + name) for name in ('by-itself', 'by-name')]"
    lookups, _ = recorded(tmp_path, "/usr/bin/python3", "-c", script.replace("by-itself", "by-' 'itself"))
    assert own(tmp_path, lookups.missed) == {"by-itself"}
    assert own(tmp_path, lookups.asked) == {"by-name"}


@pytest.mark.slow
def test_what_the_work_looks_for_is_asked_for(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/run.py").write_text(f"import os\nos.path.exists('{tmp_path}/x')\n")
    (tmp_path / "check.py").write_text(f"import os\nos.path.exists('{tmp_path}/y')\n")
    lookups, _ = recorded(tmp_path, "/bin/sh", "-c", "cd work; python3 -B run.py; python3 -B ../check.py run.py")
    assert own(tmp_path, lookups.asked) >= {"x"}
    assert own(tmp_path, lookups.missed) & {"x", "y"} == {"y"}


CALLS = re.compile(r"(open|openat|stat|lstat|access|readlink|execve|newfstatat|readlinkat|faccessat2?|statx|openat2)\(")
PROGRAMS = [
    "python3 -c 'import json, ssl'",
    "perl -MTest::More -e 1",
    "ruby -rjson -e 1",
    "node -e 1",
    "git init -q; git status",
    "printf '#include <iostream>\\nint main() {}\\n' > x.cc; g++ x.cc -o x",
    "bash -lc 'ps; ls -la; date; id'",
]


@pytest.mark.slow
@pytest.mark.parametrize("command", PROGRAMS)
def test_strace_sees_no_path_that_was_not_recorded(tmp_path, command):
    log = tmp_path / "log"
    words = ["strace", "-f", "-qq", "-o", log, "-e", "trace=%file", "-s", "4096", "/bin/sh", "-c", command]
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True, timeout=60)
    unfinished, seen = {}, set()
    for line in log.read_text(errors="replace").splitlines():
        task, _, text = line.partition(" ")
        if "<unfinished" in text:
            unfinished[task] = text
            continue
        text = unfinished.pop(task, "") + text if "resumed>" in text else text
        path = re.search(r'"(/[^"]*)"', text)
        if CALLS.match(text.lstrip()) and re.search(r"= -1 (ENOENT|ENOTDIR)", text) and path:
            seen.add(os.path.realpath(path[1]))
    missed, _, _ = watched(tmp_path, command)
    passing = re.compile(r"/proc/|/tmp/|.*/__pycache__/")
    assert {path for path in seen - missed if not passing.match(path)} == set()
    assert len(seen) > 3


@pytest.mark.slow
def test_paths_are_resolved_as_far_as_they_exist(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("real/nothing")
    (tmp_path / "file").touch()
    tries = ["link/a", "real/../link/./b", "dangling", "no/../c", "file/d", f"{tmp_path}//link//e", "no/f"]
    command = "; ".join(f"[ -e {shlex.quote(name)} ]" for name in tries)
    missed, found, _ = watched(tmp_path, f"{command}; [ -e real ]")
    own = {path.removeprefix(f"{tmp_path}/") for path in missed if path.startswith(str(tmp_path))}
    assert own - {"work"} == {"real/a", "real/b", "real/nothing", "no", "c", "file/d", "real/e", "no/f"}
    assert {"real", "sh"} <= found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("sh -c 'kill -TERM $$'; exit 3", 3),
        ("sleep 60 & exit 0", 0),
        ("bash -c 'set -m; sh -c \"kill -STOP \\$\\$\" & sleep 0.2; kill -CONT %1; wait %1; exit 4'", 4),
        ('python3 -c \'import os; os.execv("/bin/sh", ["sh", "-c", "exit 5"])\'', 5),
    ],
)
def test_a_watched_command_ends_as_it_would_alone(tmp_path, command, code):
    assert watched(tmp_path, command)[2] == code


@pytest.mark.slow
def test_threads_and_processes_of_all_kinds_are_watched(tmp_path):
    script = (
        "import os, subprocess, threading\n"
        "for i in range(40): threading.Thread(target=os.path.exists, args=(f'/etc/zz-thread-{i}',)).start()\n"
        "subprocess.run(['/bin/sh', '-c', '[ -e /etc/zz-process ]'])\n"
        "os.fork() or os.path.exists('/etc/zz-fork')\n"
    )
    missed, _, _ = watched(tmp_path, f"python3 -c {shlex.quote(script)}")
    wanted = {f"/etc/zz-thread-{number}" for number in range(40)} | {"/etc/zz-process", "/etc/zz-fork"}
    assert wanted <= missed


OLD_CALL = """\
static char path[] = "/etc/zz-old";
int main(void) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(33), "b"((unsigned long)path), "c"(0) : "memory");
    return result != -2;
}
"""
"""Asks for a path as programs for 32 bits do."""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["strace -o /dev/null true", "./old"])
def test_a_program_that_cannot_be_followed_is_never_passed_over(tmp_path, command):
    (tmp_path / "old.c").write_text(OLD_CALL)
    subprocess.run(["gcc", "-no-pie", "-o", "old", "old.c"], cwd=tmp_path, check=True)
    _, whole, _ = followed(tmp_path, "/bin/sh", "-c", command)
    assert not whole


PROGRAM_OF_THE_ENVIRONMENT = """\
FROM debian:12
WORKDIR /app
RUN printf '#!/bin/sh\\n[ ! -e /etc/zone ] || cat /etc/zone\\n' > /usr/bin/zone && chmod 755 /usr/bin/zone
"""
ZONE = 'if [ "$(zone)" = north ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'


@pytest.fixture
def zoned(package, monkeypatch, tmp_path):
    """A package whose verifier runs a program of the environment that reads a setting, with a cache of its own."""
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(learned_lookups, "KNOWN", learned_lookups.KnownLookups())
    files = {"environment/Dockerfile": PROGRAM_OF_THE_ENVIRONMENT, "verifier/test.sh": f"#!/bin/sh\n{ZONE}"}

    def make(prompt="Make it the north."):
        return package("verifier: {isolation: system}\nagent: {user: root}\n", files, prompt=prompt)

    return make


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_a_setting_that_nobody_names_is_withheld_and_recorded(bench, zoned):
    async with bench(zoned(), base_image="host") as it:
        await it.agent("echo north > /etc/zone", user="root")
        found = await it.verify()
        assert found.verdict.reward == 0
        assert [(item.path, item.reason) for item in found.withheld] == [("/etc/zone", "lookup")]


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_a_setting_that_the_task_names_is_seen(bench, zoned):
    async with bench(zoned("Write north to /etc/zone."), base_image="host") as it:
        await it.agent("echo north > /etc/zone", user="root")
        found = await it.verify()
        assert found.verdict.reward == 1, found


OTHER = "echo x > /etc/zz-other"
"""What an agent adds where programs look, and none of these does."""


@pytest.fixture
def watches(monkeypatch):
    """What was watched."""
    found = []
    begin = watch.Watch.begin

    async def counted(self, sandbox):
        found.append(self)
        return await begin(self, sandbox)

    monkeypatch.setattr(watch.Watch, "begin", counted)
    return found


@pytest.mark.anyio
@pytest.mark.sandbox
@pytest.mark.parametrize(
    "command",
    [
        "echo north > /app/zone; mkdir /etc/zone; rm /usr/bin/yes",
        "echo north > /srv/zone; echo north > /tmp/zone",
        "echo north > /root/.bashrc; echo north > /etc/ld.so.preload",
    ],
    ids=["work", "data", "withheld by general rules"],
)
async def test_a_verifier_whose_programs_find_nothing_of_the_agents_is_not_watched(bench, zoned, watches, command):
    async with bench(zoned(), base_image="host") as it:
        await it.agent(command, user="root")
        found = await it.verify()
        assert found.verdict.reward == 0
        assert not watches, found.withheld


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_a_verifier_is_watched_once_for_all_verifications_and_processes(bench, zoned, watches, monkeypatch):
    async with bench(zoned(), base_image="host") as it:
        await it.agent(OTHER, user="root")
        await it.verify()
        first = len(watches)
        assert first > 0
        await it.verify()
        monkeypatch.setattr(learned_lookups, "KNOWN", learned_lookups.KnownLookups())  # as another process would
        await it.agent("echo north > /etc/zone", user="root")
        found = await it.verify()
        assert found.verdict.reward == 0
        assert len(watches) == first


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_programs_that_cannot_be_watched_are_noted(bench, zoned, monkeypatch):
    monkeypatch.setattr(watch, "_program", lambda: None)
    async with bench(zoned(), base_image="host") as it:
        await it.agent(OTHER, user="root")
        found = await it.verify()
        assert [note.code for note in found.diagnostics] == ["lookups-unknown"]
        assert found.verdict.reward == 0


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_a_state_that_scores_and_cannot_be_watched_is_noted_once(bench, zoned, monkeypatch):
    begin, states = watch.Watch.begin, []

    async def refused(self, sandbox):
        words = await begin(self, sandbox)
        states.append(self)
        if len(states) > first:
            self.problems.append("the time limit was reached")
        return words

    async with bench(zoned("Write north to /etc/zone."), base_image="host") as it:
        first = 2
        monkeypatch.setattr(watch.Watch, "begin", refused)
        await it.agent(OTHER, user="root")
        await it.verify()
        first = len(states)
        await it.agent("echo north > /etc/zone", user="root")
        found = await it.verify()
        assert found.verdict.reward == 1
        assert [note.code for note in found.diagnostics] == ["lookups-unknown"]
