"""The program inside containers, run on this machine: no engine is needed to see what it does."""

import fcntl
import os
import platform
import signal
import subprocess
import time
from pathlib import Path

import pytest

from benchflow.errors import UnsupportedError
from benchflow.sandbox.engine.box.anchor import GREETING, GREETING_SIZE, program
from benchflow.sandbox.engine.box.file_records import Record

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "src/benchflow/sandbox/engine/box/anchor"
COMPILER = "12.2.0"


@pytest.fixture(scope="module")
def anchor(tmp_path_factory):
    path = tmp_path_factory.mktemp("anchor") / "anchor"
    path.write_bytes(program(platform.machine()))
    path.chmod(0o755)
    return str(path)


def run(anchor, *args, stdin=b"", env=None):
    done = subprocess.run([anchor, *args], input=stdin, capture_output=True, env=env, check=False, timeout=60)
    assert done.stderr.startswith(GREETING)
    return done.returncode, done.stdout, done.stderr[GREETING_SIZE:]


def test_other_machines_are_refused():
    assert program("arm64") == program("aarch64")
    with pytest.raises(UnsupportedError, match="riscv64"):
        program("riscv64")


def test_a_command_is_run_with_its_exit_code(anchor):
    assert run(anchor, "run", "0", "0", "sh", "-c", "cat; echo e >&2; exit 9", stdin=b"in") == (9, b"in", b"e\n")
    assert run(anchor, "run", "0", "0", "sh", "-c", "kill -9 $$")[0] == 137


def test_commands_are_found_on_the_path_or_reported(anchor, tmp_path):
    (tmp_path / "mine").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "mine").chmod(0o755)
    env = {"PATH": f"/nowhere:{tmp_path}"}
    assert run(anchor, "run", "0", "0", "mine", env=env)[1] == b"mine\n"
    assert run(anchor, "run", "0", "0", "absent", env=env) == (127, b"", b"absent: not found\n")
    assert run(anchor, "run", "0", "0", "/etc/passwd")[0] == 126


def test_a_timeout_kills_daemons_too(anchor, tmp_path):
    script = f"(setsid sh -c 'echo $$ > {tmp_path}/daemon; exec sleep 100' &); sleep 100"
    assert run(anchor, "run", "0", "700000", "sh", "-c", script)[0] == 128 + signal.SIGALRM
    assert not Path(f"/proc/{(tmp_path / 'daemon').read_text().strip()}").exists()


def test_sockets_past_every_network_namespace_are_refused(anchor):
    script = "import socket\nfor f in (1, 2, 10, 40, 17):\n try: socket.socket(f, 1); print(f)\n except OSError: pass"
    assert run(anchor, "run", "0", "0", "python3", "-c", script, env=dict(os.environ))[1].split() == [b"1", b"2", b"10"]


def test_it_holds_until_its_lease_is_free(anchor, tmp_path):
    lease = tmp_path / "lease"
    with lease.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        holding = subprocess.Popen([anchor, "hold", str(lease)])
        time.sleep(1.5)
        assert holding.poll() is None
    assert holding.wait(10) == 0


def test_a_service_ends_the_hold_with_its_own_code(anchor):
    assert subprocess.run([anchor, "hold", "-", "sh", "-c", "exit 7"], check=False, timeout=20).returncode == 7


def test_records_make_files_without_following_links(anchor, tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "planted").symlink_to(tmp_path / "victim")
    data = b"hello"
    uid, gid = os.getuid(), os.getgid()
    stream = b"".join(
        [
            Record("f", f"{tmp_path}/planted/file", len(data), 0o640, uid, gid, 1_000_000_007).header() + data,
            Record("l", f"{tmp_path}/planted/link", 4, 0o777, uid, gid).header() + b"file",
        ]
    )
    assert run(anchor, "unpack", stdin=stream)[0] == 0
    assert not any((tmp_path / "victim").iterdir())
    made = tmp_path / "planted" / "file"
    assert made.read_bytes() == data
    assert made.stat().st_mode & 0o777 == 0o640
    assert made.stat().st_mtime_ns == 1_000_000_007
    assert (tmp_path / "planted" / "link").readlink() == Path("file")


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a/./b"])
def test_records_with_odd_paths_are_refused(anchor, path):
    assert run(anchor, "unpack", stdin=Record("d", path).header())[0] != 0


