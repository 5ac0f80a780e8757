"""Clients for harnesses of benchmark and task servers: typed objects in and out. Needs the extra `serve`."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from cube.benchmark import BenchmarkMetadata
from cube.core import Action, ActionSchema, Content, EnvironmentOutput, Observation, StepError
from cube.jsonrpc import RpcError, result_of
from cube.server_process import Address
from cube.task import TaskConfig, TaskMetadata, UnscoredError

__all__ = ["BenchmarkClient", "RpcError", "TaskClient", "TaskMethods", "UnscoredError", "wait_for_server"]


class _Client:
    """One server. `with` closes the connection, not the server."""

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0) -> None:
        self.url = url
        self.token = token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(timeout=timeout, headers=headers)
        self._ids = itertools.count(1)

    def rpc(self, method: str, **params: Any) -> Any:
        """Call a method; an error response is raised as `RpcError`."""
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        return result_of(self._http.post(self.url, json=request).raise_for_status().json())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()


class BenchmarkClient(_Client):
    """A remote benchmark."""

    def info(self) -> BenchmarkMetadata:
        return BenchmarkMetadata.model_validate(self.rpc("cube/info"))

    def tasks(self, task_id: str | None = None, *, offset: int = 0, limit: int = -1) -> list[TaskMetadata]:
        rows = self.rpc("cube/tasks", task_id=task_id, offset=offset, limit=limit)
        return [TaskMetadata.model_validate(row) for row in rows]

    def task_configs(self, task_id: str | None = None, *, offset: int = 0, limit: int = -1) -> list[TaskConfig[Any]]:
        rows = self.rpc("cube/task_configs", task_id=task_id, offset=offset, limit=limit)
        return [TaskConfig.model_validate(row) for row in rows]

    def spawn(self, task_config: TaskConfig[Any], *, host: str = "127.0.0.1", port: int | None = None) -> TaskClient:
        """A server for one task, started by the benchmark's server, which stops it when it stops itself."""
        answer = self.rpc("cube/spawn", task_config=task_config.model_dump(mode="json"), host=host, port=port)
        address = Address(**answer)
        return TaskClient(address.url, token=address.token, address=address)

    def shutdown(self) -> None:
        """Close the benchmark and its task servers."""
        self.rpc("cube/shutdown")


class TaskMethods(ABC):
    """The methods of a task on another machine; `rpc` carries them there."""

    @abstractmethod
    def rpc(self, method: str, **params: Any) -> Any:
        """Call a method; an error response is raised as `RpcError`."""

    def tools_list(self) -> list[ActionSchema]:
        return [ActionSchema.model_validate(row) for row in self.rpc("tools/list")]

    def tools_call(self, action: Action) -> Observation | StepError:
        """Call the tool directly, without evaluation."""
        result = self.rpc("tools/call", **_flat(action))
        return (Observation if "contents" in result else StepError).model_validate(result)

    def reset(self, task_id: str | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; on the server of a benchmark, `task_id` selects the task."""
        result = self.rpc("cube/reset", task_id=task_id)
        return Observation.model_validate(result["obs"]), result["info"]

    def step(self, action: Action | Sequence[Action]) -> EnvironmentOutput:
        params = _flat(action) if isinstance(action, Action) else {"actions": [_flat(one) for one in action]}
        result = self.rpc("cube/step", **params)
        _require_score(result)
        return EnvironmentOutput.model_validate(result)

    def evaluate(self, obs: Observation | None = None) -> tuple[float, dict[str, Any]]:
        result = self.rpc("cube/evaluate", obs=None if obs is None else obs.model_dump(mode="json"))
        _require_score(result)
        return result["reward"], result["info"]

    def episode(self) -> dict[str, Any]:
        """The state of the episode (`not started`, `running`, `over`, `closed`), why it is over, and its steps."""
        return dict(self.rpc("cube/episode"))

    def end(self, reason: str) -> None:
        """End the episode for the agent, at a limit for instance; its state can then be evaluated."""
        self.rpc("cube/end", reason=reason)

    def privileged_info(self) -> Content:
        return Content.model_validate(self.rpc("cube/privileged_info"))

    def status(self) -> str:
        return str(self.rpc("cube/status"))

    def close(self) -> None:
        """Close the task."""
        self.rpc("cube/close")


class TaskClient(_Client, TaskMethods):
    """A remote task, with the methods of a task."""

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60.0, address: Address | None = None
    ) -> None:
        super().__init__(url, token=token, timeout=timeout)
        self.address = address
        """Of a spawned server: its agent's URL and token too."""


def _flat(action: Action) -> dict[str, Any]:
    return {"name": action.name, "arguments": action.arguments, "action_id": action.id}


def _require_score(result: dict[str, Any]) -> None:
    """A reward that is null is an `UnscoredError`, as it is in the process of the task."""
    if result["reward"] is None:
        raise UnscoredError(**result["info"]["unscored"])


def wait_for_server(url: str, retries: int = 30, delay: float = 0.5) -> None:
    """Return once a server responds at `url`; raise `TimeoutError` after that many tries."""
    for _ in range(retries):
        try:
            httpx.post(url, json={}, timeout=delay * 10)
        except httpx.TransportError:
            time.sleep(delay)
        else:
            return
    raise TimeoutError(f"No server responds at {url}.")
