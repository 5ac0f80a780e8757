"""The container of a task, launched by the infrastructure in its runtime context."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from cube.container import Container, ContainerLaunchError
from cube.resource import InfraConfig, TaskContainerConfig
from cube.resource_handle import ResourceHandle


def build_docker_run_script(container_name: str, image: str, ram_gb: float, cpu_cores: float) -> str:
    """A script that starts one idle container, for infrastructures that only run scripts."""
    words = ["docker", "run", "-d", "--name", container_name]
    words += ["--memory", f"{int(ram_gb * 1024)}m", "--cpus", f"{cpu_cores:g}", image, "sleep", "infinity"]
    return f"set -eu\n{shlex.join(words)}\n"


def launch_task_container(
    runtime_context: Mapping[str, Any],
    *,
    name: str,
    image: str,
    ram_gb: float = 4.0,
    cpu_cores: float = 2.0,
    disk_gb: float = 10.0,
    gpu: bool = False,
    ports: list[int] | None = None,
) -> tuple[ResourceHandle, Container]:
    """A container from `runtime_context["infra"]`, and the handle that ends it. After an error nothing is left."""
    infra: InfraConfig = runtime_context["infra"]
    container_name = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-") or "task"
    resource = TaskContainerConfig(
        name=name,
        scope="task",
        docker_images=[image],
        launch_script=build_docker_run_script(container_name, image, ram_gb, cpu_cores),
        image=image,
        ram_gb=ram_gb,
        cpu_cores=cpu_cores,
        disk_gb=disk_gb,
        gpu=gpu,
        ports=ports,
    )
    if infra.provision_status(resource) != "ready":
        infra.provision(resource)
    handle = infra.launch(resource)
    container = getattr(handle, "container", None)
    if not isinstance(container, Container):
        handle.close()
        raise ContainerLaunchError(
            f"{type(infra).__name__} launched '{name}' without a container: its handle has none in `container`."
        )
    return handle, container
