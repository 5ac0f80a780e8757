"""Packages with a compose file, from the folder to the verdict. On the local sandbox and on real engines."""

import textwrap

import anyio
import pytest

from benchflow.environment import Environment
from benchflow.errors import PackageError, UnsupportedError
from benchflow.rewards import Scored
from benchflow.rollout.phases.step_bounds import collect
from benchflow.verifier import Verifier

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BASE = "benchcube-test/base:1"
COMPOSE = f"""\
services:
  main:
    build: .
    environment: {{GREETING: "${{WORD:-hello}}"}}
    depends_on: {{web: {{condition: service_healthy}}}}
    mem_limit: 64m
  web:
    image: {BASE}
    command: ["sh", "-c", "echo born > /dev/shm/state; nc -ll -p 8080 -e cat /dev/shm/state"]
    healthcheck: {{test: "test -e /dev/shm/state", interval: 100ms}}
"""
DOCKERFILE = f"FROM {BASE}\nRUN mkdir /work && echo built > /work/data\nWORKDIR /work\n"
ASK_WEB = "nc -w 5 web 8080 </dev/null"
FROM_WEB = """\
#!/bin/sh
[ "$(nc -w 5 web 8080 </dev/null)" = "touched" ] && [ "$(cat /work/answer)" = 42 ] && echo 1 > /logs/verifier/reward.txt
"""
IN_WEB = """\
#!/bin/sh
[ "$(nc -w 5 web 8080 </dev/null)" = "touched" ] && [ "$(cat /opt/state)" = "touched" ] && [ ! -e /work ] \\
  && ! ps | grep -q '[n]c -ll' && echo 1 > /logs/verifier/reward.txt
"""
OF_WEB = """\
#!/bin/sh
[ "$(cat /opt/report)" = "seen by touched" ] && [ ! -e /work/answer ] && echo 1 > /logs/verifier/reward.txt
"""
SEPARATE = """\
verifier:
  environment_mode: separate
  collect: [{command: "echo seen by $(cat /dev/shm/state) > /opt/report", service: web}]
artifacts: [{source: /opt/report, service: web}]
"""


@pytest.fixture
def composed(tmp_path):
    """A package with two services."""

    def make(script: str, frontmatter: str = "", compose: str = COMPOSE):
        head = f"task: {{name: acme/two}}\nenvironment: {{network_mode: no-network}}\n{frontmatter}"
        files = {
            "task.md": f"---\n{head}---\nDo.\n",
            "environment/docker-compose.yaml": compose,
            "environment/Dockerfile": DOCKERFILE,
            "verifier/test.sh": script,
        }
        for name, content in files.items():
            path = tmp_path / "task" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(content))
        return tmp_path / "task"

    return make


async def reward(environment, folder) -> float | str:
    """The verdict after the agent has put its answer down and the state of the web service was touched."""
    await environment.sandbox.service("web").exec("echo touched | tee /dev/shm/state /opt/state", user="root")
    assert (await environment.sandbox.exec("echo 42 > answer")).ok
    verdict = (await Verifier(environment, machine={}).verify(folder)).verdict
    return verdict.reward if isinstance(verdict, Scored) else verdict.reason


async def test_services_are_up_from_the_agent_to_the_verdict(bench, composed, tmp_path):
    async with await Environment.from_task(composed(FROM_WEB), sandbox=bench.backend, machine={"WORD": "hi"}) as it:
        result = await it.sandbox.exec(f"pwd; id -un; echo $GREETING; {ASK_WEB}; echo more >> data && echo mine")
        assert result.stdout.split() == [b"/work", b"agent", b"hi", b"born", b"mine"]
        assert it.sandbox.spec.limits.memory_mb == 64
        assert await reward(it, tmp_path / "out") == 1
        assert (await it.sandbox.exec(ASK_WEB)).stdout == b"touched\n"


async def test_the_verifier_works_on_a_copy_of_the_service_it_names_beside_the_services(bench, composed, tmp_path):
    folder = composed(IN_WEB, "verifier: {service: web}\n")
    async with await Environment.from_task(folder, sandbox=bench.backend, machine={}) as it:
        assert await reward(it, tmp_path / "out") == 1
        left = await it.sandbox.service("web").exec("ls -d /verifier /tests /logs/verifier")
        assert left.stdout == b""
        assert (await it.sandbox.exec(ASK_WEB)).stdout == b"touched\n"


