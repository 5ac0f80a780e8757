"""JSON-RPC 2.0 as pure functions: bytes of a request in, bytes of the response out.

A batch is answered with an array that leaves out notifications; a single notification gets no response. Every
failure becomes an error object with the standard's code, and the message of the exception.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

logger = logging.getLogger(__name__)

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
NOT_NOW: Final = -32000
"""A valid request that the state of the server does not allow; of the codes that the standard leaves to servers."""

Method = Callable[[dict[str, Any]], Awaitable[Any]]


class RpcError(Exception):
    """An error object: its code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def answer(body: bytes, methods: Mapping[str, Method]) -> bytes | None:
    """The response to a request body, or None if none is due."""
    try:
        request = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return _failure(None, PARSE_ERROR, f"The request is not valid JSON: {error}")
    if not isinstance(request, list):
        return await _answer_one(request, methods)
    if not request:
        return _failure(None, INVALID_REQUEST, "A batch must not be empty.")
    responses = [response for item in request if (response := await _answer_one(item, methods)) is not None]
    return b"[" + b", ".join(responses) + b"]" if responses else None


async def _answer_one(request: Any, methods: Mapping[str, Method]) -> bytes | None:
    if not isinstance(request, dict):
        return _failure(None, INVALID_REQUEST, "A request must be a JSON object.")
    identity = request.get("id")
    if not isinstance(identity, str | int | float | None) or isinstance(identity, bool):
        return _failure(None, INVALID_REQUEST, "'id' must be a string, a number or null.")
    if request.get("jsonrpc") != "2.0" or not isinstance(request.get("method"), str):
        return _failure(identity, INVALID_REQUEST, "A request needs 'jsonrpc': \"2.0\" and a 'method'.")
    notification = "id" not in request
    try:
        response = _encode({"jsonrpc": "2.0", "result": await _call(request, methods), "id": identity})
    except RpcError as error:
        response = _failure(identity, error.code, str(error))
    except Exception as error:  # the server must survive any error of a task
        logger.exception("%s failed", request["method"])
        response = _failure(identity, INTERNAL_ERROR, str(error) or type(error).__name__)
    return None if notification else response


async def _call(request: dict[str, Any], methods: Mapping[str, Method]) -> Any:
    method, params = methods.get(request["method"]), request.get("params", {})
    if method is None:
        raise RpcError(METHOD_NOT_FOUND, f"Unknown method '{request['method']}'; available: {', '.join(methods)}.")
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "'params' must be an object.")
    return await method(params)


def result_of(response: Mapping[str, Any]) -> Any:
    """The result in a response, for a caller; an error object is raised as `RpcError`."""
    if "error" in response:
        raise RpcError(response["error"]["code"], response["error"]["message"])
    return response["result"]


def require(params: Mapping[str, Any], name: str, kind: type | None = None) -> Any:
    """A required parameter, checked for its type."""
    if name not in params:
        raise RpcError(INVALID_PARAMS, f"Parameter '{name}' is missing.")
    if kind is not None and not isinstance(params[name], kind):
        raise RpcError(INVALID_PARAMS, f"Parameter '{name}' must be of type {kind.__name__}.")
    return params[name]


def _failure(identity: Any, code: int, message: str) -> bytes:
    return _encode({"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": identity})


def _encode(response: Any) -> bytes:
    """JSON in ASCII, so that text which is not valid UTF-8 survives; a number that JSON cannot express is an error."""
    return json.dumps(response, allow_nan=False, default=str).encode("ascii")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
