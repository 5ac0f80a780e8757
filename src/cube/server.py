"""Tasks and benchmarks over HTTP: JSON-RPC on `POST /` for harnesses, MCP on `/mcp` for agents (extra `serve`).

A server runs in its own process, which ends with its parent. Configs and runtime context are sent as JSON;
calls on one task run in sequence, outside the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio.to_thread
from anyio import CapacityLimiter
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cube.benchmark import Benchmark, BenchmarkConfig
from cube.container import ContainerBackend
from cube.core import Action, Observation
from cube.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, Method, RpcError, answer, require
from cube.mcp_tools import mcp_server
from cube.server_process import ServerProcess, start_server
from cube.task import RuntimeContext, Task, TaskConfig
from cube.typed import TYPE_KEY, TypedBaseModel

MAX_BODY: Final = 64 * 1024 * 1024
"""Maximum bytes of a request, including images in observations."""


def make_task_rpc_server(
    task_config: TaskConfig[Any],
    host: str = "127.0.0.1",
    port: int = 0,
    runtime_context: RuntimeContext | None = None,
    container_backend: ContainerBackend | None = None,
) -> tuple[ServerProcess, str]:
    """Serve one task from its own process; return the process and its URL. Port 0 selects a free port."""
    job = {
        "task_config": task_config.model_dump(mode="json"),
        "runtime_context": _dump_runtime_context(runtime_context),
        "container_backend": container_backend.model_dump(mode="json") if container_backend else None,
    }
    return start_server(job, host, port)


def make_benchmark_rpc_server(
    config: BenchmarkConfig[Any], *, host: str = "127.0.0.1", port: int = 0
) -> tuple[ServerProcess, str]:
    """Serve a benchmark from its own process; it starts task servers on request."""
    return start_server({"benchmark_config": config.model_dump(mode="json")}, host, port)


def app_for(job: Mapping[str, Any], host: str) -> tuple[Starlette, Callable[[], None]]:
    """The application of a server process, and how to close it."""
    if "benchmark_config" in job:
        benchmark = BenchmarkConfig.model_validate(job["benchmark_config"]).make()
        if job.get("task_id") is None:
            served = ServedBenchmark(benchmark)
            return served.app(), served.close
        task = benchmark.spawn(_config_of(benchmark, job["task_id"]))
        return task_app(task, host=host), lambda: _close_both(task, benchmark)
    backend = job["container_backend"]
    task = TaskConfig.model_validate(job["task_config"]).make(
        runtime_context=_load_runtime_context(job["runtime_context"]),
        container_backend=ContainerBackend.model_validate(backend) if backend else None,
    )
    return task_app(task, host=host), task.close


def _config_of(benchmark: Benchmark[Any], task_id: str) -> TaskConfig[Any]:
    return next(iter(benchmark.config.subset_from_list([task_id]).get_task_configs()))


def _close_both(task: Task[Any], benchmark: Benchmark[Any]) -> None:
    try:
        task.close()
    finally:
        benchmark.close()


def task_app(task: Task[Any], *, host: str = "127.0.0.1") -> Starlette:
    """The ASGI application for a live task."""
    one_at_a_time = CapacityLimiter(1)

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments, limiter=one_at_a_time)

    def method(function: Callable[[dict[str, Any]], Any]) -> Method:
        async def call(params: dict[str, Any]) -> Any:
            return await run(function, params)

        return call

    methods = {
        "tools/list": method(lambda _: [_dump(action) for action in task.action_set]),
        "tools/call": method(lambda params: _dump(task.tool.execute_action(_action(params)))),
        "cube/reset": method(lambda _: dict(zip(("obs", "info"), map(_dump, task.reset()), strict=True))),
        "cube/step": method(lambda params: _dump(task.step(_actions(params)))),
        "cube/evaluate": method(lambda params: _evaluate(task, params)),
        "cube/close": method(lambda _: task.close()),
        "cube/status": method(lambda _: task.get_status()),
        "cube/privileged_info": method(lambda _: _dump(task.get_privileged_info())),
    }

    async def list_actions() -> list[Any]:
        actions: list[Any] = await run(lambda: task.action_set)
        return actions

    async def call_action(action: Action) -> Any:
        return await run(task.tool.execute_action, action)

    server = mcp_server(task.id, list_actions, call_action)
    return server.streamable_http_app(host=host, custom_starlette_routes=[_rpc_route(methods)])


class ServedBenchmark:
    """A live benchmark and the task servers that it started; closed exactly once."""

    def __init__(self, benchmark: Benchmark[Any]) -> None:
        self._benchmark = benchmark
        self._config = benchmark.config
        self._servers: list[ServerProcess] = []
        self._closed = False

    def app(self) -> Starlette:
        """The ASGI application."""
        methods: dict[str, Method] = {
            "cube/info": self._info,
            "cube/tasks": self._tasks,
            "cube/task_configs": self._task_configs,
            "cube/spawn": self._spawn,
            "cube/shutdown": self._shutdown,
        }
        return Starlette(routes=[_rpc_route(methods)])

    def close(self) -> None:
        """Stop the task servers, then the benchmark."""
        if self._closed:
            return
        self._closed = True
        while self._servers:
            self._servers.pop().stop()
        self._benchmark.close()

    async def _info(self, params: dict[str, Any]) -> Any:
        del params
        return _dump(self._config.benchmark_metadata)

    async def _tasks(self, params: dict[str, Any]) -> Any:
        return [_dump(metadata) for _, metadata in _page(list(self._config.tasks().items()), params)]

    async def _task_configs(self, params: dict[str, Any]) -> Any:
        everything = [(task_config.task_id, task_config) for task_config in self._config.get_task_configs()]
        return [_dump(task_config) for _, task_config in _page(everything, params)]

    async def _spawn(self, params: dict[str, Any]) -> str:
        if self._closed:
            raise RpcError(INVALID_REQUEST, f"Benchmark '{self._config.name}' has been shut down.")
        task_config = _load(TaskConfig, require(params, "task_config", dict), "task_config")
        if task_config.task_id not in self._config.tasks():
            raise RpcError(INVALID_PARAMS, f"Task '{task_config.task_id}' is not in benchmark '{self._config.name}'.")
        host, port = params.get("host", "127.0.0.1"), params.get("port") or 0
        if not (isinstance(host, str) and isinstance(port, int) and 0 <= port <= 65535):
            raise RpcError(INVALID_PARAMS, "'host' must be a string, 'port' a number up to 65535.")
        context, backend = self._benchmark._runtime_context, self._config.container_backend
        process, url = await anyio.to_thread.run_sync(make_task_rpc_server, task_config, host, port, context, backend)
        self._servers.append(process)
        return url

    async def _shutdown(self, params: dict[str, Any]) -> None:
        del params
        await anyio.to_thread.run_sync(self.close)


def _rpc_route(methods: Mapping[str, Method]) -> Route:
    async def endpoint(request: Request) -> Response:
        if "origin" in request.headers:
            return Response("Requests from web pages are not allowed.", 403)
        question = await _body(request)
        if question is None:
            return Response(f"The request exceeds the limit of {MAX_BODY} bytes.", 413)
        body = await answer(question, methods)
        return Response(status_code=204) if body is None else Response(body, media_type="application/json")

    return Route("/", endpoint, methods=["POST"])


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


def _evaluate(task: Task[Any], params: Mapping[str, Any]) -> dict[str, Any]:
    obs = params.get("obs")
    reward, info = task.evaluate(None if obs is None else _load(Observation, obs, "obs"))
    return {"reward": reward, "info": info}


def _page(items: list[tuple[str, Any]], params: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The items of one task, or from `offset` on at most `limit` (−1: all)."""
    if params.get("task_id") is not None:
        return [item for item in items if item[0] == params["task_id"]]
    offset, limit = params.get("offset", 0), params.get("limit", -1)
    if not (isinstance(offset, int) and isinstance(limit, int) and offset >= 0 and limit >= -1):
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
