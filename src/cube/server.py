"""Tasks and benchmarks over HTTP for harnesses: the methods of JSON-RPC, and servers in their own processes.

A server has two ports: the harness's with these methods, and the agent's (`cube.mcp_tools`). Its process ends with its
parent. Configs and runtime context are sent as JSON. Needs the extra `serve`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import anyio.to_thread
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cube.benchmark import Benchmark, BenchmarkConfig, close_quietly, make_benchmark, make_task
from cube.container import ContainerBackend
from cube.core import Action, Observation
from cube.jsonrpc import INVALID_PARAMS, NOT_NOW, Method, RpcError, answer, require
from cube.resource import InfraConfig
from cube.server_process import ServerProcess, start_server
from cube.stage import Stage
from cube.task import RuntimeContext, TaskConfig
from cube.typed import TYPE_KEY, TypedBaseModel

MAX_PORT: Final = 65535
IDLE_SEC: Final = 3600.0
"""After how long without a request a spawned server ends: its client may have died."""
MAX_BODY: Final = 64 * 1024 * 1024
"""Maximum bytes of a request, including images in observations."""


def make_task_rpc_server(
    task_config: TaskConfig[Any],
    host: str = "127.0.0.1",
    port: int = 0,
    runtime_context: RuntimeContext | None = None,
    container_backend: ContainerBackend | None = None,
    *,
    agent_port: int = 0,
    idle_sec: float | None = None,
) -> tuple[ServerProcess, str]:
    """Serve one task from its own process; return the process and the harness's URL. Port 0 selects a free port.

    `address` of the process has the tokens and the agent's URL too. After `idle_sec` without a request the server ends.
    """
    job = {
        "idle_sec": idle_sec,
        "task_config": task_config.model_dump(mode="json"),
        "runtime_context": _dump_runtime_context(runtime_context),
        "container_backend": container_backend.model_dump(mode="json") if container_backend else None,
    }
    return start_server(job, host, port, agent_port)


def make_benchmark_rpc_server(
    config: BenchmarkConfig[Any],
    *,
    infra: InfraConfig | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    agent_port: int = 0,
) -> tuple[ServerProcess, str]:
    """Serve a benchmark from its own process: one task at a time, and task servers on request."""
    job = {
        "benchmark_config": config.model_dump(mode="json"),
        "infra": infra.model_dump(mode="json") if infra is not None else None,
    }
    return start_server(job, host, port, agent_port)


@dataclass(frozen=True, slots=True)
class Served:
    """What a server process serves: methods for the harness, the stage that agents act on, and how to close it."""

    name: str
    stage: Stage
    methods: Mapping[str, Method]
    close: Callable[[], None]


def served_for(job: Mapping[str, Any]) -> Served:
    """Start what a job describes; after an error nothing runs."""
    if "benchmark_config" in job:
        infra = InfraConfig.model_validate(job["infra"]) if job.get("infra") else None
        benchmark = make_benchmark(BenchmarkConfig.model_validate(job["benchmark_config"]), infra)
        try:
            served = ServedBenchmark(benchmark, job.get("task_id"))
        except BaseException:
            close_quietly(benchmark)
            raise
        return Served(benchmark.config.name, served.stage, served.methods(), served.close)
    backend = ContainerBackend.model_validate(job["container_backend"]) if job["container_backend"] else None
    config = TaskConfig.model_validate(job["task_config"])
    context = _load_runtime_context(job["runtime_context"])

    def find(task_id: str | None) -> TaskConfig[Any]:
        if task_id not in (None, config.task_id):
            raise RpcError(INVALID_PARAMS, f"This server serves only the task '{config.task_id}', not '{task_id}'.")
        return config

    stage = Stage(find, lambda known: make_task(known, context, backend), config)
    return Served(config.task_id, stage, task_methods(stage), stage.shut_down)


def task_methods(stage: Stage) -> dict[str, Method]:
    """The methods on the task of a stage. All but `cube/episode` and `cube/end` wait for a running action."""

    def method(function: Callable[[dict[str, Any]], Any]) -> Method:
        async def call(params: dict[str, Any]) -> Any:
            return await stage.thread.run(function, params)

        return call

    async def episode(params: dict[str, Any]) -> Any:
        del params
        return stage.describe()

    async def end(params: dict[str, Any]) -> Any:
        stage.end(str(params.get("reason") or "the harness ended it"))
        return stage.describe()

    return {
        "tools/list": method(lambda _: [_dump(action) for action in stage.task.action_set]),
        "tools/call": method(lambda params: _dump(stage.call(_action(params)))),
        "cube/reset": method(lambda params: _reset(stage, params)),
        "cube/step": method(lambda params: _step(stage, params)),
        "cube/evaluate": method(lambda params: _evaluate(stage, params)),
        "cube/episode": episode,
        "cube/end": end,
        "cube/close": method(lambda _: stage.close()),
        "cube/status": method(lambda _: stage.task.get_status()),
        "cube/privileged_info": method(lambda _: _dump(stage.task.get_privileged_info())),
    }


class ServedBenchmark:
    """A live benchmark, its current task, and the task servers that it started; closed exactly once."""

    def __init__(self, benchmark: Benchmark[Any], task_id: str | None) -> None:
        """With `task_id`, only this task is served, and made at once."""
        self._benchmark = benchmark
        self._config = benchmark.config if task_id is None else benchmark.config.subset_from_list([task_id])
        self._servers: list[ServerProcess] = []
        self._closed = False
        self.stage = Stage(self._find, benchmark.spawn, self._find(task_id) if task_id is not None else None)

    def methods(self) -> dict[str, Method]:
        return {
            "cube/info": self._info,
            "cube/tasks": self._tasks,
            "cube/task_configs": self._task_configs,
            "cube/spawn": self._spawn,
            "cube/shutdown": self._shutdown,
            **task_methods(self.stage),
        }

    def close(self) -> None:
        """Stop the task and the task servers, then the benchmark."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as closing:
            closing.callback(self._benchmark.close)
            for server in self._servers:
                closing.callback(server.stop)
            closing.callback(self.stage.shut_down)

    def _find(self, task_id: str | None) -> TaskConfig[Any]:
        if self._closed:
            raise RpcError(NOT_NOW, f"Benchmark '{self._config.name}' has been shut down.")
        if task_id is None:
            raise RpcError(INVALID_PARAMS, "Parameter 'task_id' is missing: it selects the task.")
        if task_id not in self._config.tasks():
            raise RpcError(INVALID_PARAMS, f"Task '{task_id}' is not in benchmark '{self._config.name}'.")
        return next(iter(self._config.subset_from_list([task_id]).get_task_configs()))

    async def _info(self, params: dict[str, Any]) -> Any:
        del params
        return _dump(self._config.benchmark_metadata)

    async def _tasks(self, params: dict[str, Any]) -> Any:
        return [_dump(metadata) for _, metadata in _page(list(self._config.tasks().items()), params)]

    async def _task_configs(self, params: dict[str, Any]) -> Any:
        everything = [(task_config.task_id, task_config) for task_config in self._config.get_task_configs()]
        return [_dump(task_config) for _, task_config in _page(everything, params)]

    async def _spawn(self, params: dict[str, Any]) -> Any:
        task_config = _load(TaskConfig, require(params, "task_config", dict), "task_config")
        self._find(task_config.task_id)
        host = params.get("host", "127.0.0.1")
        ports = [params.get(name) or 0 for name in ("port", "agent_port")]
        if not (isinstance(host, str) and all(type(port) is int and 0 <= port <= MAX_PORT for port in ports)):
            raise RpcError(INVALID_PARAMS, f"'host' must be a string, 'port' a number up to {MAX_PORT}.")
        idle_sec = params.get("idle_sec", IDLE_SEC)
        if not isinstance(idle_sec, int | float) or isinstance(idle_sec, bool) or idle_sec <= 0:
            raise RpcError(INVALID_PARAMS, "'idle_sec' must be a number above 0.")
        context, backend = self._benchmark._runtime_context, self._config.container_backend
        start = partial(
            make_task_rpc_server, task_config, host, ports[0], context, backend, agent_port=ports[1], idle_sec=idle_sec
        )
        process, _ = await anyio.to_thread.run_sync(start)
        self._servers = [server for server in self._servers if server.is_alive()] + [process]
        return asdict(process.address)

    async def _shutdown(self, params: dict[str, Any]) -> None:
        del params
        await anyio.to_thread.run_sync(self.close)


