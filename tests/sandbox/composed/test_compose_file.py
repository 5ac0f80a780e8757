"""Reading compose files."""

from pathlib import Path

import pytest

from benchflow.errors import BenchflowError, PackageError, UnsupportedError
from benchflow.sandbox.composed.compose_file import read_compose, taken_variables
from benchflow.sandbox.composed.composition import compose_variables
from benchflow.sandbox.protocol import Limits
from benchflow.task.config.task_config import EnvironmentConfig

FULL = """
services:
  main:
    build: {context: ., args: {A: "1"}}
    command: ["sh", "-c", "sleep infinity"]
    depends_on: {db: {condition: service_healthy}}
  db:
    image: "postgres:${TAG:-16}"
    entrypoint: serve --fast
    command: [a, "b c"]
    environment: [X=1, "Y=a=b"]
    depends_on: [init]
    hostname: database
    mem_limit: 256m
    healthcheck: {test: ["CMD", "ready"], interval: 500ms, timeout: 1m30s, retries: 5, start_period: 2s}
    ports: ["5432:5432"]
  init: {image: x, environment: {"ON": true, N: 3, E: null}}
"""


def read(tmp_path: Path, text: str, **variables):
    file = tmp_path / "docker-compose.yaml"
    file.write_text(text, encoding="utf-8")
    return read_compose(file, variables)


def test_services_come_in_the_order_of_their_start(tmp_path):
    services = read(tmp_path, FULL, TAG="15")
    assert list(services) == ["init", "db", "main"]
    db = services["db"]
    assert db.image == "postgres:15"
    assert db.entrypoint == ("serve", "--fast")
    assert db.command == ("a", "b c")
    assert db.env == {"X": "1", "Y": "a=b"}
    assert db.aliases == ("database",)
    assert db.limits.memory_mb == 256
    assert db.healthcheck is not None
    assert (db.healthcheck.command, db.healthcheck.interval_sec, db.healthcheck.timeout_sec) == (("ready",), 0.5, 90.0)
    assert services["init"].env == {"ON": "true", "N": "3"}
    assert services["main"].depends_on == {"db": "service_healthy"}
    assert services["main"].build is not None
    assert services["main"].build.context == tmp_path.resolve()


