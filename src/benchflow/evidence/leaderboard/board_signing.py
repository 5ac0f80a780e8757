"""Ed25519 signatures of leaderboard files, with keys in files: PEM, or as `ssh-keygen -t ed25519` writes them.

The signature covers `leaderboard.json` without it, and so, through the hashes in it, every byte of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchflow.errors import UsageError
from benchflow.record.leaderboard_index import BoardSignature, Leaderboard

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_MOST: Final = 1 << 16
"""Bytes of a key file that are read."""


def signer(key_file: Path) -> Callable[[Leaderboard], Leaderboard]:
    """What signs leaderboards with the private key in a file, which is read at once."""
    key = _private_key(key_file)

    def signed(board: Leaderboard) -> Leaderboard:
        value = key.sign(board.signed_text()).hex()
        return replace(board, signature=BoardSignature(_raw(key.public_key()).hex(), value))

    return signed


def can_sign() -> bool:
    """Whether the extra is installed."""
    return find_spec("cryptography") is not None


def signature_problem(board: Leaderboard, key_file: Path | None) -> str | None:
    """What is wrong with the signature; with a key, it must be by that one."""
    _, ed25519 = _library()
    if board.signature is None:
        return "it is not signed" if key_file is not None else None
    from cryptography.exceptions import InvalidSignature

    if key_file is not None and _raw(_public_key(key_file)).hex() != board.signature.public_key:
        return f"it is signed with another key: {board.signature.public_key}"
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(board.signature.public_key))
        key.verify(bytes.fromhex(board.signature.value), board.signed_text())
    except (ValueError, InvalidSignature):
        return "its signature is not valid: leaderboard.json was changed after it was signed"
    return None


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        from cube.extras import extra_command

        message = f"Signatures need the extra 'sign': {extra_command('sign')}"
        raise UsageError(message, code="extra-missing") from error
    return serialization, ed25519


def _private_key(path: Path) -> Ed25519PrivateKey:
    serialization, ed25519 = _library()
    data = _read(path)
    ssh = b"OPENSSH PRIVATE KEY" in data
    load = serialization.load_ssh_private_key if ssh else serialization.load_pem_private_key
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = load(data, password=None)
    except TypeError as error:
        raise _unusable(path, "it is protected by a passphrase") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "it is not a private key") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _unusable(path, "it is not an Ed25519 key")
    found: Ed25519PrivateKey = key
    return found


def _public_key(path: Path) -> Ed25519PublicKey:
    serialization, ed25519 = _library()
    data = _read(path)
    ssh = data.startswith(b"ssh-")
    load = serialization.load_ssh_public_key if ssh else serialization.load_pem_public_key
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = load(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "it is not a public key") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise _unusable(path, "it is not an Ed25519 key")
    found: Ed25519PublicKey = key
    return found


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes_raw()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(_MOST)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.", code="key-unusable") from error


def _unusable(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path} cannot be used as a key: {reason}.", code="key-unusable")
