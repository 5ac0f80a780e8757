"""The handshake with a SOCKS5 proxy (RFC 1928, with a password RFC 1929): a socket that leads to a host behind it.

Names of hosts are resolved by the proxy, for `socks5` as for `socks5h`, as HTTP clients of Python do it.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, unquote

from benchflow.models.gateway.upstream.upstream_wire import WireError, WireSetupError

_PORT: Final = 1080
_LONGEST: Final = 255
"""Bytes of a name or a password."""
_REFUSALS: Final = {
    1: "it failed",
    2: "its rules do not allow the connection",
    3: "the network is unreachable",
    4: "the host is unreachable",
    5: "the connection was refused",
    6: "the time to live expired",
    7: "it does not support the command",
    8: "it does not support the type of address",
}
_VERSION: Final = 5
_OPEN: Final = 0
_PASSWORD: Final = 2
_CONNECT: Final = 1
_IPV4: Final = 1
_NAME: Final = 3
_IPV6: Final = 4
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}


async def through_socks(proxy: SplitResult, host: str, port: int) -> socket.socket:
    """A connected socket; `WireError` or `OSError` if there is none. The caller closes it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(proxy.hostname or "", proxy.port or _PORT, type=socket.SOCK_STREAM)
    sock = await _dialled(found[0][0], found[0][4])
    try:
        await _greet(sock, proxy)
        await _connect(sock, proxy, host, port)
    except BaseException:
        sock.close()
        raise
    return sock


async def _dialled(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _greet(sock: socket.socket, proxy: SplitResult) -> None:
    """Agree on how to authenticate, and do it."""
    offered = (_OPEN, _PASSWORD) if proxy.username is not None else (_OPEN,)
    await _send(sock, bytes([_VERSION, len(offered), *offered]))
    version, method = await _read(sock, 2, proxy)
    if version != _VERSION:
        raise WireError(f"the proxy {proxy.hostname} does not speak SOCKS5")
    if method not in offered:
        raise WireSetupError(f"the proxy {proxy.hostname} accepts none of the ways to authenticate")
    if method == _OPEN:
        return
    parts = [unquote(part or "").encode() for part in (proxy.username, proxy.password)]
    await _send(sock, b"\x01" + b"".join(_sized(part, "name or password of the proxy") for part in parts))
    _, refused = await _read(sock, 2, proxy)
    if refused:
        raise WireSetupError(f"the proxy {proxy.hostname} refused the user and the password")


async def _connect(sock: socket.socket, proxy: SplitResult, host: str, port: int) -> None:
    await _send(sock, bytes([_VERSION, _CONNECT, 0]) + _named(host) + port.to_bytes(2, "big"))
    version, refused, _, kind = await _read(sock, 4, proxy)
    if version != _VERSION or refused:
        why = _REFUSALS.get(refused, f"code {refused}")
        raise WireError(f"the proxy {proxy.hostname} gave no connection to {host}: {why}")
    size = _ADDRESS_BYTES.get(kind) or (await _read(sock, 1, proxy))[0]
    await _read(sock, size + 2, proxy)  # the address at which the proxy sends


def _named(host: str) -> bytes:
    """An address as it is, a name as the proxy has to look it up."""
    try:
        address = ip_address(host)
    except ValueError:
        return bytes([_NAME]) + _sized(host.encode("idna"), "name of the host")
    return bytes([_IPV4 if address.version == 4 else _IPV6]) + address.packed


def _sized(text: bytes, what: str) -> bytes:
    if len(text) > _LONGEST:
        raise WireSetupError(f"the {what} is too long for SOCKS5")
    return bytes([len(text)]) + text


async def _send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def _read(sock: socket.socket, size: int, proxy: SplitResult) -> bytes:
    data = b""
    while len(data) < size:
        piece = await asyncio.get_running_loop().sock_recv(sock, size - len(data))
        if not piece:
            raise WireError(f"the proxy {proxy.hostname} closed the connection")
        data += piece
    return data