def harness_app(methods: Mapping[str, Method], path: str = "/") -> Starlette:
    """The application of the harness's port: JSON-RPC by POST to one path."""

    async def endpoint(request: Request) -> Response:
        question = await _body(request)
        if question is None:
            return Response(f"The request exceeds the limit of {MAX_BODY} bytes.", 413)
        body = await answer(question, methods)
        return Response(status_code=204) if body is None else Response(body, media_type="application/json")

    return Starlette(routes=[Route(path, endpoint, methods=["POST"])])


async def _body(request: Request) -> bytes | None:
    """The body, or None as soon as it exceeds the limit; a larger one is never held in memory."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


def _dump(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, TypedBaseModel) else value


def _load(model: type[TypedBaseModel], data: Any, name: str) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([name, *(str(part) for part in first["loc"])])
        raise RpcError(INVALID_PARAMS, f"Parameter '{place}': {first['msg']}") from error


def _action(params: Mapping[str, Any]) -> Action:
    arguments = params.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "Parameter 'arguments' must be an object.")
    identity = params.get("action_id")
    if not isinstance(identity, str | None):
        raise RpcError(INVALID_PARAMS, "Parameter 'action_id' must be a string.")
    return Action(id=identity, name=require(params, "name", str), arguments=arguments)


def _actions(params: Mapping[str, Any]) -> Action | list[Action]:
    """One action by `name`, or several as `actions`."""
    if "actions" not in params:
        return _action(params)
    actions = require(params, "actions", list)
    return [_action(action) if isinstance(action, dict) else _load(Action, action, "actions") for action in actions]


def _reset(stage: Stage, params: Mapping[str, Any]) -> dict[str, Any]:
    task_id = params.get("task_id")
    if not isinstance(task_id, str | None):
        raise RpcError(INVALID_PARAMS, "Parameter 'task_id' must be a string.")
    obs, info = stage.reset(task_id)
    return {"obs": _dump(obs), "info": _dump(info)}


def _step(stage: Stage, params: Mapping[str, Any]) -> dict[str, Any]:
    """The output; without a score its reward is null and `info.unscored` says why."""
    output, unscored = stage.step(_actions(params))
    dump: dict[str, Any] = _dump(output)
    return dump if unscored is None else {**dump, "reward": None, "info": {**dump["info"], "unscored": unscored}}


def _evaluate(stage: Stage, params: Mapping[str, Any]) -> dict[str, Any]:
    obs = params.get("obs")
    reward, info = stage.evaluate(None if obs is None else _load(Observation, obs, "obs"))
    return {"reward": reward, "info": info}


def _page(items: list[tuple[str, Any]], params: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The items of one task, or from `offset` on at most `limit` (−1: all)."""
    if params.get("task_id") is not None:
        return [item for item in items if item[0] == params["task_id"]]
    offset, limit = params.get("offset", 0), params.get("limit", -1)
    if not (type(offset) is int and type(limit) is int and offset >= 0 and limit >= -1):
        raise RpcError(INVALID_PARAMS, "'offset' must be 0 or more, 'limit' −1 (all) or more.")
    return items[offset:] if limit == -1 else items[offset : offset + limit]


def _dump_runtime_context(context: RuntimeContext | None) -> str | None:
    """As JSON text; models keep their class, other values that JSON cannot express are a TypeError."""

    def encode(value: Any) -> Any:
        if isinstance(value, TypedBaseModel):
            return value.model_dump(mode="json")
        raise TypeError(f"A runtime context value of type {type(value).__name__} is not JSON-serializable.")

    return json.dumps(context, default=encode) if context else None


def _load_runtime_context(text: str | None) -> RuntimeContext | None:
    """The inverse: the context with its models."""

    def decode(value: dict[str, Any]) -> Any:
        return TypedBaseModel.model_validate(value) if TYPE_KEY in value else value

    return json.loads(text, object_hook=decode) if text else None