def test_a_cut_stream_is_refused(anchor, tmp_path):
    header = Record("f", f"{tmp_path}/cut", 100, 0o600, os.getuid(), os.getgid()).header()
    assert run(anchor, "unpack", stdin=header + b"short")[0] != 0


def test_removal_takes_trees_and_not_what_links_point_to(anchor, tmp_path):
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "kept").write_text("x")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    stream = Record("x", f"{tmp_path}/tree").header() + Record("x", f"{tmp_path}/absent").header()
    assert run(anchor, "unpack", stdin=stream)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_file_is_renamed_in_its_folder_and_nowhere_else(anchor, tmp_path):
    (tmp_path / "program").write_text("x")
    (tmp_path / "alias").symlink_to(tmp_path)
    rename = Record("m", f"{tmp_path}/program", 4).header() + b"kept"
    assert run(anchor, "unpack", stdin=rename)[0] == 0
    assert run(anchor, "unpack", stdin=rename)[0] == 2
    for path, name in (("kept", b"../out"), ("alias/kept", b"out"), ("absent/kept", b"out")):
        stream = Record("m", f"{tmp_path}/{path}", len(name)).header() + name
        assert run(anchor, "unpack", stdin=stream)[0] != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alias", "kept"]


def test_only_what_is_roots_is_given_away_and_no_link_is_followed(anchor, tmp_path):
    if os.geteuid() != 0:
        pytest.fail("files can only be given away by root")
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / "deep").mkdir(parents=True)
    outside.write_text("o")
    for name in ("roots", "others", "deep/roots"):
        (tree / name).write_text("x")
    os.chown(tree / "others", 7, 7)
    (tree / "link").symlink_to(outside)
    assert run(anchor, "give", "1234", "1235", str(tree))[0] == 0
    owners = {path.name: (path.lstat().st_uid, path.lstat().st_gid) for path in (tree, *tree.rglob("*"), outside)}
    given = dict.fromkeys(("tree", "roots", "deep", "link"), (1234, 1235))
    assert owners == {**given, "others": (7, 7), "outside": (0, 0)}
    assert run(anchor, "give", "1234", "1235", str(tmp_path / "missing"))[0] != 0


def test_reading_does_not_go_through_links(anchor, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    code, _, words = run(anchor, "pack", f"{tmp_path}/link/file")
    assert code == 40
    assert b"behind a link" in words
    assert run(anchor, "pack", f"{tmp_path}/absent")[0] == 2


def test_a_signal_for_nobody_is_fine(anchor):
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert run(anchor, "kill", "15", str(ended.pid))[0] == 0


def test_a_file_with_its_former_size_and_times_is_touched_all_the_same(anchor, tmp_path):
    for name in ("forged", "same"):
        (tmp_path / name).write_text("as built")
    (tmp_path / "link").symlink_to("same")
    known = (tmp_path / "forged").stat()
    time.sleep(0.02)  # a tick of the clock that stamps files
    (tmp_path / "mark").touch()
    since = (tmp_path / "mark").stat().st_ctime_ns
    (tmp_path / "forged").write_text("AS BUILT")
    os.utime(tmp_path / "forged", ns=(known.st_atime_ns, known.st_mtime_ns))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("mark")
    code, output, _ = run(anchor, "touched", *map(str, divmod(since, 1_000_000_000)), str(tmp_path))
    assert (code, sorted(output.decode().split("\0"))) == (
        0,
        ["", *(f"{tmp_path}/{n}" for n in ("forged", "link", "mark"))],
    )
