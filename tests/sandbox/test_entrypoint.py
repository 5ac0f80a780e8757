"""The entry point of an image runs before the agent, and what it starts lives as long as the environment."""

import pytest

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.entrypoint import only_waits, read_processes

pytestmark = pytest.mark.anyio

SERVE = "python3 -m http.server --bind 127.0.0.1 8099 >/dev/null 2>&1"
ASK = "curl -fsS http://127.0.0.1:8099/ >/dev/null && echo up || echo down"


@pytest.fixture
def start(backend, make_package):
    """Starts the environment of a Dockerfile whose entry point is the given script."""

    async def start(script, *instructions, config=""):
        lines = ["FROM any:1", "WORKDIR /srv/work", "COPY --chmod=755 start /start", *instructions]
        files = {
            "environment/Dockerfile": "\n".join([*lines, 'ENTRYPOINT ["/start"]', 'CMD ["touch", "/never"]', ""]),
            "environment/start": f"#!/bin/sh\n{script}\n",
        }
        package = make_package(f"environment:\n  network_mode: no-network\n{config}", files)
        return await Environment.from_task(package, sandbox=backend, base_image="host")

    return start


async def said(environment, command):
    return (await environment.sandbox.exec(command, user="root")).stdout.decode()


async def test_one_that_hands_over_runs_before_the_agent_and_is_ended(start):
    async with await start(
        'echo "$PWD $(id -un) $GREETING $*" >/made\necho done; exec "$@"', "ENV GREETING=hi"
    ) as found:
        assert await said(found, "cat /made; ls /never /var/log/benchflow-services 2>&1 | grep -c 'No such'") == (
            "/srv/work root hi sh -c sleep infinity\n2\n"
        )
        assert (found.services, found.entrypoint.log) == (None, b"done\n")
        assert not await found.sandbox.has_processes()
        assert {change.path for change in found.brought} >= {"/made"}


async def test_what_it_started_keeps_running_as_the_user_of_the_image(start):
    script = f'{SERVE} &\nid -un >/srv/work/who\nexec "$@"'
    create = "RUN useradd -u 1000 app && chown app /srv/work"
    async with await start(
        script, create, "USER app", "HEALTHCHECK --interval=50ms CMD " + ASK + " | grep up"
    ) as found:
        assert await said(found, f"cat who; {ASK}") == "app\nup\n"
        assert found.services is found.entrypoint
        assert found.services.users == {"app"}
        assert await found.services.failure() is None


async def test_one_that_goes_into_the_background_has_not_failed(start):
    script = f"setsid {SERVE} & until {ASK} | grep -q up; do sleep 0.05; done; exit 0"
    async with await start(script) as found:
        assert await said(found, ASK) == "up\n"
        assert found.services is found.entrypoint


async def test_one_that_fails_is_an_error_with_its_last_lines(start):
    with pytest.raises(EnvironmentFailure, match=r"(?s)entry point.*with code 3.*no database") as caught:
        await start("echo no database >&2; exit 3")
    assert caught.value.code == "entrypoint-failed"


async def test_a_failure_ends_the_wait_for_the_healthcheck(start):
    check = "HEALTHCHECK --interval=50ms --retries=100000 CMD false"
    with pytest.raises(EnvironmentFailure, match=r"with code 4"):
        await start("sleep 0.3; exit 4", check)


async def test_an_unhealthy_environment_shows_what_the_entry_point_printed(start):
    check = "HEALTHCHECK --interval=10ms --retries=1 CMD false"
    with pytest.raises(EnvironmentFailure, match=r"(?s)healthcheck.*still loading"):
        await start("echo still loading; exec sleep 600", check)


def table(*rows):
    """Processes as they are printed: id, parent, words; the question is asked by 90, below 80."""
    asking = ["80 1 S init", "81 1 S sandbox\x1fserve\x1f2\x1f", "90 80 S sh", "91 90 R tr"]
    return read_processes(["90", "1 0 S init", *asking, *rows])


IDLE = "12 11 S sleep\x1finfinity\x1f"


@pytest.mark.parametrize(
    ("rows", "waits"),
    [
        ((), True),
        (("11 1 S sh\x1f-c\x1fwrapper\x1f", IDLE), True),
        (("10 1 S sh\x1f", "11 10 S tini\x1f--\x1fsh\x1f-c\x1fsleep infinity\x1f", IDLE), True),
        (("11 1 S sh\x1f", IDLE, "13 11 S nginx\x1f"), False),
        (("11 1 S sh\x1f", IDLE, "13 1 Z [nginx]"), True),
        (("11 1 S sh\x1f/start\x1f",), False),
    ],
)
def test_it_waits_if_every_process_is_idle_or_above_one_that_is(rows, waits):
    assert only_waits(table(*rows)) is waits
