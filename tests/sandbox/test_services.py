"""Services of an environment manifest run until they are stopped, and say why they do not."""

from types import SimpleNamespace

import pytest

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.factory import Preparation
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import Image, SandboxSpec
from benchflow.sandbox.ready_probes import HttpProbe, TcpProbe
from benchflow.sandbox.services import RunningServices, ServicePlan, ServicesPlan, plan_services
from benchflow.task.document.environment_manifest import read_manifest

SERVE = "python3 -m http.server --bind 127.0.0.1 {port}"


def manifest(text):
    found, issues = read_manifest(f"[environment]\nname = 'env'\nimage = 'x'\n{text}".encode(), file="environment.toml")
    assert issues == []
    return found


def plan(text, image=None, machine=None):
    return plan_services(manifest(text), image, machine or {}, task_id="acme/task")


def test_listed_services_are_probed_by_port_or_health_path():
    found = plan(
        "owns_lifecycle = false\n"
        "[[environment.services]]\nname = 'db'\ncommand = 'run db'\nport = 5432\n"
        "[[environment.services]]\nname = 'web'\ncommand = 'run web'\nport = 80\nhealth_path = '/up'\n"
        "[[environment.services]]\nname = 'worker'\ncommand = 'run worker'\n"
    )
    assert found.services == (
        ServicePlan("db", "run db"),
        ServicePlan("web", "run web"),
        ServicePlan("worker", "run worker"),
    )
    assert found.probes == (TcpProbe(5432), HttpProbe("http://127.0.0.1:80/up"))


def test_declared_readiness_replaces_the_services_own():
    found = plan(
        "owns_lifecycle = false\n[environment.readiness]\ntcp = [9]\nhttp = [':8/x']\ntimeout_sec = 3\n"
        "[[environment.services]]\nname = 'db'\ncommand = 'run db'\nport = 5432\n"
    )
    assert found.probes == (HttpProbe("http://127.0.0.1:8/x"), TcpProbe(9))
    assert found.timeout_sec == 3


def test_an_image_that_owns_its_lifecycle_is_started_by_its_entry_point():
    image = Image("i", "i", entrypoint=("/start",), command=("now",))
    found = plan("ports = [80]\n", image)
    assert found.services == (ServicePlan("environment", ("/start", "now")),)
    assert found.probes == (TcpProbe(80),)


def test_an_image_that_starts_nothing_cannot_become_ready():
    with pytest.raises(EnvironmentFailure, match="starts nothing"):
        plan("ports = [80]\n", Image("i", "i"))


def test_variables_come_from_the_manifest_the_machine_and_the_task():
    text = (
        "[environment.env]\nA = '1'\n[environment.forward_env]\nkeys = ['TOKEN']\n"
        "[environment.task_selection]\nmechanism = 'env_var'\n"
    )
    assert plan(text, machine={"TOKEN": "t"}).env == {"A": "1", "TOKEN": "t", "BENCHFLOW_TASK_ID": "acme/task"}
    with pytest.raises(EnvironmentFailure, match="TOKEN"):
        plan(text)


@pytest.mark.anyio
async def test_an_environment_uses_of_a_shared_catalogue_what_its_image_has(sandbox):
    catalogue = (
        "owns_lifecycle = false\n[environment.readiness]\ntimeout_sec = 60\n"
        "[[environment.services]]\nname = 'mail'\ncommand = 'no-such-mailer --port 8041'\nport = 8041\n"
        f"[[environment.services]]\nname = 'web'\ncommand = '{SERVE.format(port=8042)}'\nport = 8042\n"
    )
    shared = plan_services(manifest(catalogue), None, {}, task_id="acme/task", shared=True)
    services = RunningServices(sandbox, shared)
    await services.start()
    assert [service.name for service in services.plan.services] == ["web"]
    assert services.plan.probes == (TcpProbe(8042),)
    assert await services.failure() is None
    environment = Environment(LocalBackend(), Preparation(SimpleNamespace(), SandboxSpec()), sandbox=sandbox)
    environment.services = services
    assert environment.record().lacks == ("service mail of the shared manifest, whose program is not here",)
    await services.stop()
    with pytest.raises(EnvironmentFailure, match="none of the services"):
        await RunningServices(sandbox, shared.without({"web"})).start()


def test_probes_of_services_that_are_left_out_are_not_waited_for():
    catalogue = (
        "owns_lifecycle = false\n[environment.readiness]\ntcp = [8041, 8042, 9]\nhttp = [':8041/up', ':8042/up']\n"
        "[[environment.services]]\nname = 'mail'\ncommand = 'mailer'\nport = 8041\n"
        "[[environment.services]]\nname = 'web'\ncommand = 'server'\nport = 8042\n"
        "[[environment.services]]\nname = 'proxy'\ncommand = 'proxy'\nport = 8042\n"
    )
    left = plan_services(manifest(catalogue), None, {}, task_id="acme/task", shared=True).without({"mail", "proxy"})
    assert left.probes == (HttpProbe("http://127.0.0.1:8042/up"), TcpProbe(8042), TcpProbe(9))
    assert left.left_out == ("mail", "proxy")


@pytest.mark.anyio
async def test_services_come_up_stay_up_and_end(sandbox):
    services = RunningServices(
        sandbox,
        ServicesPlan(
            (
                ServicePlan("web", SERVE.format(port=8001)),
                ServicePlan("exact", ("python3", "-m", "http.server", "--bind", "127.0.0.1", "8002")),
            ),
            (HttpProbe("http://127.0.0.1:8001/"), TcpProbe(8002)),
            timeout_sec=60,
            env={"SECRET": "s"},
        ),
    )
    await services.start()
    await services.check()
    if "users" in sandbox.capabilities:
        assert (await sandbox.exec("cat /var/log/benchflow-services/web/log")).exit_code != 0
    assert await TcpProbe(8001).ready(sandbox)
    await services.stop()
    await services.stop()
    assert not await TcpProbe(8001).ready(sandbox)
    assert not await TcpProbe(8002).ready(sandbox)


@pytest.mark.anyio
async def test_a_service_that_ends_early_is_an_error_with_its_last_lines(sandbox):
    services = RunningServices(
        sandbox,
        ServicesPlan(
            (ServicePlan("db", "echo starting; echo no such disk >&2; exit 3"),), (TcpProbe(1),), timeout_sec=60
        ),
    )
    with pytest.raises(EnvironmentFailure, match="no such disk") as caught:
        await services.start()
    assert caught.value.code == "service-failed"
    assert "with code 3" in str(caught.value)


@pytest.mark.anyio
async def test_services_that_are_not_ready_in_time_are_ended(sandbox):
    services = RunningServices(
        sandbox,
        ServicesPlan((ServicePlan("slow", "echo waiting; sleep 1000"),), (TcpProbe(1), TcpProbe(2)), timeout_sec=0.5),
    )
    with pytest.raises(EnvironmentFailure, match="port 1, port 2") as caught:
        await services.start()
    assert caught.value.code == "unhealthy"
    assert "waiting" in str(caught.value)
    assert (await sandbox.exec("pgrep -f '[s]leep 1000'", user="root")).exit_code == 1


@pytest.mark.anyio
async def test_services_can_be_brought_up_again_in_a_fork(sandbox):
    plan = ServicesPlan((ServicePlan("web", SERVE.format(port=8003)),), (TcpProbe(8003),), timeout_sec=60)
    first = RunningServices(sandbox, plan)
    await first.start()
    copy = await sandbox.fork()
    try:
        again = RunningServices(copy, plan)
        await again.start()
        await again.stop()
    finally:
        await copy.stop()
    await first.check()
    await first.stop()
