"""Attempts to get out of a sandbox or at the machine around it, as its unprivileged user and as its root.

Each attempt is a program that prints ESCAPED when it got somewhere and TRIED at its end, so that one which did not
run at all is noticed too.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.local.local_sandbox import LocalSandbox
from benchflow.sandbox.protocol import Limits, SandboxSpec

pytestmark = pytest.mark.anyio

PRELUDE = """
import ctypes, errno, fcntl, glob, os, signal, socket, stat, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def escaped(what): print("ESCAPED", what)
def ok(result): return result >= 0
SECRET, FOLDER, PID, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
"""

ATTEMPTS = {
    "read a file of the machine": """
for path in (FOLDER + "/secret", "/root/.bashrc", "/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/ssl/private"):
    if os.path.exists(path) and not path.startswith("/root"): escaped(path)
""",
    "find the machine's files through any process": """
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("root", "cwd"):
        try:
            if os.path.exists(f"/proc/{pid}/{name}{FOLDER}"): escaped(f"{pid}/{name}")
        except OSError: pass
""",
    "climb above the root": """
path = "/" + "../" * 40
if os.path.exists(path + FOLDER.lstrip("/")): escaped("..")
try:
    os.mkdir("/tmp/jail"); fd = os.open("/", os.O_RDONLY); os.chroot("/tmp/jail"); os.fchdir(fd)
    for _ in range(100): os.chdir("..")
    if os.path.exists("." + FOLDER): escaped("chroot")
except OSError: pass
""",
    "see processes of the machine": """
names = [open(f"/proc/{p}/cmdline").read() for p in os.listdir("/proc") if p.isdigit() and p != str(os.getpid())]
if len(names) > 3 or any("pytest" in n or FOLDER in n for n in names): escaped(names)
""",
    "signal a process of the machine": """
try:
    os.kill(PID, 0); escaped("kill") if PID > 50 else None
except (ProcessLookupError, PermissionError): pass
""",
    "end the supervisor": """
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGSTOP, signal.SIGHUP):
    try: os.kill(1, number)
    except PermissionError: pass
""",
    "read the environment of other processes": """
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: data = open(f"/proc/{pid}/environ", "rb").read()
    except OSError: continue
    if SECRET.encode() in data or (pid == "1" and data): escaped(pid)
""",
    "use inherited descriptors": """
extra = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
for fd in extra:
    try: target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError: continue
    if "/proc/" not in target: escaped(target)
""",
    "take descriptors of the supervisor": """
for fd in range(3, 40):
    try: escaped(os.readlink(f"/proc/1/fd/{fd}"))
    except OSError: pass
pidfd = libc.syscall(434, 1, 0)
if pidfd >= 0 and libc.syscall(438, pidfd, 3, 0) >= 0: escaped("pidfd_getfd")
""",
    "trace the supervisor": """
if ok(libc.ptrace(16, 1, 0, 0)): escaped("attach")
if ok(libc.ptrace(0x4206, 1, 0, 0)): escaped("seize")
""",
    "read the supervisor's memory": """
for name in ("mem", "maps", "auxv", "stack", "syscall"):
    try: fd = os.open(f"/proc/1/{name}", os.O_RDONLY)
    except OSError: continue
    try:
        if os.read(fd, 16): escaped(name)
    except OSError: pass
buffer = ctypes.create_string_buffer(8)
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
local = iovec(ctypes.addressof(buffer), 8); remote = iovec(0x400000, 8)
if libc.process_vm_readv(1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) > 0: escaped("vm_readv")
""",
    "mount something": """
for source, kind in ((b"tmpfs", b"tmpfs"), (b"proc", b"proc"), (b"/", None), (b"sysfs", b"sysfs")):
    if ok(libc.mount(source, b"/mnt", kind, 0 if kind else 4096, None)): escaped(source)
for number in (428, 430, 433, 442):
    libc.syscall(number, -100, b"/", 1, 0, 0)
    if ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS): escaped(f"call {number}")
""",
    "undo a mount": """
for path in ("/proc", "/proc/sys", "/dev", "/etc/hosts", "/usr", "/"):
    if ok(libc.umount2(path.encode(), 2)): escaped(path)
    if ok(libc.mount(None, path.encode(), None, 32 | 4096, None)): escaped("remount " + path)
""",
    "make new namespaces": """
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x4000000, 0x8000000, 0x2000000, 0x80):
    if ok(libc.unshare(flag)): escaped(hex(flag))
if ok(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)): escaped("clone")
libc.syscall(435, ctypes.create_string_buffer(88), 88)
if ctypes.get_errno() != errno.ENOSYS: escaped("clone3")
""",
    "enter namespaces of others": """
for name in os.listdir("/proc/self/ns"):
    for pid in ("1", "self"):
        try: fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        except OSError: continue
        if ok(libc.setns(fd, 0)): escaped(name)
""",
    "make a device node": """
for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFBLK, 254, 0), (stat.S_IFBLK, 8, 0)):
    path = f"/tmp/node{major}"
    try:
        os.mknod(path, kind | 0o666, os.makedev(major, minor))
        os.close(os.open(path, os.O_RDONLY)); escaped(path)
    except OSError: pass
