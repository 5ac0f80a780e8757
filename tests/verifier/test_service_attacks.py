"""Services that survive into verification and attack it, as root and as the agent: none reaches the verifier's box."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

CHECK = """\
    #!/bin/sh
    sleep 0.7
    cmp -s /app/answer.txt /verifier/expected.txt && r=1 || r=0
    echo $r > /logs/verifier/reward.txt
    """
FILES = {"verifier/test.sh": CHECK, "verifier/expected.txt": "hidden\n"}
SERVICES = "verifier: {isolation: services, env: {JUDGE_KEY: key-of-the-judge}}\n"

WAITS = """\
    mkdir -p /srv/spy && cd /srv/spy 2>/dev/null || cd /tmp
    cat > /tmp/daemon.sh <<'END'
    while :; do
      cat /verifier/expected.txt /tests/expected.txt 2>/dev/null > /app/answer.txt.new
      [ -s /app/answer.txt.new ] && cp /app/answer.txt.new /app/answer.txt && touch /tmp/seen
      rm -f /app/answer.txt.new
      [ -d /logs/verifier ] && echo 1 > /logs/verifier/reward.txt && touch /tmp/seen
      grep -l key-of-the-judge /proc/[0-9]*/environ 2>/dev/null | grep -q . && touch /tmp/seen
      for p in /proc/[0-9]*; do
        words=$(tr '\\0' ' ' 2>/dev/null < $p/cmdline)
        case $words in *verifier/test.sh*) kill -9 ${p#/proc/}; touch /tmp/seen;; esac
      done
      [ -d /run/verifier-ground ] && touch /tmp/seen
      sleep 0.01
    done
    END
    setsid nohup sh /tmp/daemon.sh >/dev/null 2>&1 </dev/null &
    """


@pytest.mark.parametrize("user", ["root", None])
@pytest.mark.parametrize("soft", [False, True])
async def test_a_daemon_that_waits_for_the_hidden_tests_does_not_score(bench, package, user, soft):
    async with bench(package(SERVICES, FILES)) as it:
        await it.agent(WAITS, user=user)
        found = await it.verify(soft=soft)
        assert found.verdict.reward == 0, (it.output / "test-stdout.txt").read_text()
        await it.agent("[ ! -e /tmp/seen ]")


async def test_the_daemon_would_reach_a_verifier_in_its_own_box(bench, package):
    """The control: what the others show is not that the daemon is broken."""
    async with bench(package(SERVICES.replace("services", "open"), FILES)) as it:
        await it.agent(WAITS.replace("kill -9 ${p#/proc/}; ", ""), user="root")
        await it.verify()
        await it.agent("[ -e /tmp/seen ]")


SERVES = """\
    #!/bin/sh
    mkdir /tmp/own && echo real > /tmp/own/page
    python3 -m http.server 8123 --bind %s --directory /tmp/own >/dev/null 2>&1 &
    for try in $(seq 100); do
      [ "$(curl -sf http://127.0.0.1:8123/page)" = real ] && break
      sleep 0.1
    done
    [ "$(curl -sf http://127.0.0.1:8124/page)" = forged ] && echo 1 > /tmp/other
    [ "$(curl -sf http://127.0.0.1:8123/page)" = real ] && [ -e /tmp/other ] && r=1 || r=0
    echo $r > /logs/verifier/reward.txt
    """


@pytest.mark.parametrize("address", ["::"])
async def test_what_a_verifier_serves_itself_stands_before_a_service_of_the_agent(bench, package, address):
    async with bench(package(SERVICES, {"verifier/test.sh": SERVES % address})) as it:
        page = "mkdir /tmp/web; echo forged > /tmp/web/page; "
        serve = "setsid nohup python3 -m http.server %d --directory /tmp/web >/dev/null 2>&1 </dev/null & "
        await it.agent(page + serve % 8123 + serve % 8124)
        await it.agent("until curl -sf 127.0.0.1:8123/page && curl -sf 127.0.0.1:8124/page; do sleep 0.05; done")
        found = await it.verify()
        assert found.verdict.reward == 1, (it.output / "test-stdout.txt").read_text()


SPLIT = {
    "task.toml": '[task]\nname = "acme/split"\n[verifier]\nisolation = "services"\n',
    "instruction.md": "Say the word.\n",
    "tests/test.sh": CHECK.replace("    ", "").replace("/verifier/expected", "/tests/expected"),
    "tests/expected.txt": "hidden\n",
}


async def test_the_same_daemon_does_not_score_in_a_split_package(bench, tmp_path):
    for name, content in SPLIT.items():
        path = tmp_path / "split" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    async with bench(tmp_path / "split") as it:
        await it.agent(WAITS, user="root")
        found = await it.verify()
        assert (found.verdict.reward, found.isolation.rung) == (0, "services")
        await it.agent("[ ! -e /tmp/seen ]")


CONNECTS_BACK = """\
    cat > /tmp/back.py <<'END'
    import socket, time
    while True:
        for address in ("127.0.0.1", "198.19.255.254", "198.19.255.253"):
            try:
                socket.create_connection((address, 9999), 0.2).sendall(b"from the agent")
            except OSError:
                pass
        try:
            s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + "verifier"); s.sendall(b"from the agent")
        except OSError:
            pass
        time.sleep(0.01)
    END
    setsid nohup python3 /tmp/back.py >/dev/null 2>&1 </dev/null &
    """
LISTENS = """\
    #!/bin/sh
    cat > /tmp/listen.py <<'END'
    import select, socket
    tcp = socket.create_server(("0.0.0.0", 9999))
    unix = socket.socket(socket.AF_UNIX); unix.bind(chr(0) + "verifier"); unix.listen()
    reached, _, _ = select.select([tcp, unix], [], [], 1)
    print(1 if reached else 0)
    END
    python3 /tmp/listen.py > /logs/verifier/reward.txt
    """


@pytest.mark.parametrize("network", ["no-network", "public"])
async def test_services_cannot_connect_to_the_verifier(bench, package, network):
    settings = f"verifier: {{isolation: services, network_mode: {network}}}\nenvironment: {{network_mode: {network}}}\n"
    async with bench(package(settings, {"verifier/test.sh": LISTENS})) as it:
        await it.agent(CONNECTS_BACK, user="root")
        assert (await it.verify()).verdict.reward == 0


SILENT = """\
    cat > /tmp/silent.py <<'END'
    import socket, time
    server = socket.create_server(("127.0.0.1", 8001), backlog=512)
    open("/tmp/up", "w").close()
    kept = []
    while True:
        kept.append(server.accept())
        kept[-1][0].send(b"H")
    END
    setsid nohup python3 /tmp/silent.py >/dev/null 2>&1 </dev/null &
    while [ ! -e /tmp/up ]; do sleep 0.05; done
    """
ASKS_OFTEN = """\
    #!/bin/sh
    for i in $(seq 150); do timeout 0.02 curl -s http://127.0.0.1:8001/ >/dev/null; done
    curl -s --max-time 2 http://127.0.0.1:8001/ >/dev/null; echo $?
    echo 0 > /logs/verifier/reward.txt
    """


async def test_a_service_that_answers_slowly_and_never_closes_does_not_stop_the_verifier(bench, package):
    async with bench(package("verifier: {isolation: services}\n", {"verifier/test.sh": ASKS_OFTEN})) as it:
        await it.agent(SILENT)
        assert (await it.verify()).verdict.reward == 0


SOCKETS = """\
    mkdir -p /logs/verifier /verifier /tests 2>/dev/null
    cat > /tmp/sockets.py <<'END'
    import os, socket, time
    os.makedirs("/tmp/way", exist_ok=True)
    for link, place in (("/tmp/way/logs", "/logs/verifier"), ("/tmp/way/up", "/")):
        os.path.islink(link) or os.symlink(place, link)
    kept = []
    for path in ("/logs/verifier/reward.txt", "/verifier/test.sh", "/tmp/way/logs/reward.json", "/tmp/way/up/tests/x"):
        s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(); kept.append(s)
    open("/tmp/up", "w").close()
    time.sleep(600)
    END
    setsid nohup python3 /tmp/sockets.py >/dev/null 2>/tmp/err </dev/null &
    while [ ! -e /tmp/up ]; do sleep 0.05; done
    """


async def test_a_socket_never_takes_the_place_of_a_reward_or_of_the_verifiers_files(bench, package):
    async with bench(package("verifier: {isolation: services}\n", {"verifier/test.sh": CHECK, **FILES})) as it:
        await it.agent(SOCKETS, user="root")
        found = await it.verify()
        assert found.verdict.reward == 0
        assert "not-forwarded" in [issue.code for issue in found.diagnostics]
        await it.agent("echo hidden > /app/answer.txt")
        assert (await it.verify()).verdict.reward == 1
