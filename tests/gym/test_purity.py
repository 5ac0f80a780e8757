"""Verifying a gym task leaks nothing to what the agent left running, and what cannot be copied is never a number."""

import pytest

from benchflow.errors import UnsupportedError
from benchflow.gym import UnscoredError

CHECK = """\
sleep 0.5
if cmp -s answer.txt {folder}/expected.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SPLIT = {
    "task.toml": 'version = "1.0"\n[task]\nname = "acme/split"\n',
    "instruction.md": "Say the word.\n",
    "tests/test.sh": CHECK.format(folder="/tests"),
    "tests/expected.txt": "hidden\n",
}
NATIVE = {
    "task.md": "---\ntask: {name: acme/native}\n---\nSay the word.\n",
    "verifier/test.sh": CHECK.format(folder="/verifier"),
    "verifier/expected.txt": "hidden\n",
}
WATCH = """\
(setsid sh -c '
  echo $$ > /tmp/watcher
  while :; do cat /tests/expected.txt /verifier/expected.txt >> /tmp/seen 2>/dev/null; sleep 0.01; done
' >/dev/null 2>&1 &)
echo watching
"""


def test_a_process_that_watches_sees_nothing_of_the_hidden_tests(gym, make_package):
    one = gym(make_package(SPLIT))
    one.reset()
    assert one.bash(WATCH) == "watching\n"
    with pytest.raises(UnscoredError, match="processes that keep running during verification") as refused:
        one.task.evaluate()
    assert (refused.value.verdict.category, refused.value.code) == ("unsupported", "live-state")
    assert one.bash("cat /tmp/seen; ls -d /tests /verifier 2>/dev/null; ls -A /logs/verifier") == ""


def test_a_process_that_nobody_asked_to_live_on_neither_ends_nor_sees_anything(gym, make_package):
    one = gym(make_package(NATIVE))
    one.reset()
    one.bash(WATCH)
    assert one.task.evaluate()[0] == 0.0
    assert one.bash("cat /tmp/seen; ls -d /tests /verifier 2>/dev/null; ls -A /logs/verifier") == ""
    assert one.bash("kill -0 $(cat /tmp/watcher) && echo watching") == "watching\n"


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_a_split_package_without_processes_is_scored_on_a_copy(gym, make_package):
    one = gym(make_package(SPLIT))
    one.reset()
    assert one.task.evaluate()[0] == 0.0
    one.bash("echo hidden > answer.txt")
    reward, info = one.task.evaluate()
    assert (reward, [note["code"] for note in info["verifier"]["diagnostics"]]) == (1.0, ["proof-no-oracle"])
    assert one.bash("ls / | grep -x -e tests -e verifier; ls -A /logs/verifier") == ""


MANIFEST = """\
[environment]
name = "desk"
image = "desk"
owns_lifecycle = false
[[environment.services]]
name = "web"
command = "exec python3 -m http.server --bind 127.0.0.1 8123"
port = 8123
"""


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.xdist_group("gym")
def test_an_environment_with_services_is_verified_beside_them_and_not_forked(gym, make_package):
    text = (
        "---\ntask: {name: acme/served}\nbenchflow: {environment: {manifest: environment.toml}}\n---\nSay the word.\n"
    )
    check = (
        NATIVE["verifier/test.sh"]
        + "curl -sf -o /dev/null http://127.0.0.1:8123/ || echo 0.5 > /logs/verifier/reward.txt\n"
    )
    one = gym(make_package({**NATIVE, "task.md": text, "environment.toml": MANIFEST, "verifier/test.sh": check}))
    one.reset()
    one.bash(WATCH)
    assert one.task.evaluate()[0] == 0.0
    one.bash("echo hidden > answer.txt")
    assert one.task.evaluate()[0] == 1.0
    with pytest.raises(UnsupportedError, match="cannot be forked"):
        one.task.fork()
    assert one.bash(
        "cat /tmp/seen; ls -d /verifier 2>/dev/null; ls -A /logs/verifier; "
        "curl -sf -o /dev/null http://127.0.0.1:8123/ && echo up"
    ) == ("up\n")