""",
    "open devices of the machine": """
known = {"null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "ptmx", "fd", "stdin", "stdout", "stderr"}
if set(os.listdir("/dev")) != known: escaped(set(os.listdir("/dev")) - known)
""",
    "change kernel settings": """
for name in ("kernel/core_pattern", "kernel/hostname", "vm/drop_caches", "kernel/modprobe", "../sysrq-trigger"):
    try:
        fd = os.open("/proc/sys/" + name, os.O_WRONLY); escaped(name)
    except OSError: pass
""",
    "read kernel memory and logs": """
for path in ("/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/proc/keys"):
    try: data = os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 64)
    except OSError: continue
    if data: escaped(path)
if ok(libc.klogctl(3, ctypes.create_string_buffer(4096), 4096)): escaped("syslog")
with open("/proc/kallsyms") as f:
    if any(not line.startswith("0000000000000000") for _, line in zip(range(50), f)): escaped("kallsyms")
""",
    "load code into the kernel": """
for number in (321, 175, 313, 298, 425, 323):
    libc.syscall(number, 0, 0, 0, 0, 0)
    if ctypes.get_errno() != errno.EPERM: escaped(f"call {number}: {errno.errorcode.get(ctypes.get_errno())}")
""",
    "use the keyrings of the machine": """
for number in (248, 249, 250):
    libc.syscall(number, 0, 0, 0, 0, 0)
    if ctypes.get_errno() != errno.EPERM: escaped(number)
""",
    "open files by handle": """
handle = ctypes.create_string_buffer(struct.pack("IiII", 8, 1, 2, 0), 136)
if ok(libc.syscall(304, os.open("/", os.O_RDONLY), handle, os.O_RDONLY)): escaped("handle")
""",
    "talk to the hypervisor": """
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try: socket.socket(40, kind); escaped("AF_VSOCK")
    except OSError: pass
""",
    "open sockets that no namespace isolates": """
for family in (17, 38, 31, 29, 4, 9, 21, 28, 39):
    try: socket.socket(family, socket.SOCK_RAW); escaped(family)
    except OSError: pass
try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); escaped("raw")
except OSError: pass
""",
    "reach the network": """
for address in (("127.0.0.1", PORT), ("10.0.0.1", 80), ("169.254.169.254", 80), ("1.1.1.1", 53), ("192.0.2.1", 80)):
    s = socket.socket(); s.settimeout(2)
    try: s.connect(address); escaped(address)
    except OSError: pass
if {name for _, name in socket.if_nameindex()} != {"lo"}: escaped(socket.if_nameindex())
""",
    "reach abstract sockets of the machine": """
s = socket.socket(socket.AF_UNIX)
try: s.connect("\\0benchcube-test-" + str(PORT)); escaped("abstract")
except OSError: pass
if "benchcube-test" in open("/proc/net/unix").read(): escaped("listed")
""",
    "share memory with the machine": """
if len(open("/proc/sysvipc/shm").read().splitlines()) > 1: escaped("sysv")
if os.listdir("/dev/shm"): escaped(os.listdir("/dev/shm"))
""",
    "type into a terminal": """
try: fcntl.ioctl(0, 0x5412, b"x"); escaped("TIOCSTI")
except OSError as error:
    if error.errno != errno.EPERM: escaped(error)
""",
    "gain rights by a set-uid program": """
for path in ("/bin/su", "/bin/mount", "/usr/bin/passwd", "/usr/bin/sudo"):
    if os.path.exists(path) and os.stat(path).st_mode & stat.S_ISUID:
        out = subprocess.run([path, "--version"], capture_output=True)
try:
    with open("/tmp/id", "wb") as f, open("/usr/bin/id", "rb") as g: f.write(g.read())
    os.chmod("/tmp/id", 0o6755)
    if os.getuid() and subprocess.run(["/tmp/id", "-u"], capture_output=True).stdout == b"0\\n": escaped("suid")
except OSError: pass
""",
    "get capabilities back": """
header = struct.pack("Ii", 0x20080522, 0)
libc.syscall(126, header, struct.pack("6I", 0xffffffff, 0xffffffff, 0xffffffff, 0x1ff, 0x1ff, 0x1ff))
effective = int(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("CapEff")), 16)
if effective & (1 << 21 | 1 << 12 | 1 << 16 | 1 << 19 | 1 << 27): escaped(hex(effective))
""",
    "set the clock": """
if ok(libc.clock_settime(0, ctypes.create_string_buffer(16))): escaped("clock")
""",
    "rename the machine": """
if ok(libc.sethostname(b"pwned", 5)): escaped("hostname")
""",
    "read where the machine keeps the sandbox": """
for line in open("/proc/self/mountinfo"):
    if FOLDER.split("/")[1] in ("tmp", "home") and "store/" in line: escaped(line)
for line in open("/proc/self/cgroup"):
    if not line.rstrip().endswith(":/"): escaped(line)
if any(word in open("/proc/1/cmdline").read() for word in ("/", "benchflow")): escaped("cmdline")
""",
    "raise limits": """
