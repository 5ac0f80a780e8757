"""The command line of a virtual machine. Pure: what a machine is, as the words that start it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cube.qemu.qemu_host import SYSTEM

GUEST_PORT: Final = 5000
"""Where the program inside that controls a machine listens."""
DISK: Final = "disk"
"""The name of the disk in commands to the monitor."""


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """A virtual machine of this machine."""

    cpu_cores: int
    ram_gb: int
    screen_width: int
    screen_height: int
    headless: bool
    accelerator: Literal["kvm", "tcg"]
    """Run by the processor, or emulated in software."""
    network: Literal["public", "none"]


def machine_command(settings: MachineSettings, overlay: Path, console: Path, monitor: int) -> list[str]:
    """The words that start a machine; `monitor` is the number of an open socket."""
    file = {"driver": "file", "filename": str(overlay)}
    disk = {"driver": "qcow2", "node-name": DISK, "discard": "unmap", "file": file}
    screen = f"VGA,edid=on,xres={settings.screen_width},yres={settings.screen_height}"
    restricted = ",restrict=on" if settings.network == "none" else ""
    return [
        # graphics=off: the firmware prints on the console too, so that it can be read why a disk does not start.
        *(SYSTEM, "-nodefaults", "-no-user-config", "-machine", f"pc,graphics=off,accel={settings.accelerator}"),
        *("-cpu", "host" if settings.accelerator == "kvm" else "max"),
        *("-smp", str(settings.cpu_cores), "-m", f"{settings.ram_gb}G", "-rtc", "base=utc"),
        *("-blockdev", json.dumps(disk), "-device", f"virtio-blk-pci,drive={DISK},bootindex=0"),
        # Port 0: the system chooses, so that machines that start at once never want the same one.
        *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:0-:{GUEST_PORT}{restricted}"),
        *("-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"),
        *("-device", screen, "-display", "none" if settings.headless else "gtk"),
        *("-chardev", f"file,id=console,path={_escaped(console)}", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"),
    ]


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")
