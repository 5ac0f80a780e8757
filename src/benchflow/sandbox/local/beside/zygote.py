"""The driver's helper: one small single-threaded process that sandboxes are cloned from.

    driver ──launch──▶ zygote ──clone──▶ supervisor (process 1 of a sandbox)
           ──task────▶ worker: work on files that needs the zygote's mounts and user ids

It has no environment variables, its own mount namespace, and for a driver that is not root its own user namespace. For
one that is root, every sandbox gets its own range of user ids, and the store with its owners shifted to that range. It
ends with the driver.
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
from typing import Final, NamedTuple, NoReturn

from benchflow.sandbox.inside import beneath
from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.inside.accounts import IDS
from benchflow.sandbox.local.beside import worker
from benchflow.sandbox.local.beside.id_ranges import IdRanges
from benchflow.sandbox.local.inside import children, rootfs
from benchflow.sandbox.local.inside import messages as wire
from benchflow.sandbox.local.inside.entrance import Entrance, rehearse
from benchflow.sandbox.local.inside.entry import open_program
from benchflow.sandbox.local.inside.kill_watch import KillWatch, watch_program
from benchflow.sandbox.local.inside.messages import Identity, Overlay, Plan, group_prefix
from benchflow.sandbox.local.inside.namespaces import refused
from benchflow.sandbox.local.inside.seccomp import build_filter
from benchflow.sandbox.local.inside.supervisor import Supervisor, answer

_NAMESPACES: Final = (
    sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWPID | sc.CLONE_NEWIPC | sc.CLONE_NEWCGROUP | sc.CLONE_NEWUTS
)
"""Of every sandbox; that of the network may be shared."""
_OOM_SCORE: Final = b"800"
_REHEARSALS: Final = 10
_GROUP_ATTEMPTS: Final = 100
_GROUP_PAUSE: Final = 0.01


class Blank(NamedTuple):
    """A process in its own namespaces, with all that sandboxes share, which waits for the plan of one."""

    pid: int
    inbox: socket.socket
    owners: int | None = None
    """Its user namespace, which shifts the owners of mounts."""

    def close(self) -> None:
        """Close our end; without a plan it ends."""
        self.inbox.close()
        if self.owners is not None:
            os.close(self.owners)


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
        self.ranges: IdRanges | None = None
        """Where sandboxes get user ids of their own."""
        self.sandboxes: dict[int, int] = {}
        """Supervisors that have not been collected yet, and the first user id of each."""
        self.spare: Blank | None = None
        """For the next sandbox, prepared in idle time; there is never more than one."""
        self.sparing = True
        """Whether the last attempt to make one did not fail."""
        self.watch = b""
        """The filter that announces what can kill a process; empty where it would not tell the truth."""
        self.worker = 0
        """The process beside this one that does the file work."""
        self.to_worker: socket.socket | None = None
        """The driver's end of it, handed out once."""

    def prepare(self) -> None:
        """Create the mounts; needs permission to mount."""
        sc.mount(None, "/", None, sc.MS_REC | sc.MS_SLAVE)
        sc.mount("tmpfs", rootfs.HOLD, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=4m")
        for path in (rootfs.STORE, rootfs.VOLUMES, rootfs.ROOT, rootfs.SCRATCH):
            os.mkdir(path)
        if self.identity == "idmap":
            self.ranges = IdRanges(self.store)
            sc.prctl(sc.PR_SET_SECUREBITS, sc.SECBIT_NO_SETUID_FIXUP)  # see `_clone`
        else:
            sc.bind_alone(self.store, rootfs.STORE)
        rootfs.prime()
        for fake_root in (False, True):
            program = build_filter(fake_root=fake_root and self.identity == "single", pin_cpus=False)
            rehearse(program, self.identity)
        self.watch = watch_program()
        self._rehearse_launch()
        sc.prctl(sc.PR_SET_CHILD_SUBREAPER, 1)  # what the worker starts is waited for at the end
        self.to_worker, far = wire.channel()
        self.worker = os.fork()
        if self.worker == 0:
            self.to_worker.close()
            self.requests.close()
            worker.run(self, far)
        far.close()
        self._clone_blank().close()  # shows whether there are namespaces, and whether the store's owners can be shifted

    def _rehearse_launch(self) -> None:
        """Run what every sandbox does first, so that what the interpreter allocates for it is shared and not copied."""
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
        """Report to the driver that everything is ready, and pass it its end of the worker."""
        if self.to_worker is not None:
            wire.send(self.requests, {"ready": True}, (self.to_worker.fileno(),))
            self.to_worker.close()

    def plain(self, location: str) -> str:
        """A location as a path with the owners that are on the disk, for work of this process itself."""
        kind, colon, rest = location.partition(":")
        if colon and kind == "store":
            return f"{self.store}/{rest}"
        if colon and kind == "volume":
            return f"{rootfs.VOLUMES}/{rest}"
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
        """End every sandbox, remove the driver's part of the store, and exit."""
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
        for name in os.listdir(rootfs.VOLUMES):
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
                first = self.sandboxes.pop(pid, 0)
                if self.ranges is not None and first:
                    self.ranges.give_back(first)
                if pid == self.worker:  # nothing can be cleared away any more; the driver gets a new one of us
                    self.end()
                if self.spare is not None and self.spare.pid == pid:
                    self.spare.close()
                    self.spare = None

    def _launch(self, planned: wire.Message, reply: socket.socket, fds: list[int]) -> None:
        """`fds`: reply, control, then control groups, then the network namespace of a plan that joins one."""
        plan = Plan.from_dict(planned)
        if plan.joins:
            blank = self._clone_within(fds.pop())
        else:
            spare, self.spare = self.spare, None
            blank = spare or self._clone_blank()
        trees: dict[str, int] = {}
        try:
            self._open_trees(plan, blank, trees)
            process = os.pidfd_open(blank.pid)
            try:
                wire.send(reply, {"pid": blank.pid}, (process,))
            finally:
                os.close(process)
            wire.send(blank.inbox, {"plan": planned, "trees": list(trees)}, (*fds, *trees.values()))
        finally:
            self.sparing = True
            blank.close()
            for fd in trees.values():
                os.close(fd)

    def _open_trees(self, plan: Plan, blank: Blank, trees: dict[str, int]) -> None:
        """Detached mounts of all that the sandbox needs beside the store, as it shall see them: volumes and folders of
        the machine by their location, then attachments by their target."""
        sources: dict[str, str] = {}
        for location in (place for overlay in plan.overlays for place in (overlay.upper, *overlay.lowers)):
            if volume := rootfs.volume_of(location):
                sources[f"volume:{volume}"] = f"{rootfs.VOLUMES}/{volume}"
            elif blank.owners is not None and not location.startswith("store:"):
                sources[location] = location
        for location, source in sources.items():
            tree = trees[location] = sc.open_tree(source)
            if blank.owners is not None:
                sc.set_mount_attributes(tree, user_namespace=blank.owners)
        for number, item in enumerate(plan.attachments):
            tree = trees[f"attachment:{number}"] = sc.open_tree(item.source)
            sc.set_mount_attributes(tree, user_namespace=blank.owners, read_only=True)

    def _make_spare(self) -> None:
        try:
            self.spare = self._clone_blank()
        except OSError:  # the next sandbox will say what is wrong
            self.sparing = False

    def _clone_within(self, network: int) -> Blank:
        """A blank in the network namespace of another sandbox, which this process enters for that moment."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            sc.setns(network, sc.CLONE_NEWNET)
            try:
                return self._clone_blank(joined=True)
            finally:
                sc.setns(home, sc.CLONE_NEWNET)
        finally:
            os.close(home)
            os.close(network)

    def _clone_blank(self, *, joined: bool = False) -> Blank:
        """A process that waits for its plan, in a network namespace of its own unless `joined`."""
        ours, theirs = wire.channel()
        with theirs:
            first = self.ranges.take() if self.ranges is not None else 0
            pid = self._clone(first, 0 if joined else sc.CLONE_NEWNET)
            if pid == 0:
                self._become_supervisor(theirs.detach(), joined=joined)
        self.sandboxes[pid] = first
        owners = None
        try:
            self._write_maps(pid, first)
            if self.ranges is None:
                wire.send(ours, {})
            else:
                owners = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
                self._send_store(ours, owners)
        except OSError:
            Blank(pid, ours, owners).close()
            raise
        return Blank(pid, ours, owners)

    def _clone(self, first: int, network: int) -> int:
        """`os.fork` into new namespaces.

        What the kernel counts per user namespace it also counts for the user who made it, up to that user's limit. So
        the maker is for this moment the first id of the sandbox's range, with root's capabilities.
        """
        pid = -1
        try:
            if self.ranges is not None:
                os.setresuid(-1, first, -1)
            pid = sc.clone_process(_NAMESPACES | network)
        except OSError as error:
            raise refused(error) from error
        finally:
            if self.ranges is not None and pid:
                os.setresuid(-1, 0, -1)
                if pid < 0:
                    self.ranges.give_back(first)
        return pid

    def _send_store(self, inbox: socket.socket, owners: int) -> None:
        """Pass the store on with the owners that the sandbox should see."""
        tree = sc.open_tree(self.store)
        try:
            sc.set_mount_attributes(tree, user_namespace=owners)
            wire.send(inbox, {}, (tree,))
        finally:
            os.close(tree)

    def _write_maps(self, pid: int, first: int) -> None:
        if self.identity == "single":
            lines = "0 0 1"
        elif self.identity == "range":  # our own id and the granted ones are two ranges
            lines = f"0 0 1\n1 1 {IDS - 1}"
        else:
            lines = f"0 {first} {IDS}"
        for name in ("uid_map", "gid_map"):
            _write(f"/proc/{pid}/{name}", lines.encode())

    def _become_supervisor(self, inbox: int, *, joined: bool) -> NoReturn:
        reply: socket.socket | None = None
        try:
            signal.set_wakeup_fd(-1)
            ranges = {self.ranges.file} if self.ranges is not None else set()
            sc.close_but({0, 1, 2, inbox, self.driver, self.lock, self.entry} | ranges)
            requests = socket.socket(fileno=inbox)
            message, store = wire.receive(requests)
            if message is None:
                os._exit(0)
            failure: OSError | None = None
            watch = None
            try:
                self._prepare_blank(store)
                if not joined:
                    rootfs.open_network()
                watch = KillWatch.install(self.watch)
            except OSError as error:
                failure = error
            message, fds = wire.receive(requests)
            if message is None:
                os._exit(0)
            requests.close()
            reply = socket.socket(fileno=fds[0])
            if failure is not None:
                raise failure
            self._supervise(Plan.from_dict(message["plan"]), message["trees"], reply, fds, watch)
        except BaseException as error:  # noqa: BLE001 - reported to the driver; the process ends either way
            if reply is not None:
                answer(reply, children.failure(error))
        finally:
            os._exit(1)

    def _prepare_blank(self, store: list[int]) -> None:
        """Everything that needs no plan; `store` is its mount, unless it is mounted already."""
        if self.identity != "single":
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        sc.prctl(sc.PR_SET_PDEATHSIG, signal.SIGKILL)
        sc.prctl(sc.PR_SET_DUMPABLE, 0)
        os.setsid()
        rootfs.prepare()
        for tree in store:
            sc.attach_tree(tree, rootfs.STORE)
            os.close(tree)

    def _supervise(
        self, plan: Plan, places: list[str], reply: socket.socket, fds: list[int], watch: KillWatch | None
    ) -> NoReturn:
        """`fds`: reply, control, then control groups, then the mounts of `places`, attachments last."""
        start = len(fds) - len(places)
        groups, trees = tuple(fds[2:start]), fds[start:]
        layers = len(places) - len(plan.attachments)
        roots = {place: rootfs.attach_layers(tree) for place, tree in zip(places[:layers], trees, strict=False)}
        entrance = Entrance(self.entry, [os.dup(fd) for fd in groups])
        entrance.prepare()
        control = socket.socket(fileno=fds[1])
        socket.sethostname(plan.hostname)
        resolver = rootfs.build_root(plan, roots, trees[layers:])
        rootfs.make_workdir(plan)
        supervisor = Supervisor(plan, control, entrance, groups, self.driver, resolver, watch)
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


def main() -> NoReturn:
    """Entry of the helper process: the descriptor of its socket is the only argument."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    os.umask(0o022)
    _reset_signals()
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
            _unshare()
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
        wire.send(requests, {"error": error.strerror or str(error), "errno": error.errno})
        os._exit(1)
    gc.collect()
    gc.freeze()
    gc.disable()
    zygote.run()


def _unshare() -> None:
    try:
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWNET)  # a network it can come back to
        sc.mount(None, "/", None, sc.MS_REC | sc.MS_SLAVE)  # AppArmor lets the first succeed without rights to do this
    except OSError as error:
        raise refused(error) from error


def _reset_signals() -> None:
    """Commands start with every signal at its default and none blocked, whatever the driver's caller ignores."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored ones would stay so in commands, handled ones do not
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