import resource
for number in (resource.RLIMIT_NPROC, resource.RLIMIT_DATA, resource.RLIMIT_CORE):
    soft, hard = resource.getrlimit(number)
    if hard != resource.RLIM_INFINITY:
        try: resource.setrlimit(number, (hard + 1, hard + 1)); escaped(number)
        except (ValueError, OSError): pass
""",
    "write to the control groups": """
for path in glob.glob("/sys/*"):
    escaped(path)
""",
}  # fmt: skip


@dataclass(frozen=True)
class Surroundings:
    secret: str
    folder: Path
    pid: int
    port: int


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    """A machine with something to find: a file, a variable, an open descriptor, a process, two listening sockets."""
    (tmp_path / "secret").write_text("hunter2")
    monkeypatch.setenv("DRIVER_SECRET", "swordfish-of-the-driver")
    inherited = os.open(tmp_path / "secret", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    neighbour = subprocess.Popen(["sleep", "1000"])
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        port = server.getsockname()[1]
        abstract.bind(f"\0benchcube-test-{port}")
        abstract.listen()
        yield Surroundings("swordfish-of-the-driver", tmp_path, neighbour.pid, port)
        assert neighbour.poll() is None, "the sandbox ended a process of the machine"
    neighbour.kill()
    neighbour.wait()
    os.close(inherited)


@pytest.mark.parametrize("user", ["agent", "root"])
@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_attempt_fails(attempt: str, user: str, box: LocalSandbox, surroundings: Surroundings) -> None:
    program = PRELUDE + ATTEMPTS[attempt] + "\nprint('TRIED')\n"
    facts = [surroundings.secret, str(surroundings.folder), str(surroundings.pid), str(surroundings.port)]
    result = await box.exec(["/usr/bin/python3", "-c", program, *facts], user=user, timeout=60)
    assert b"ESCAPED" not in result.stdout, result.stdout.decode()
    assert b"TRIED" in result.stdout, result.stderr.decode()
    assert (await box.exec("echo alive")).stdout == b"alive\n"


def test_there_are_enough_attempts() -> None:
    assert len(ATTEMPTS) >= 25


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_a_fork_bomb_stays_inside_and_ends(user: str, backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(pids=40))) as box:
        program = "import os, time\ntry:\n while True: os.fork()\nexcept OSError: time.sleep(1000)"
        result = await box.exec(["/usr/bin/python3", "-c", program], user=user, timeout=2)
        assert result.timed_out
        left = (await box.exec("ps axo stat,args --no-headers")).stdout.decode().splitlines()
        assert [line for line in left if "python3" in line and not line.startswith("Z")] == [], left


async def test_a_fork_bomb_by_shell_cannot_stop_the_sandbox_from_being_cleared(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(pids=50))) as box:
        await box.exec("bomb() { bomb | bomb & }; bomb", timeout=5)
        await box.kill_processes()
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_a_memory_hog_ends_and_the_sandbox_lives(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(memory_mb=150))) as box:
        program = "data = []\nwhile True: data.append(bytearray(10 << 20))"
        result = await box.exec(["/usr/bin/python3", "-c", program], timeout=60)
        assert not result.ok
        assert not result.timed_out
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_many_processes_together_cannot_exceed_the_memory(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(memory_mb=300))) as box:
        program = (
            "import os, time\nfor _ in range(5): os.fork()\ndata = bytearray(50 << 20)\ntime.sleep(1.5)\nprint('held')"
        )
        result = await box.exec(["/usr/bin/python3", "-c", program], timeout=60)
        assert result.stdout.count(b"held") < 32
        assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_a_disk_hog_hits_its_limit_and_the_sandbox_lives(backend: LocalBackend) -> None:
    async with backend.create(SandboxSpec(limits=Limits(storage_mb=32))) as box:
        result = await box.exec("head -c 100000000 /dev/zero > big; stat -c %s big", timeout=60)
        assert int(result.stdout) < 40 << 20
        assert b"No space left" in result.stderr
        assert (await box.exec("rm big && echo alive > note && cat note")).stdout == b"alive\n"


async def test_a_hog_of_shared_memory_hits_its_limit(box: LocalSandbox) -> None:
    result = await box.exec("head -c 200000000 /dev/zero > /dev/shm/big; stat -c %s /dev/shm/big", timeout=60)
    assert int(result.stdout) <= 64 << 20


async def test_no_daemon_survives_the_end_of_its_sandbox(backend: LocalBackend, tmp_path: Path) -> None:
    marker = f"survivor-{os.getpid()}-{tmp_path.name}"
    box = backend.create(SandboxSpec())
    await box.start()
    await box.exec(f"(setsid setsid sh -c 'trap \"\" TERM HUP; exec -a {marker} sleep 1000' &) >/dev/null 2>&1")
    await box.exec(["bash", "-c", f"setsid bash -c 'exec -a {marker} sleep 1000' >/dev/null 2>&1 &"])
    await box.stop()
    assert marker not in processes_of_the_machine()


def processes_of_the_machine() -> str:
    return subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout
