"""Virtual machines on this machine: what is refused, real guests without KVM, and how they end."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from tiny_guest import GuestUnavailable, tiny_guest

from cube.infra_local import LocalInfraConfig
from cube.qemu import qemu_host
from cube.qemu.machine_command import MachineSettings, machine_command
from cube.resource import IncompatibleInfraError, UnsupportedResourceType, VMResourceConfig
from cube.vm import VM, VMBackend, VMConfig, VMError, VMLaunchError

PRINT = bytes.fromhex("31c0 8ed8 be207c ac 84c0 7406 baf803 ee ebf5")
"""Code of a boot sector that prints its text on the console."""
HALT = bytes.fromhex("f4 ebfd")
POWER_OFF = bytes.fromhex("ba0406 b80020 ef") + HALT


def boot_sector(path: Path, then: bytes) -> Path:
    code = (PRINT + then).ljust(32, b"\0") + b"No agent on this disk\r\n\0"
    path.write_bytes(code.ljust(510, b"\0") + b"\x55\xaa" + bytes(2 << 20))
    return path


@pytest.fixture(scope="session")
def guest() -> Path:
    try:
        missing = qemu_host.missing_programs()
        if missing is not None:
            raise GuestUnavailable(missing)
        return tiny_guest()
    except GuestUnavailable as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))


@pytest.fixture
def infra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalInfraConfig:
    monkeypatch.setattr("cube._CUBE_CACHE_ROOT", tmp_path)
    monkeypatch.setattr("cube.provision_store._DEFAULT_STORE_DIR", tmp_path / "provisions")
    return LocalInfraConfig(enable_kvm=False, ram_gb=1, cpu_cores=2, network="none", launch_timeout_seconds=180)


def ask(vm: VM, words: str) -> list[str]:
    """The lines that a program inside prints."""
    assert vm.endpoint is not None
    connection = http.client.HTTPConnection(vm.endpoint.removeprefix("http://"), timeout=30)
    connection.request("GET", f"/cgi-bin/{words}")
    lines = connection.getresponse().read().decode().split("\n")
    connection.close()
    return [line for line in lines if line]


def answer_one(service: socket.socket) -> None:
    service.accept()[0].close()


def machines_of(folder: Path) -> list[int]:
    """The processes that have a disk below a folder, deleted or not."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(link.startswith(str(folder)) and "overlay" in link for link in links):
            found.append(int(process.name))
    return found


class Here(VMBackend):
    """A backend as others write one, on the machines of this machine."""

    infra: LocalInfraConfig

    def launch(self, config: VMConfig) -> VM:
        resource = VMResourceConfig(name="guest", source_url=config.image)
        self.infra.provision(resource)
        handle = self.infra.launch(resource)
        assert isinstance(handle, VM)
        return handle


@pytest.mark.slow
def test_machines_at_once_share_an_image_and_nothing_else(guest: Path, infra: LocalInfraConfig, tmp_path: Path) -> None:
    backends = [Here(infra=infra), Here(infra=infra.model_copy(update={"network": "public", "cpu_cores": 1}))]
    assert VMBackend.model_validate_json(backends[0].model_dump_json()) == backends[0]
    with ThreadPoolExecutor(2) as pool:  # whose threads end, and the machines do not
        first, second = pool.map(lambda backend: backend.launch(VMConfig(image=str(guest))), backends)
    with first, second, socket.create_server(("127.0.0.1", 0)) as here:
        threading.Thread(target=answer_one, args=(here,), daemon=True).start()
        assert first.screenshot().startswith(b"\x89PNG\r\n\x1a\n")
        assert (ask(first, "about")[0], ask(second, "about")[0]) == ("2", "1")
        assert 900_000 < int(ask(first, "about")[1].split()[1]) < 1 << 20
        ask(first, "write?one")
        first.save("start")
        ask(first, "write?two")
        assert (ask(first, "read"), ask(second, "read")) == (["two", "two"], [])
        with pytest.raises(VMError, match="Snapshot 'nothing' does not exist"):
            first.restore("nothing")
        assert ask(first, "read") == ["two", "two"]
        first.restore("start")
        assert ask(first, "read") == ["one", "one"]
        assert first.screenshot() == second.screenshot()
        port = here.getsockname()[1]
        assert (ask(first, f"reach?{port}"), ask(second, f"reach?{port}")) == ([], ["reached"])
        assert len(infra.list_active()) == len(machines_of(tmp_path)) == 2
        assert [path.suffix for path in (tmp_path / "images").iterdir() if path.is_file()].count(".qcow2") == 1
        assert list((tmp_path / "images/runs").iterdir()) == []
    for vm in (first, second):
        vm.close()
        with pytest.raises(VMError, match="The machine has ended"):
            vm.screenshot()
        with pytest.raises(VMError, match="The machine has ended"):
            vm.restore("start")
        with pytest.raises(ConnectionRefusedError):
            ask(vm, "about")
    assert (infra.list_active(), machines_of(tmp_path)) == ([], [])


@pytest.mark.slow
def test_a_machine_that_does_not_become_ready_is_ended_and_its_console_is_shown(
    guest: Path, infra: LocalInfraConfig, tmp_path: Path
) -> None:
    off = VMResourceConfig(name="off", source_url=str(boot_sector(tmp_path / "off", POWER_OFF)))
    silent = VMResourceConfig(name="silent", source_url=str(boot_sector(tmp_path / "silent", HALT)))
    for resource in (off, silent):
        infra.provision(resource)
    with pytest.raises(VMLaunchError, match="Resource 'off' cannot be launched: The machine ended while") as caught:
        infra.launch(off)
    assert "Last lines of its console: SeaBIOS" in str(caught.value)
    assert "No agent on this disk" in str(caught.value)
    quick = infra.model_copy(update={"launch_timeout_seconds": 1.5})
    with pytest.raises(VMLaunchError, match=r"did not answer /screenshot on port 5000 within 1.5 s\. .* console"):
        quick.launch(silent)
    with pytest.raises(VMLaunchError, match="QEMU did not start the machine: .*(SMP|cpus|smp)"):
        infra.model_copy(update={"cpu_cores": 100_000}).launch(silent)
    assert (infra.list_active(), machines_of(tmp_path), list((tmp_path / "images/runs").iterdir())) == ([], [], [])


LAUNCH = """
import sys
from cube import LocalInfraConfig, VMResourceConfig
infra = LocalInfraConfig(enable_kvm=False, ram_gb=1)
resource = VMResourceConfig(name="silent", source_url=sys.argv[1])
infra.provision(resource)
infra.launch(resource)
"""


@pytest.mark.slow
def test_a_machine_ends_with_its_owner(guest: Path, infra: LocalInfraConfig, tmp_path: Path) -> None:
    disk = boot_sector(tmp_path / "disk", HALT)
    env = {**os.environ, "CUBE_CACHE_DIR": str(tmp_path)}
    owner = subprocess.Popen([sys.executable, "-c", LAUNCH, str(disk)], env=env)
    deadline = time.monotonic() + 60
    while not machines_of(tmp_path) and time.monotonic() < deadline:
        assert owner.poll() is None
        time.sleep(0.02)
    (run,) = infra.list_active()
    assert not run["abandoned"]
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    while machines_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert machines_of(tmp_path) == []
    Path(run["folder"]).mkdir(parents=True, exist_ok=True)  # as after a kill before the machine ran
    assert infra.list_active()[0]["abandoned"]
    assert infra.cleanup_stale() == [run["run_id"]]
    assert (infra.list_active(), Path(run["folder"]).exists()) == ([], False)


def test_what_a_machine_needs_is_named_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vm, emulated = VMResourceConfig(name="vm"), VMResourceConfig(name="vm", requires_kvm=False)
    infra = LocalInfraConfig(enable_kvm=True, sandbox="nothing")
    monkeypatch.setenv("PATH", str(tmp_path))
    message = "Resource 'vm' is a virtual machine, and the commands qemu-system-x86_64 and qemu-img cannot be found"
    for resource in (vm, emulated):
        assert str(infra.refusal(resource)).startswith(message)
    assert "apt-get install qemu-system-x86 qemu-utils" in str(infra.refusal(vm))
    for name in ("qemu-system-x86_64", "qemu-img"):
        (tmp_path / name).touch(mode=0o755)
    device = tmp_path / "kvm"
    monkeypatch.setattr(qemu_host, "_DEVICE", device)
    monkeypatch.setattr(qemu_host, "_kvm_runs", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "needs KVM, and /dev/kvm does not exist" in str(infra.refusal(vm))
    device.touch()
    assert "exists but does not run guests" in str(infra.refusal(vm))
    assert "LocalInfraConfig(enable_kvm=False), or CUBE_KVM=0" in str(infra.refusal(vm))
    assert ("kvm" in infra.capabilities(), infra.can_serve(vm), infra.can_serve(emulated)) == (False, False, True)
    with pytest.raises(IncompatibleInfraError, match="needs KVM"):
        infra.launch(vm)
    monkeypatch.setenv("CUBE_KVM", "0")
    assert LocalInfraConfig().can_serve(vm)
    monkeypatch.setattr(qemu_host, "_kvm_runs", lambda: True)
    assert ("kvm" in infra.capabilities(), infra.can_serve(vm)) == (True, True)
    assert "kvm" not in LocalInfraConfig(sandbox="nothing").capabilities()
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert "needs a display" in str(LocalInfraConfig(headless=False).refusal(vm))
    with pytest.raises(UnsupportedResourceType, match="`bootstrap_script_extra` is for machines that run a script"):
        infra.provision(VMResourceConfig(name="vm", bootstrap_script_extra="apt-get update"))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "processor (aarch64) does not run x86-64 images" in str(infra.refusal(vm))


def test_the_command_of_a_machine_has_its_settings() -> None:
    settings = MachineSettings(3, 2, 800, 600, headless=True, accelerator="kvm", network="none")
    words = machine_command(settings, Path("/a,b/overlay"), Path("/a,b/console"), 7)
    pairs = dict(pairwise(words))
    assert (pairs["-smp"], pairs["-m"], pairs["-cpu"], pairs["-display"]) == ("3", "2G", "host", "none")
    assert "VGA,edid=on,xres=800,yres=600" in words
    assert "file,id=console,path=/a,,b/console" in words
    assert '"filename": "/a,b/overlay"' in pairs["-blockdev"]
    assert pairs["-netdev"] == "user,id=net,hostfwd=tcp:127.0.0.1:0-:5000,restrict=on"
