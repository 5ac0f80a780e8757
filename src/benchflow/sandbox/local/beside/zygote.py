"""The driver's helper: one small single-threaded process that sandboxes are cloned from.

    driver ──launch──▶ zygote ──clone──▶ supervisor (process 1 of a sandbox)
           ──task────▶ worker: work on files that needs the zygote's mounts and user ids

It has no environment variables, its own mount namespace with the store in it (owners shifted where the driver is root),
and for a driver that is not root its own user namespace. It ends with the driver.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

from benchflow.sandbox.inside import beneath
from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.inside.accounts import IDS
from benchflow.sandbox.local.beside import worker
from benchflow.sandbox.local.inside import children, rootfs
from benchflow.sandbox.local.inside import messages as wire
from benchflow.sandbox.local.inside.box_plan import Identity, Overlay, Plan, group_prefix
from benchflow.sandbox.local.inside.entrance import Entrance, rehearse
from benchflow.sandbox.local.inside.entry import open_program
from benchflow.sandbox.local.inside.seccomp import build_filter
from benchflow.sandbox.local.inside.supervisor import Supervisor, answer

ID_BASE: Final = 2_000_000_000
"""The first user id of sandboxes for a driver that is root: far from users, services and granted ranges."""
_NAMESPACES: Final = (
    sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWNET | sc.CLONE_NEWIPC | sc.CLONE_NEWCGROUP
)
_OOM_SCORE: Final = b"800"
_REHEARSALS: Final = 10
_GROUP_ATTEMPTS: Final = 100
_GROUP_PAUSE: Final = 0.01


class Blank(NamedTuple):
    """A process in its own namespaces, with all that sandboxes share, which waits for the plan of one."""

    pid: int
    inbox: socket.socket
    held: int
    """How many folders of the machine it sees."""


class Zygote:
    """Keeps the mounts that sandboxes start from."""

    def __init__(self, requests: socket.socket, store: str, part: str, identity: Identity, fds: list[int]) -> None:
        self.requests = requests
        self.store = store
        self.part = f"{store}/owners/{part}"
        """The driver's part of the store."""
        self.identity: Identity = identity
        self.driver = fds[0]
        """Readable when the driver's process has ended."""
        self.lock = fds[1]
        """Locked as long as a process of this driver holds it."""
        self.groups = fds[2:]
        """The folders in which the driver makes control groups."""
        self.entry = open_program()
        """The program through which commands enter sandboxes."""
        self.owners: int | None = None
        """A user namespace whose maps shift the owners of mounts."""
        self.held: dict[str, str] = {}
        self.sandboxes: set[int] = set()
        """Supervisors that have not been collected yet."""
        self.spare: Blank | None = None
        """For the next sandbox, prepared in idle time; there is never more than one."""
        self.sparing = True
        """Whether the last attempt to make one did not fail."""
        self.worker = 0
        """The process beside this one that does the file work."""
        self.to_worker: socket.socket | None = None
        """The driver's end of it, handed out once."""

    def prepare(self) -> None:
        """Create the mounts; needs permission to mount."""
        sc.mount(None, "/", None, sc.MS_REC | sc.MS_SLAVE)
        sc.mount("tmpfs", rootfs.HOLD, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=4m")
        for path in (rootfs.STORE, rootfs.VOLUMES, rootfs.PLAIN_VOLUMES, rootfs.ROOT, rootfs.SCRATCH):
            os.mkdir(path)
        if self.identity == "idmap":
            self.owners = _shifting_namespace()
        self.hold(self.store, rootfs.STORE)
        rootfs.prime()
        for fake_root in (False, True):
            program = build_filter(fake_root=fake_root and self.identity == "single", pin_cpus=False)
            rehearse(program, self.identity)
        self._rehearse_launch()
        sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)  # what the worker starts is waited for at the end
        self.to_worker, far = wire.channel()
        self.worker = os.fork()
        if self.worker == 0:
            self.to_worker.close()
            self.requests.close()
            worker.run(self, far)
        far.close()

    def _rehearse_launch(self) -> None:
        """Go through what every sandbox does first: what the interpreter learns on the way they need not copy."""
        plan = Plan("", self.identity, (Overlay("/", ("/",), "/", "/"),), (), {"PATH": "/bin"}, {"CORE": 0})
        root = os.open(rootfs.HOLD, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        ours, theirs = wire.channel()
        for _ in range(_REHEARSALS):
            wire.send(ours, {"plan": plan.to_dict(), "volumes": []}, (root,))
            message, fds = wire.receive(theirs)
            if message is not None:
                planned = Plan.from_dict(message["plan"])
                Supervisor(planned, theirs, Entrance(self.entry, []), (), self.driver, root)
            os.close(fds[0])
            poll = select.poll()
            poll.register(ours.fileno(), select.POLLIN)
            dict(poll.poll(0))
            os.close(beneath.claim_directory(root, "/root/a", replace_all=True))
            os.close(beneath.claim_file(root, "/root/b"))
            sc.bind(rootfs.ROOT, rootfs.ROOT)
            sc.remount_read_only(rootfs.ROOT)
            sc.unmount(rootfs.ROOT)
        for end in (ours, theirs):
            end.close()
        os.close(root)
        os.rmdir(f"{rootfs.ROOT}/a")
        os.unlink(f"{rootfs.ROOT}/b")

    def greet(self) -> None:
        """Tell the driver that everything stands, and hand it its end of the worker."""
        if self.to_worker is not None:
            wire.send(self.requests, {"ready": True}, (self.to_worker.fileno(),))
            self.to_worker.close()

    def hold(self, path: str, target: str) -> None:
        """Mount `path` at `target` too, as sandboxes see it."""
        tree = sc.open_tree(path)
        try:
            if self.owners is not None:
                sc.set_mount_attributes(tree, user_namespace=self.owners)
            sc.attach_tree(tree, target)
        finally:
            os.close(tree)

    def locate(self, location: str) -> str:
        """A location of a plan as a path here; a folder of the machine gets its owners shifted once."""
        kind, colon, rest = location.partition(":")
        if colon and kind == "store":
            return f"{rootfs.STORE}/{rest}"
        if colon and kind == "volume":
            return f"{rootfs.VOLUMES}/{rest}"
        if self.owners is None:
            return location
        if location not in self.held:
            target = f"{rootfs.HOLD}/held-{len(self.held)}"
            os.mkdir(target)
            self.hold(location, target)
            self.held[location] = target
        return self.held[location]

    def plain(self, location: str) -> str:
        """A location as a path with the owners that are on the disk, for work of this process itself."""
        kind, colon, rest = location.partition(":")
        if colon and kind == "store":
            return f"{self.store}/{rest}"
        if colon and kind == "volume":
            return f"{rootfs.PLAIN_VOLUMES}/{rest}"
        return location

    def run(self) -> NoReturn:
        """Serve until the driver is gone."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self.requests.fileno(), readable, self.driver):
            poll.register(fd, select.POLLIN)
        while True:
            events = dict(poll.poll(0 if self.spare is None and self.sparing else None))
            if not events:
                self._make_spare()
            if self.driver in events:
                self.end()
            if readable in events:
                with contextlib.suppress(BlockingIOError):
                    os.read(readable, 4096)
                self._reap()
            if self.requests.fileno() in events:
                self._serve()

    def end(self) -> NoReturn:
        """End every sandbox, remove the driver's part of the store, end."""
        from benchflow.sandbox.inside.removal import remove_tree
        from benchflow.sandbox.local.beside import file_tasks as tasks

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for pid in self.sandboxes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.worker, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0):
                pass
        for folder in self.groups:
            _remove_groups(folder, group_prefix(os.path.basename(self.part)))
        for name in os.listdir(rootfs.PLAIN_VOLUMES):
            tasks.remove({"volumes": [name], "locations": []}, self)
        with contextlib.suppress(OSError):  # left for the next driver
            remove_tree(self.part)
        if not os.path.exists(self.part):
            with contextlib.suppress(OSError):
                os.unlink(f"{self.part}.lock")
        os._exit(0)

    def _serve(self) -> None:
        message, fds = wire.receive(self.requests)
        if message is None:
            self.end()
        reply = socket.socket(fileno=fds[0])
        try:
            self._launch(message["plan"], reply, fds)
        except (OSError, ValueError, KeyError) as error:
            answer(reply, children.failure(error))
        finally:
            for fd in fds[1:]:
                os.close(fd)
            reply.close()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self.sandboxes.discard(pid)
                if pid == self.worker:  # nothing can be cleared away any more; the driver gets a new one of us
                    self.end()
                if self.spare is not None and self.spare.pid == pid:
                    self.spare.inbox.close()
                    self.spare = None

    def _launch(self, planned: wire.Message, reply: socket.socket, fds: list[int]) -> None:
        """`fds`: reply, control, then control groups."""
        plan = Plan.from_dict(planned)
        locations = [location for overlay in plan.overlays for location in (overlay.upper, *overlay.lowers)]
        for location in locations:
            self.locate(location)
        volumes = sorted({rootfs.volume_of(location) for location in locations} - {""})
        trees = self._trees(plan, volumes)
        try:
            blank = self._take_blank()
            with blank.inbox:
                process = os.pidfd_open(blank.pid)
                try:
                    wire.send(reply, {"pid": blank.pid}, (process,))
                finally:
                    os.close(process)
                wire.send(blank.inbox, {"plan": planned, "volumes": volumes}, (*fds, *trees))
        finally:
            self.sparing = True
            for fd in trees:
                os.close(fd)

    def _take_blank(self) -> Blank:
        """The spare one where it sees all that is needed, else a new one: folders held later are not in it."""
        spare, self.spare = self.spare, None
        if spare is not None and spare.held == len(self.held):
            return spare
        if spare is not None:
            spare.inbox.close()
        return self._clone_blank()

    def _make_spare(self) -> None:
        try:
            self.spare = self._clone_blank()
        except OSError:  # the next sandbox will say what is wrong
            self.sparing = False

    def _clone_blank(self) -> Blank:
        ours, theirs = wire.channel()
        with theirs:
            pid = sc.clone_process(_NAMESPACES | sc.CLONE_NEWUTS)
            if pid == 0:
                self._become_supervisor(theirs.detach())
        self.sandboxes.add(pid)
        try:
            self._write_maps(pid)
            ours.send(b"\0")
        except OSError:
            ours.close()
            raise
        return Blank(pid, ours, len(self.held))

    def _trees(self, plan: Plan, volumes: Sequence[str]) -> list[int]:
        """Detached mounts of the volumes, which may be younger than the process that gets them, and of attachments."""
        sources = [f"{rootfs.VOLUMES}/{name}" for name in volumes] + [item.source for item in plan.attachments]
        trees: list[int] = []
        try:
            for source in sources:
                trees.append(sc.open_tree(source))  # noqa: PERF401 - those that are open are closed after an error
            for tree in trees[len(volumes) :]:
                sc.set_mount_attributes(tree, user_namespace=self.owners, read_only=True)
        except OSError:
            for tree in trees:
                os.close(tree)
            raise
        return trees

    def _write_maps(self, pid: int) -> None:
        outside = ID_BASE if self.identity == "idmap" else 0
        if self.identity == "single":
            lines = "0 0 1"
        elif self.identity == "range":  # our own id and the granted ones are two ranges
            lines = f"0 0 1\n1 1 {IDS - 1}"
        else:
            lines = f"0 {outside} {IDS}"
        for name in ("uid_map", "gid_map"):
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, lines.encode())
            finally:
                os.close(fd)

    def _become_supervisor(self, inbox: int) -> NoReturn:
        reply: socket.socket | None = None
        try:
            signal.set_wakeup_fd(-1)
            sc.close_but({0, 1, 2, inbox, self.driver, self.lock, self.entry})
            requests = socket.socket(fileno=inbox)
            if not requests.recv(1):
                os._exit(0)
            trouble: OSError | None = None
            try:
                self._prepare_blank()
            except OSError as error:
                trouble = error
            message, fds = wire.receive(requests)
            if message is None:
                os._exit(0)
            requests.close()
            reply = socket.socket(fileno=fds[0])
            if trouble is not None:
                raise trouble
            self._supervise(Plan.from_dict(message["plan"]), message["volumes"], reply, fds)
        except BaseException as error:  # noqa: BLE001 - told to the driver; the process ends either way
            if reply is not None:
                answer(reply, children.failure(error))
        finally:
            os._exit(1)

    def _prepare_blank(self) -> None:
        """Everything that needs no plan."""
        if self.identity != "single":
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        sc.prctl(sc.PR_SET_DUMPABLE, 0)
        os.setsid()
        rootfs.loopback_up()
        rootfs.prepare()

    def _supervise(self, plan: Plan, volumes: list[str], reply: socket.socket, fds: list[int]) -> NoReturn:
        """`fds`: reply, control, then control groups, then the mounts of volumes and of attachments."""
        end = len(fds) - len(plan.attachments)
        start = end - len(volumes)
        groups, trees = tuple(fds[2:start]), fds[end:]
        for name, tree in zip(volumes, fds[start:end], strict=True):
            sc.attach_tree(tree, f"{rootfs.VOLUMES}/{name}")
            os.close(tree)
        entrance = Entrance(self.entry, [os.dup(fd) for fd in groups])
        entrance.prepare()
        control = socket.socket(fileno=fds[1])
        if plan.waits and wire.receive(control)[0] is None:
            os._exit(0)
        socket.sethostname(plan.hostname)
        resolver = rootfs.build_root(plan, self.locate, trees)
        rootfs.make_workdir(plan)
        supervisor = Supervisor(plan, control, entrance, groups, self.driver, resolver)
        wire.send(reply, {"ready": True})
        reply.close()
        supervisor.run()