async def test_a_separate_verifier_takes_over_what_a_service_gathered(bench, composed, tmp_path):
    async with await Environment.from_task(composed(OF_WEB, SEPARATE), sandbox=bench.backend, machine={}) as it:
        assert await reward(it, tmp_path / "out") == 1
        (kept,) = await collect(it.sandbox, it.preparation.view.config.artifacts, tmp_path / "artifacts")
        assert (kept.status, (tmp_path / "artifacts/opt/report").read_text()) == ("collected", "seen by touched\n")


async def test_a_service_that_the_file_does_not_have_is_refused(bench, composed):
    with pytest.raises(PackageError, match=r"verifier\.service.*'db'.*main, web") as caught:
        await Environment.from_task(composed(IN_WEB, "verifier: {service: db}\n"), sandbox=bench.backend, machine={})
    assert caught.value.code == "unknown-service"


async def test_what_a_compose_file_asks_for_in_vain_is_named_with_its_file(bench, composed):
    wrong = COMPOSE.replace("mem_limit: 64m", "privileged: true")
    with pytest.raises(UnsupportedError, match=r"services\.main\.privileged") as caught:
        await Environment.from_task(composed(IN_WEB, compose=wrong), sandbox=bench.backend, machine={})
    assert caught.value.file == "environment/docker-compose.yaml"


async def test_a_folder_from_outside_the_package_is_empty_here_and_the_record_says_so(bench, composed):
    folder = composed(IN_WEB, compose=COMPOSE.replace("mem_limit: 64m", "volumes: ['..:/shared']"))
    async with await Environment.from_task(folder, sandbox=bench.backend, machine={}) as it:
        result = await it.sandbox.exec("ls /shared | wc -l; touch /shared/mine && echo written")
        assert result.stdout.split() == [b"0", b"written"]
        assert it.record().lacks == ("/shared of the machine, an empty folder here",)


async def test_files_of_the_package_are_mounted_and_what_a_service_writes_to_them_stays_its_own(bench, composed):
    local = bench.backend.name == "local"
    compose = COMPOSE.replace("mem_limit: 64m", "volumes: ['./Dockerfile:/fixed/D:ro']").replace(
        f"    image: {BASE}\n", f"    image: {BASE}\n    volumes: ['./:/opt/copy{'' if local else ':ro'}']\n"
    )
    folder = composed(IN_WEB, compose=compose)
    async with await Environment.from_task(folder, sandbox=bench.backend, machine={}) as it:
        assert (await it.sandbox.exec("cat /fixed/D; echo x >> /fixed/D")).stdout == DOCKERFILE.encode()
        web = it.sandbox.service("web")
        assert (await web.exec("cat /opt/copy/Dockerfile")).stdout == DOCKERFILE.encode()
        written = await web.exec("echo more >> /opt/copy/Dockerfile", user="root")
        assert written.ok == local
    assert (folder / "environment/Dockerfile").read_text() == DOCKERFILE


async def test_a_service_that_dies_where_the_agent_cannot_reach_it_leaves_the_work_unscored(bench, composed, tmp_path):
    worker = f"""\
    services:
      worker:
        image: {BASE}
        command: ["sh", "-c", "while [ ! -e /opt/end ]; do sleep 0.05; done; echo tired; exit 3"]
    """
    one = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
    async with await Environment.from_task(composed(one, compose=worker), sandbox=bench.backend, machine={}) as it:
        found = await Verifier(it, machine={}).verify(tmp_path / "before")
        assert (found.verdict.reward, found.diagnostics) == (1, ())
        await it.sandbox.service("worker").exec("touch /opt/end", user="root")
        for _ in range(200):
            if await it.sandbox.failed_services():
                break
            await anyio.sleep(0.05)
        found = await Verifier(it, machine={}).verify(tmp_path / "after")
    if bench.backend.name == "local":
        assert (found.verdict.category, found.verdict.code) == ("environment", "service-failed")
        assert "'worker' exited with code 3. Its last lines: tired" in found.verdict.reason
    else:
        assert [note.code for note in found.diagnostics] == ["service-ended"]


async def test_a_fork_has_services_of_its_own(bench, composed):
    async with await Environment.from_task(composed(IN_WEB), sandbox=bench.backend, machine={}) as it:
        await it.sandbox.service("web").exec("echo kept > /opt/kept", user="root")
        async with await it.fork() as copy:
            await it.sandbox.service("web").exec("echo touched > /dev/shm/state", user="root")
            assert (await copy.sandbox.exec(ASK_WEB)).stdout == b"born\n"
            assert (await copy.sandbox.service("web").exec("cat /opt/kept")).stdout == b"kept\n"
        assert (await it.sandbox.exec(ASK_WEB)).stdout == b"touched\n"
