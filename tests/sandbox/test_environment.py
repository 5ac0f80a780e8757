"""`Environment.from_task` gives the started sandbox of a package, or refuses before anything starts."""

import pytest

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure, InfrastructureFailure, PackageError, UsageError
from benchflow.record import SandboxPart
from benchflow.sandbox.backends import BUILT_IN
from benchflow.sandbox.factory import choose_backend, needs_image, task_package
from benchflow.sandbox.local.local_backend import LocalBackend
from benchflow.sandbox.protocol import CAPABILITIES, BackendStatus, Missing
from benchflow.sandbox.pulling import PullSettings
from benchflow.task.runtime_capabilities import COMPOSE_FILES, UnsupportedTaskFeatureError

pytestmark = pytest.mark.anyio


async def start(backend, package, **options):
    return await Environment.from_task(package, sandbox=backend, **options)


async def test_a_package_without_image_runs_on_this_machines_userland(backend, make_package):
    package = make_package("environment:\n  network_mode: no-network\n  workdir: /work/here\n  env: {A: '${B:-b}'}\n")
    async with await start(backend, package, machine={}) as environment:
        result = await environment.sandbox.exec("pwd; echo $A; touch mine; id -un")
        assert result.stdout == b"/work/here\nb\nagent\n"
        assert environment.record() == SandboxPart("local", "host", "exact")


async def test_a_dockerfile_on_the_host_is_recorded_as_substituted(backend, make_package):
    files = {
        "environment/Dockerfile": "FROM nobody:1\nWORKDIR /srv/app\nCOPY data .\nENV X=1\n",
        "environment/data": "d",
    }
    package = make_package("environment:\n  network_mode: no-network\n", files)
    async with await start(backend, package, base_image="host") as environment:
        result = await environment.sandbox.exec("pwd; cat data; echo $X; echo more >> data")
        assert (result.exit_code, result.stdout) == (0, b"/srv/app\nd1\n")
        assert environment.record() == SandboxPart("local", "host", "substituted", instead_of=("nobody:1",))


async def test_an_unknown_base_image_is_refused_with_its_line(backend, make_package):
    package = make_package("", {"environment/Dockerfile": "# first\nFROM nobody:1\n"})
    with pytest.raises(EnvironmentFailure, match="bench images add nobody:1") as caught:
        await start(backend, package)
    assert (caught.value.file, caught.value.line) == ("environment/Dockerfile", 2)


async def test_a_named_image_is_resolved_or_substituted(backend, make_package):
    package = make_package("environment:\n  docker_image: nobody:1\n  network_mode: no-network\n")
    with pytest.raises(EnvironmentFailure, match="nobody:1"):
        await start(backend, package)
    async with await start(backend, package, base_image="host") as environment:
        assert environment.record().fidelity == "substituted"


async def test_a_missing_variable_stops_the_launch(backend, make_package):
    package = make_package("environment:\n  env: {A: '${NOT_SET_ANYWHERE}'}\n")
    with pytest.raises(EnvironmentFailure, match="NOT_SET_ANYWHERE"):
        await start(backend, package, machine={})


async def test_a_healthcheck_is_waited_for(backend, make_package):
    package = make_package(
        "environment:\n  network_mode: no-network\n  healthcheck:\n"
        "    command: 'test -e /tmp/seen || { touch /tmp/seen; exit 1; }'\n    interval_sec: 0.01\n"
    )
    async with await start(backend, package) as environment:
        assert (await environment.sandbox.exec("ls /tmp/seen")).ok


async def test_an_unhealthy_environment_is_an_error_and_leaves_nothing(backend, make_package):
    package = make_package(
        "environment:\n  network_mode: no-network\n  healthcheck: {command: 'echo sick; false', interval_sec: 0.01}\n"
    )
    with pytest.raises(EnvironmentFailure, match="sick") as caught:
        await start(backend, package)
    assert caught.value.code == "unhealthy"


async def test_services_of_a_manifest_are_up_when_the_environment_is(backend, make_package):
    manifest = (
        "[environment]\nname = 'web'\nbase_image = 'host-only'\nowns_lifecycle = false\n"
        "[[environment.services]]\nname = 'web'\ncommand = 'python3 -m http.server 8080'\nport = 8080\n"
    )
    package = make_package(
        "environment:\n  network_mode: no-network\nbenchflow:\n  environment: {manifest: environment.toml}\n",
        {"environment.toml": manifest},
    )
    async with await start(backend, package, base_image="host") as environment:
        result = await environment.sandbox.exec("curl -fsS http://127.0.0.1:8080/ >/dev/null && echo up")
        assert result.stdout == b"up\n"


async def test_agent_assets_are_mounted_read_only(backend, make_package):
    package = make_package(
        "environment:\n  network_mode: no-network\nbenchflow:\n  assets:\n"
        "    - {path: data, visibility: agent, mount_phase: agent, target: /data}\n",
        {"data/set.csv": "1,2"},
    )
    async with await start(backend, package) as environment:
        result = await environment.sandbox.exec("cat /data/set.csv; echo x > /data/set.csv", user="root")
        assert result.stdout == b"1,2"
        assert result.exit_code != 0


async def test_what_no_local_sandbox_can_honour_is_refused_before_anything_starts(make_package):
    class Untouchable:
        name = "local"
        declared = LocalBackend.declared

        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

    package = make_package("environment:\n  gpus: 1\n")
    with pytest.raises(UnsupportedTaskFeatureError, match="gpus"):
        await start(Untouchable(), package)


