"""The requests a supervisor serves, one function each: what comes in is a message, its reply socket and descriptors.

A handler that returns True has handed the reply to a child that is still at work; every other answer is sent at once.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from benchflow.sandbox.inside import beneath, offers, tree_stream
from benchflow.sandbox.inside import syscalls as sc
from benchflow.sandbox.inside.egress_gateway import EgressPlan, open_gateway
from benchflow.sandbox.local.inside import children, messages, process_tree

if TYPE_CHECKING:
    from benchflow.sandbox.local.inside.supervisor import Supervisor

_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
Handler = Callable[["Supervisor", messages.Message, socket.socket, list[int]], bool]


def execute(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Start a command with the three descriptors as its streams."""
    plan = supervisor.plan
    account = supervisor.accounts.find(message["user"] or plan.user)
    program = supervisor.filters[0 if account.uid == 0 else 1]
    environment = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
    environment |= plan.environment | message["env"]
    words = (message["argv"], environment, message["cwd"] or plan.workdir)
    tag = process_tree.new_tag()
    messages.send(reply, {"tag": tag})
    return supervisor.adopt(supervisor.entrance.start(account, plan, program, words, fds), reply, tag)


def receive_tree(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Unpack a stream in a child; a parcel at once."""
    if message["parcel"]:
        children.unpack_tree(supervisor.plan, message, os.dup(fds[0]))
        messages.send(reply, {"exit": 0})
        return False
    plan, program, groups = supervisor.plan, supervisor.filters[1], supervisor.groups
    return supervisor.fork(reply, lambda: children.receive_tree(plan, program, groups, message, fds[0]))


def send_tree(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    plan, program, groups = supervisor.plan, supervisor.filters[1], supervisor.groups
    return supervisor.fork(reply, lambda: children.send_tree(plan, program, groups, message, fds[0]))


def open_file(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Hand out a descriptor of a regular file; say so when it is a folder, with its parcel; refuse the rest."""
    del supervisor, fds
    path = message["path"]
    probe = children.open_plain(path, os.O_PATH)
    mode = os.fstat(probe).st_mode
    os.close(probe)
    if stat.S_ISDIR(mode):
        _answer_folder(path, reply, parcel_wanted=message["parcel"])
        return False
    if not stat.S_ISREG(mode):
        raise tree_stream.Refused(f"'{path}' is not a regular file.")
    fd = children.open_plain(path, os.O_RDONLY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise tree_stream.Refused(f"'{path}' is not a regular file.")
        messages.send(reply, {"directory": False}, (fd,))
    finally:
        os.close(fd)
    return False


def _answer_folder(path: str, reply: socket.socket, *, parcel_wanted: bool) -> None:
    folder = children.open_plain(path, os.O_RDONLY | os.O_DIRECTORY) if parcel_wanted else -1
    try:
        packed = tree_stream.pack_parcel(folder) if parcel_wanted else None
        try:
            messages.send(reply, {"directory": True}, () if packed is None else (packed,))
        finally:
            if packed is not None:
                os.close(packed)
    finally:
        if folder >= 0:
            os.close(folder)


def create_file(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Return a descriptor of a new, empty file that replaces whatever is at the path."""
    del fds
    owner = children.owner_of(message["owner"], supervisor.plan)
    fd = _created(message["path"], owner, message["mode"] & 0o777)
    try:
        messages.send(reply, {}, (fd,))
    finally:
        os.close(fd)
    return False


def create_files(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Write new files of root, each with as many bytes of the descriptor as the message says."""
    del supervisor
    for path, size in message["files"]:
        fd = _created(path, (0, 0), 0o644)
        try:
            if tree_stream.copy_bytes(fds[0], fd, size) != size:
                raise tree_stream.Refused("The copy ended early.")
        finally:
            os.close(fd)
    messages.send(reply, {})
    return False


def _created(path: str, owner: tuple[int, int], mode: int) -> int:
    """A descriptor of a new, empty file that replaces whatever is at the path."""
    *parents, name = beneath.parts_of(path) or [""]
    if not name:
        raise tree_stream.Refused("'/' is not a file.")
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    folder = fd = -1
    try:
        folder = beneath.claim_directory(root, "/" + "/".join(parents), replace_last=False)
        beneath.remove_unless(folder, name, beneath.nothing)
        fd = os.open(name, _NEW, 0o600, dir_fd=folder)
        os.fchown(fd, *owner)
        os.fchmod(fd, mode)
    except BaseException:
        if fd >= 0:
            os.close(fd)
        raise
    finally:
        for opened in (root, folder):
            if opened >= 0:
                os.close(opened)
    return fd


def kill(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """End one command with all it started."""
    del fds
    for pid, tag in supervisor.tags.items():
        if tag == message["tag"]:
            supervisor.expect_end(pid)
    process_tree.kill_tagged(message["tag"], {**supervisor.tags, supervisor.entrance.porter: 0})
    supervisor.reap()
    messages.send(reply, {})
    return False


def kill_all(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """End everything but the supervisor."""
    del message, fds
    supervisor.expect_end(None)
    process_tree.kill_all()
    supervisor.reap(until_none=True)
    if supervisor.watch is not None:
        supervisor.watch.forget()
    messages.send(reply, {})
    return False


def list_offers(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """What processes inside offer to others."""
    del supervisor, message, fds
    found, unusable = offers.read_offers()
    messages.send(reply, {"offers": found, "unusable": unusable})
    return False


def dial(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Return a socket that is connecting to an offer, or the error number if nothing accepts it."""
    del supervisor, fds
    try:
        opened = offers.connect(offers.Offer.from_message(message["offer"]))
    except OSError as error:
        messages.send(reply, {"refused": error.errno})
        return False
    with opened:
        messages.send(reply, {}, (opened.fileno(),))
    return False


def open_listeners(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Hand out sockets at the addresses of another box's offers; for each that cannot be had, the reason.

    Those that yield give way to processes inside that bind their addresses.
    """
    del fds
    watch = supervisor.watch
    taken = watch.holds if watch is not None else None
    opened, reasons = offers.listen_all(message["offers"], message["closed"], taken=taken)
    try:
        if watch is not None and message["yields"]:
            watch.forward(opened)
        messages.send(reply, {"reasons": reasons}, [item.fileno() for item in opened])
    finally:
        for item in opened:
            item.close()
    return False


def prepare(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Give the environment its unprivileged user and that user its working folder."""
    del fds
    plan, program, groups = supervisor.plan, supervisor.filters[0], supervisor.groups
    return supervisor.fork(reply, lambda: children.prepare(plan, program, groups, message))


def survey(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Which processes are alive, apart from those that serve the sandbox itself."""
    del message, fds
    supervisor.reap()
    ours = {supervisor.entrance.porter, *supervisor.passing}
    messages.send(reply, {"alive": [pid for pid in process_tree.alive() if pid not in ours]})
    return False


def pause(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Stop or continue all processes."""
    del supervisor, fds
    if message["stop"]:
        process_tree.pause()
    else:
        process_tree.resume()
    messages.send(reply, {})
    return False


def open_network(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Replace the gateway by that of a network plan, in a child that passes its sockets out."""
    del fds
    _write_resolver(supervisor.resolver, message["resolv_conf"])
    return supervisor.fork(reply, lambda: _build_gateway(message, reply), passing=True)


def renew_resolver(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Look up names as the sandbox does whose network this is."""
    del fds
    _write_resolver(supervisor.resolver, message["resolv_conf"])
    messages.send(reply, {})
    return False


def hand_out_network(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """A descriptor of the network namespace."""
    del supervisor, message, fds
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        messages.send(reply, {}, (namespace,))
    finally:
        os.close(namespace)
    return False


def _build_gateway(message: messages.Message, reply: socket.socket) -> int:
    sockets = open_gateway(EgressPlan.from_message(message))
    messages.send(reply, {}, [opened.fileno() for opened in sockets])
    return 0


def _write_resolver(fd: int, text: str) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, text.encode(), 0)


def stand_in(supervisor: Supervisor, message: messages.Message, reply: socket.socket, fds: list[int]) -> bool:
    """Mount a program over another one, which stays at a path of its own: programs are large, and nothing is copied."""
    del supervisor, fds
    place, kept = message["place"], message["kept"]
    program = f"{kept}.new"
    for path, data in ((kept, b""), (program, message["program"].encode("latin-1"))):
        fd = os.open(path, _NEW, 0o755)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
    sc.bind_alone(place, kept)
    sc.bind_alone(program, place)
    messages.send(reply, {})
    return False


OPERATIONS: Final[Mapping[str, Handler]] = {
    "exec": execute,
    "receive-tree": receive_tree,
    "send-tree": send_tree,
    "open": open_file,
    "create": create_file,
    "create-files": create_files,
    "kill": kill,
    "kill-all": kill_all,
    "survey": survey,
    "pause": pause,
    "network": open_network,
    "resolver": renew_resolver,
    "namespace": hand_out_network,
    "offers": list_offers,
    "dial": dial,
    "listen": open_listeners,
    "prepare": prepare,
    "stand-in": stand_in,
}
