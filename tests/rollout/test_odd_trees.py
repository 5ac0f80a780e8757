"""Trees that agents leave to avoid a bad score or to stop the machinery: each ends, is scored, and is removed.

None of them is kept as something it is not, and no process waits for a pipe, a device or an endless tree.
"""

from __future__ import annotations

import anyio
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]
READS = """\
if [ "$(cat /app/answer.txt)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
WALKS = """\
set -e
cp -r /app /tmp/copy
find /app -type f -exec cat {} + > /tmp/all
grep -qx done /app/answer.txt && r=1 || r=0
echo $r > /logs/verifier/reward.txt
"""
LIMITS = "verifier: {timeout_sec: %s}\nenvironment: {storage_mb: 256}\nagent: {user: %s}\n"
DEEP = """\
import os
for number in range(5000):
    os.mkdir("d" * 20)
    os.chdir("d" * 20)
open("bottom", "w").close()
"""
NAMES = """\
import os
for number in range(1, 256):
    if number != 47:
        open(os.fsencode("name-") + bytes([number]), "w").close()
open(b"line\\nA /etc/passwd", "w").close()
open(b"x" * 255, "w").close()
"""
SOCKETS = """\
import os, socket
for number in range(20):
    socket.socket(socket.AF_UNIX).bind(f"socket-{number}")
    os.mkfifo(f"pipe-{number}")
"""
TREES = {
    "unreadable": "mkdir -p a/b; echo x > a/b/c; chmod 000 a/b/c a/b a answer.txt; chmod 000 .",
    "unreadable-files": "for i in 1 2 3; do echo x > f$i; chmod 000 f$i; done",
    "immutable": "chattr +i . 2>/dev/null; echo x > fixed; chattr +i fixed 2>/dev/null; chmod 555 .; true",
    "deep": f"python3 -c '{DEEP}'",
    "names": f"python3 -c '{NAMES}'",
    "cycles": "mkdir a b; ln -s ../b a/b; ln -s ../a b/a; ln -s . here; ln -s .. up; ln -s loop loop; ln -s / root",
    "pipe-for-an-answer": "rm -f answer.txt; mkfifo answer.txt",
    "folder-for-an-answer": "rm -f answer.txt; mkdir answer.txt",
    "link-to-itself-for-an-answer": "ln -sf answer.txt answer.txt",
    "link-to-zero-for-an-answer": "ln -sf /dev/zero answer.txt",
    "pipes-and-sockets": f"python3 -c '{SOCKETS}'",
    "devices": "mknod zero c 1 5; mknod full c 1 7; mknod disk b 8 0; mknod answer.txt c 1 5; true",
    "whiteouts": "mknod white c 0 0; mkdir opaque; setfattr -n user.overlay.opaque -v y opaque; true",
    "sparse": "truncate -s 900G answer.txt || truncate -s 200G answer.txt",
    "endless-gitfile": "truncate -s 900G .git || truncate -s 200G .git",
    "many-sparse": "for i in 1 2 3 4 5; do truncate -s 900G big$i; done; true",
    "wide": "python3 -c 'for i in range(3000): open(str(i), \"w\").close()'",
}


@pytest.mark.parametrize(("user", "verifier"), [("agent", READS), ("root", WALKS)], ids=["agent", "root"])
@pytest.mark.parametrize("tree", TREES)
async def test_an_odd_tree_is_scored_and_removed(make_package, run, tree, user, verifier):
    endless = tree == "sparse" and verifier == READS  # read until the time is over, and again by a second look
    package = make_package(LIMITS % (4 if endless else 10, user), verifier=verifier)
    with anyio.fail_after(300):
        result = await run(package, commands=[TREES[tree]])
    assert (result.status, result.reward) == ("scored", 0.0), result.error
    assert not result.notes.cleanup, result.notes.cleanup
