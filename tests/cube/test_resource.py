"""Resources, the contract of infrastructures, the store of what was provisioned, and how benchmarks use them."""

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import cube
from counter_cube.benchmark import CounterBenchmark, CounterBenchmarkConfig
from cube.composite import CompositeBenchmarkConfig
from cube.container import Container, ContainerConfig, ContainerLaunchError
from cube.core import ConfigRegistry, ValidatedConfig
from cube.infra_local import LocalInfraConfig
from cube.provision_store import ProvisionStore, provision_key
from cube.resource import (
    DockerImageConfig,
    DockerServiceConfig,
    IncompatibleInfraError,
    InfraConfig,
    ResourceConfig,
    ResourceHandle,
    ResourceNotReadyError,
    UnsupportedResourceType,
    VMResourceConfig,
    VolumeSpec,
)
from cube.task_infra import launch_task_container


class Opened(ResourceHandle):
    closed = 0

    def close(self):
        self.closed += 1


class Place(InfraConfig):
    """Records what is asked of it; `offers` is what it says it has."""

    offers: set[str] = {"docker"}
    provisioned: list[str] = []
    handles: list = []

    def fingerprint(self):
        return "place"

    def capabilities(self):
        return self.offers

    def provision(self, resource):
        self.provisioned.append(resource.name)
        self.register(resource, {"at": "here"})

    def launch(self, resource):
        if self.provision_status(resource) != "ready":
            raise ResourceNotReadyError(resource, self)
        self.handles.append(Opened(resource=resource, infra=self))
        return self.handles[-1]

    def list_active(self, run_id=None):
        return []

    def cleanup(self, run_id):
        pass

    def cleanup_stale(self, max_age_seconds=None):
        return []


class Sharing(CounterBenchmark):
    """Launches what its tasks share, and fails if it is asked to."""

    def _setup(self):
        self.shared = self._infra.launch(self.config.resources[0])
        if self.config.fails:
            raise RuntimeError("no seat left")

    def close(self):
        if hasattr(self, "shared"):
            self.shared.close()


class SharingConfig(CounterBenchmarkConfig):
    benchmark_class = Sharing
    fails: bool = False


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("cube._CUBE_CACHE_ROOT", tmp_path)
    monkeypatch.setattr("cube.provision_store._DEFAULT_STORE_DIR", tmp_path / "provisions")
    return ProvisionStore()


def test_the_package_offers_resources_and_stays_light():
    script = "import sys, cube; print('pydantic' in sys.modules); print(cube.LocalInfraConfig.__name__)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "LocalInfraConfig"]
    assert all(getattr(cube, name) is not None for name in cube.__all__)


def test_every_kind_survives_json_and_says_what_it_needs():
    volume = VolumeSpec(name="data", mount_path="/data")
    kinds = [
        (ResourceConfig(name="a"), set()),
        (VMResourceConfig(name="b"), {"kvm"}),
        (VMResourceConfig(name="c", requires_kvm=False), set()),
        (DockerServiceConfig(name="d", services={"web": 80}, volumes=[volume]), {"docker"}),
        (DockerImageConfig(name="e", image="debian", gpu=True), {"docker", "gpu:nvidia"}),
    ]
    for resource, needed in kinds:
        assert ResourceConfig.model_validate_json(resource.model_dump_json()) == resource
        assert resource.requirements() == needed
    config = CounterBenchmarkConfig(resources=[resource for resource, _ in kinds])
    assert type(config).model_validate_json(config.model_dump_json()) == config


def test_a_benchmark_provisions_once_and_publishes_its_infrastructure():
    place = Place(provisioned=[], handles=[])
    config = SharingConfig(resources=[DockerImageConfig(name="db", image="x", scope="benchmark")])
    for _ in range(2):
        with config.make(infra=place) as benchmark:
            assert benchmark._runtime_context["infra"] is place
            assert benchmark._infra is place
    assert place.provisioned == ["db"]
    assert [handle.closed for handle in place.handles] == [1, 1]


def test_a_setup_that_fails_closes_what_it_had_launched():
    place = Place(provisioned=[], handles=[])
    config = SharingConfig(resources=[DockerImageConfig(name="db", image="x")], fails=True)
    with pytest.raises(RuntimeError, match="no seat left"):
        config.make(infra=place)
    assert [handle.closed for handle in place.handles] == [1]


def test_what_an_infrastructure_lacks_is_refused_before_anything_is_provisioned():
    place = Place(provisioned=[])
    config = CounterBenchmarkConfig(resources=[DockerImageConfig(name="db", image="x"), VMResourceConfig(name="vm")])
    with pytest.raises(IncompatibleInfraError, match="Resource 'vm' needs kvm, which place does not have"):
        config.make(infra=place)
    assert place.provisioned == []


def test_an_infrastructure_that_lies_about_itself_fails_where_it_lied():
    class Liar(Place):
        def provision(self, resource):
            raise UnsupportedResourceType(self, resource, "there is no hypervisor")

    config = CounterBenchmarkConfig(resources=[VMResourceConfig(name="vm")])
    with pytest.raises(UnsupportedResourceType, match="Liar does not support VMResourceConfig 'vm': there is no hyper"):
        config.make(infra=Liar(offers={"kvm"}))


def test_parts_of_a_composite_get_its_infrastructure():
    place = Place(handles=[])
    part = SharingConfig(resources=[DockerImageConfig(name="db", image="x")])
    with CompositeBenchmarkConfig(sub_bench_configs=[part]).make(infra=place) as suite:
        (live,) = suite.sub_benchmarks.values()
        assert live._infra is place
    assert [handle.closed for handle in place.handles] == [1]
    with pytest.raises(ValueError, match="resources"):
        CompositeBenchmarkConfig(sub_bench_configs=[part], resources=part.resources)


def test_a_launch_without_a_container_is_closed_and_reported():
    place = Place(handles=[])
    with pytest.raises(ContainerLaunchError, match="Place launched 'task one' without a container"):
        launch_task_container({"infra": place}, name="task one", image="debian")
    assert [handle.closed for handle in place.handles] == [1]
    script = place.handles[0].resource.launch_script
    assert script.splitlines()[1] == "docker run -d --name task-one --memory 4096m --cpus 2 debian sleep infinity"
    with pytest.raises(KeyError):
        launch_task_container({}, name="task", image="debian")


def test_a_container_is_a_handle_of_itself():
    assert issubclass(Container, ResourceHandle)
    assert ContainerConfig(image="x").model_dump()["ram_gb"] == 4.0


def test_records_are_kept_apart_and_a_damaged_one_counts_as_missing(store, caplog):
    place = Place()
    names = ["a/b", "a_b", "../../etc", "x" * 300, "x" * 301, ".hidden", "ä"]
    for name in names:
        store.put(provision_key(ResourceConfig(name=name), place), {"name": name})
    assert [store.get(f"{name}@place") for name in names] == [{"name": name} for name in names]
    assert all(path.parent == store.path for path in store.path.iterdir())
    assert sorted(key for key, _ in store.list()) == sorted(f"{name}@place" for name in names)
    file = next(path for path in store.path.iterdir() if json.loads(path.read_text())["key"] == "a_b@place")
    for damaged in (b"{", b"[]", b"\xff", b'{"key": 1, "info": {}}', b""):
        file.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            assert store.get("a_b@place") is None
        assert str(file) in caplog.text
    assert len(store.list()) == len(names) - 1
    assert place.provision_status(ResourceConfig(name="a_b")) == "needs_provisioning"
    assert (store.delete("a/b@place"), store.delete("a/b@place")) == (True, False)


def test_concurrent_writers_leave_one_whole_record(store):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put("db@place", {"number": number, "pad": "x" * 5000}), range(200)))
        pool.map(lambda _: store.get("db@place")["pad"], range(50))
    assert store.get("db@place")["pad"] == "x" * 5000
    assert [path.suffix for path in store.path.iterdir()] == [".json"]


def test_replacing_a_record_is_reported(caplog):
    place, resource = Place(), ResourceConfig(name="db")
    place.register(resource, {"at": "here"})
    place.register(resource, {"at": "here"})
    assert not caplog.records
    place.register(resource, {"at": "there"})
    assert "'db@place' is replaced" in caplog.text


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (VMResourceConfig(name="vm", bootstrap_script_extra="x"), "does not support VMResourceConfig 'vm'"),
        (DockerImageConfig(name="gpu", image="x", gpu=True), "needs a GPU"),
        (ResourceConfig(name="else"), "does not support ResourceConfig 'else'"),
        (DockerImageConfig(name="tar", image="x", source_url="http://x"), "`source_url` is for virtual machines"),
        (
            DockerServiceConfig(name="map", volumes=[VolumeSpec(name="v", mount_path="/v", source_url="http://x")]),
            "the volumes v are filled from archives",
        ),
    ],
)
def test_what_this_machine_cannot_provide_is_refused_in_one_sentence(resource, message):
    infra = LocalInfraConfig()
    assert message in infra.refusal(resource)
    assert not infra.can_serve(resource)
    for call in (infra.launch, infra.provision):
        with pytest.raises((UnsupportedResourceType, IncompatibleInfraError), match=message):
            call(resource)
    assert infra.list_active() == []


def test_a_sandbox_that_nothing_provides_is_named():
    infra = LocalInfraConfig(sandbox="submarine")
    assert infra.capabilities() == set()
    assert "'submarine'; available:" in infra.refusal(DockerImageConfig(name="db", image="x"))
    assert InfraConfig.model_validate_json(infra.model_dump_json()) == infra


def test_settings_of_this_machine_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("CUBE_SANDBOX", "podman")
    monkeypatch.setenv("CUBE_BASE_IMAGE", "host")
    monkeypatch.setenv("CUBE_NETWORK", "none")
    infra = LocalInfraConfig()
    assert (infra.sandbox, infra.base_image, infra.network, infra.fingerprint()) == (
        "podman", "host", "none", "local-podman",
    )  # fmt: skip


def test_a_registry_hands_out_copies_and_assignments_are_validated():
    class Settings(ValidatedConfig):
        names: list[str] = []
        count: int = 0

    registry = ConfigRegistry({"default": Settings(names=["a"])})
    registry["default"].names.append("b")
    assert registry["default"].names == ["a"]
    assert (list(registry), len(registry), "default" in registry) == (["default"], 1, True)
    with pytest.raises(KeyError, match="Unknown config 'x'. Available: \\['default'\\]"):
        registry["x"]
    with pytest.raises(ValueError, match="count"):
        registry["default"].count = "many"