def _remove_groups(folder: int, prefix: str) -> None:
    """Remove control groups whose processes have ended; the kernel may take a moment to notice."""
    for name in os.listdir(folder):
        if name.startswith(prefix):
            for _ in range(_GROUP_ATTEMPTS):
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=folder)
                    break
                time.sleep(_GROUP_PAUSE)


def _shifting_namespace() -> int:
    """A user namespace in which the ids of sandboxes are the canonical ones; it exists without a process."""
    ready_reader, ready_writer = os.pipe2(os.O_CLOEXEC)
    pid = sc.clone_process(sc.CLONE_NEWUSER)
    if pid == 0:
        os.close(ready_writer)
        os.read(ready_reader, 1)
        os._exit(0)
    try:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"0 {ID_BASE} {IDS}")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_writer)
        os.close(ready_reader)
        os.waitpid(pid, 0)


def main() -> NoReturn:
    """Entry of the helper process: the descriptor of its socket is the only argument."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored ones would stay so in commands, handled ones do not
        signal.signal(number, lambda *_: None)
    sc.rename_process("sandbox")
    with contextlib.suppress(OSError):
        _write("/proc/self/oom_score_adj", _OOM_SCORE)
    message, fds = wire.receive(requests)
    if message is None:
        os._exit(0)
    identity: Identity = message["identity"]
    uid, gid = os.getuid(), os.getgid()
    try:
        if identity in ("range", "single"):
            sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
            if identity == "single":
                _write("/proc/self/setgroups", b"deny")
                _write("/proc/self/gid_map", f"0 {gid} 1".encode())
                _write("/proc/self/uid_map", f"0 {uid} 1".encode())
            else:
                wire.send(requests, {"map": os.getpid()})
                wire.receive(requests)
                os.setgroups([])
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
        else:
            sc.unshare(sc.CLONE_NEWNS)
        zygote = Zygote(requests, message["store"], message["part"], identity, fds)
        zygote.prepare()
        zygote.greet()
    except OSError as error:
        wire.send(requests, {"error": str(error), "errno": error.errno})
        os._exit(1)
    gc.collect()
    gc.freeze()
    gc.disable()
    zygote.run()


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