@pytest.mark.parametrize("name", COMPOSE_FILES)
async def test_a_compose_file_may_have_any_of_its_names(backend, make_package, name):
    files = {f"environment/{name}": "services: {main: {environment: {X: one}}}\n", "environment/Dockerfile": "FROM x\n"}
    package = make_package("environment:\n  network_mode: no-network\n", files)
    assert needs_image(task_package(package))
    async with await start(backend, package, base_image="host") as environment:
        assert (await environment.sandbox.exec("echo $X")).stdout == b"one\n"


async def test_a_service_without_a_compose_file_is_refused(make_package):
    class Composing:
        name = "docker"
        declared = frozenset(CAPABILITIES)
        pulling = PullSettings()

        async def status(self):
            return BackendStatus("docker", True, None, frozenset(CAPABILITIES))

    with pytest.raises(PackageError, match=r"verifier\.service names the service 'db'.*no compose file"):
        await start(Composing(), make_package("verifier:\n  service: db\n"))


async def test_what_this_machine_lacks_is_refused_only_when_declared(backend, make_package):
    class Lacking:
        name = "local"
        declared = LocalBackend.declared
        create = backend.create

        async def status(self):
            capable = (await backend.status()).capabilities - {"limits.memory"}
            return BackendStatus("local", True, None, capable, (Missing("limits.memory", "mount cgroups"),))

    with pytest.raises(UnsupportedTaskFeatureError, match="mount cgroups") as caught:
        await start(Lacking(), make_package("environment:\n  memory_mb: 100\n"))
    assert caught.value.features[0].path == "environment.memory_mb"


async def test_an_unusable_backend_says_why(make_package):
    class Broken:
        name = "local"
        declared = LocalBackend.declared

        async def status(self):
            return BackendStatus("local", False, "no namespaces; do this", frozenset())

    with pytest.raises(InfrastructureFailure, match="no namespaces; do this"):
        await start(Broken(), make_package())


async def test_an_invalid_package_is_refused(make_package):
    with pytest.raises(PackageError, match="cpuz") as caught:
        task_package(make_package("environment:\n  cpuz: 1\n"))
    assert caught.value.line


async def test_an_unknown_sandbox_is_wrong_usage(make_package):
    with pytest.raises(UsageError, match="available: local, docker, podman"):
        await Environment.from_task(make_package(), sandbox="nonsense")


IMAGES = [
    ("environment:\n  docker_image: x\n", {}),
    ("", {"environment/Dockerfile": "FROM x"}),
    ("", {"environment/docker-compose.yaml": "services: {main: {image: x}}"}),
]
DOCKERFILE, COMPOSE = IMAGES[1:]


@pytest.fixture
def working(monkeypatch):
    """Which backends work on this machine, and what they support, whatever the machine is."""

    def set_to(**capabilities):
        async def status(backend):
            return BackendStatus(backend.name, backend.name in capabilities, None, capabilities.get(backend.name, ()))

        monkeypatch.setattr("benchflow.sandbox.factory.status_of", status)

    return set_to


async def chosen(package, **options):
    return (await choose_backend(package, "auto", **options)).name


@pytest.mark.parametrize(("frontmatter", "files"), [*IMAGES, ("", {}), ("", {"environment/readme.txt": "x"})])
async def test_auto_stays_local_without_an_image_or_with_a_substitute(make_package, working, frontmatter, files):
    working(docker=BUILT_IN, podman=BUILT_IN)
    package = task_package(make_package(frontmatter, files))
    assert needs_image(package) is ((frontmatter, files) in IMAGES)
    assert await chosen(package, base_image="host") == "local"
    assert needs_image(package) or await chosen(package) == "local"


@pytest.mark.parametrize(("frontmatter", "files"), IMAGES[:2])
async def test_auto_takes_local_for_images_too_even_where_an_engine_runs(make_package, working, frontmatter, files):
    working(local=BUILT_IN, docker=BUILT_IN, podman=BUILT_IN)
    assert await chosen(task_package(make_package(frontmatter, files))) == "local"


async def test_auto_takes_an_engine_where_local_does_not_work_or_lacks_something(make_package, working):
    package = task_package(make_package("environment:\n  memory_mb: 512\n", DOCKERFILE[1]))
    working(podman=BUILT_IN)
    assert await chosen(package) == "podman"
    working(local=BUILT_IN - {"limits.memory"}, docker=BUILT_IN)
    assert await chosen(package) == "docker"
    working(local=BUILT_IN - {"limits.memory"})
    assert await chosen(package) == "local"


async def test_auto_takes_a_running_engine_for_a_compose_file(make_package, working):
    package = task_package(make_package(*COMPOSE))
    working(local=BUILT_IN, podman=BUILT_IN)
    assert await chosen(package) == "podman"
    working(local=BUILT_IN)
    assert await chosen(package) == "local"


async def test_root_may_use_git_in_a_folder_that_was_given_to_the_agent(backend, make_package):
    files = {"environment/Dockerfile": "FROM any:1\nWORKDIR /srv/work\nRUN git init -q . && chmod -R a+rX .\n"}
    package = make_package("environment:\n  network_mode: no-network\n", files)
    async with await start(backend, package, base_image="host") as environment:
        for user in ("root", None):
            result = await environment.sandbox.exec("stat -c %U .git; git status --porcelain", user=user)
            assert (result.exit_code, result.stdout) == (0, b"agent\n"), result.stderr