def test_defaults_fill_in_and_unset_variables_are_errors(tmp_path):
    assert read(tmp_path, "services: {a: {image: '${X:-d}$$'}}")["a"].image == "d$"
    assert read(tmp_path, "services: {a: {image: '${X:-d}'}}", X="")["a"].image == "d"
    with pytest.raises(PackageError, match=r"services\.a\.image.*variable X"):
        read(tmp_path, "services: {a: {image: '${X}'}}")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("services: {a: {image: x, privileged: true}}", "services.a.privileged"),
        ("services: {a: {image: x, volumes: ['/:/host']}}", "services.a.volumes[0]"),
        ("services: {main: {volumes: ['./docker-compose.yaml:/data']}}", "services.main.volumes[0]"),
        ("services: {a: {image: x, volumes: ['.:/a:nocopy']}}", "services.a.volumes[0]"),
        ("services: {a: {image: x, volumes: [v:/a]}, b: {image: x, volumes: [v:/b]}}", "services.b.volumes[0]"),
        ("services: {a: {image: x, volumes: [v:/a, v:/b]}}", "services.a.volumes[1]"),
        ("services: {a: {image: x, deploy: {replicas: 2}}}", "services.a.deploy.replicas"),
        ("services: {main: {networks: [front]}, a: {image: x, networks: [back]}}", "services.a.networks"),
        ("services: {a: {image: x, networks: [back]}}", "services.a.networks"),
        ("services: {a: {image: x}}\nnetworks: {n: {external: true}}", "networks.n.external"),
        ("services: {a: {image: x, network_mode: host}}", "services.a.network_mode"),
        ("services: {a: {image: x}}\nvolumes: {v: {external: true}}", "volumes.v.external"),
        ("services: {main: {command: [server]}}", "services.main.command"),
        ("services: {a: {build: {context: ., ssh: x}}}", "services.a.build.ssh"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_path(tmp_path, text, path):
    with pytest.raises(UnsupportedError) as caught:
        read(tmp_path, text)
    assert caught.value.path == path


def test_the_refusal_of_a_shared_volume_names_both_places(tmp_path):
    with pytest.raises(UnsupportedError) as caught:
        read(tmp_path, "services: {main: {volumes: [v:/a]}, b: {image: x, volumes: [v:/b]}}")
    message = str(caught.value)
    assert "`services.b.volumes[0]` mounts the volume 'v' again" in message
    assert "`services.main.volumes[0]`" in message


@pytest.mark.parametrize(
    "text",
    [
        "services: {}",
        "[]",
        "a: [",
        "services: {a: 1}",
        "services: {a: {}}",
        "services: {a: {image: x, depends_on: [b]}}",
        "services: {a: {image: x, depends_on: [b]}, b: {image: x, depends_on: [a]}}",
        "services: {a: {build: ../..}}",
        "services: {a: {image: x, volumes: ['./missing:/data']}}",
        "services: {a: {image: x, volumes: ['.:data']}}",
        "services: {a: {image: x, mem_limit: much}}",
        "services: {a: {image: x, healthcheck: {test: [x]}}}",
        "services: {a: {image: x, healthcheck: {test: x, interval: soon}}}",
        "services: {a: {image: x, command: 'unclosed \"'}}",
        "services: {a: {image: x, depends_on: {b: {condition: maybe}}}}",
    ],
)
def test_broken_files_get_one_sentence(tmp_path, text):
    with pytest.raises(BenchflowError) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert caught.value.file == "docker-compose.yaml"


def test_limits_below_deploy_networks_and_volumes_of_one_service_are_read(tmp_path):
    text = """
    services:
      main:
        image: ${MAIN_IMAGE_NAME}
        command: [sh, -c, sleep infinity]
        volumes: ["${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}"]
        deploy: {resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}
      db:
        image: x
        restart: unless-stopped
        networks: {default: null, inner: {aliases: [store]}}
        volumes: [data:/var/lib/db, /cache, {type: volume, source: more, target: /other}]
    networks: {inner: {driver: bridge}}
    volumes: {data: null, more: null}
    """
    environment = EnvironmentConfig(cpus=2, memory_mb=512)
    services = read(tmp_path, text, **compose_variables(tmp_path, environment))
    assert services["main"].limits == Limits(cpus=2.0, memory_mb=512)
    assert services["db"].aliases == ("store",)
    unlimited = read(tmp_path, text, **compose_variables(tmp_path, environment) | {"CPUS": "0", "MEMORY": "0"})
    assert unlimited["main"].limits == Limits()


def test_a_variable_without_a_value_is_the_callers(tmp_path):
    text = "services: {a: {image: x, environment: [KEY, OTHER, SET=1]}, b: {image: x, environment: {KEY: null}}}"
    services = read(tmp_path, text, KEY="given")
    assert services["a"].env == {"KEY": "given", "SET": "1"}
    assert services["b"].env == {"KEY": "given"}


def test_mounts_of_the_package_are_read_with_where_they_may_be_written(tmp_path):
    (tmp_path / "conf").mkdir()
    text = """
    services:
      main: {volumes: ["./conf:/conf:ro,z"]}
      a: {image: x, volumes: ["./conf:/data", {type: bind, source: conf, target: /fixed, read_only: true}]}
    """
    services = read(tmp_path, text)
    binds = [(bind.source, bind.target, bind.read_only) for name in ("main", "a") for bind in services[name].binds]
    conf = tmp_path / "conf"
    assert binds == [(conf, "/conf", True), (conf, "/data", False), (conf, "/fixed", True)]


def test_the_variables_of_the_caller_are_those_that_the_file_names(tmp_path):
    file = tmp_path / "compose.yaml"
    file.write_text(
        "services:\n"
        "  a: {image: 'x:${TAG:-1}', command: $RUN now, environment: [LISTED, SET=1, 'FROM=$OTHER $$NONE']}\n"
        "  b: {image: x, environment: {BARE: null, GIVEN: 1}}\n"
    )
    assert taken_variables(file) == {"TAG", "RUN", "LISTED", "OTHER", "BARE"}
    file.write_text("a: [")
    assert taken_variables(file) == frozenset()
