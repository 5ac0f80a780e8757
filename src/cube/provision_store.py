"""`ProvisionStore`: what was provisioned where, one JSON file per resource and place.

Writing is atomic, so any number of processes may use one store. A damaged record counts as missing: its resource
is provisioned again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cube

if TYPE_CHECKING:
    from cube.resource import InfraConfig, ResourceConfig

_DEFAULT_STORE_DIR: Path = cube._CUBE_CACHE_ROOT / "provisions"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:@-]")
_LONGEST: Final = 200
_KEY: Final = "key"
_INFO: Final = "info"

logger = logging.getLogger(__name__)


def provision_key(resource: ResourceConfig, infra: InfraConfig) -> str:
    """The name of a record."""
    return f"{resource.name}@{infra.fingerprint()}"


class ProvisionStore:
    """The records in one folder, which is created when the first one is written."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path: Final = Path(path) if path is not None else _DEFAULT_STORE_DIR

    def get(self, key: str) -> dict[str, Any] | None:
        """What was recorded; None if nothing was, or if it cannot be read."""
        read = _read(self._file(key))
        return read[1] if read is not None and read[0] == key else None

    def put(self, key: str, info: dict[str, Any]) -> None:
        """Record it, in place of what was recorded before."""
        text = json.dumps({_KEY: key, _INFO: info}, ensure_ascii=False, indent=1)
        self.path.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.path, prefix=".writing-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).replace(self._file(key))
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def delete(self, key: str) -> bool:
        """Forget it; returns whether there was a record."""
        try:
            self._file(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def list(self) -> list[tuple[str, dict[str, Any]]]:
        """All records that can be read, by key."""
        found = (_read(path) for path in self.path.glob("*.json")) if self.path.is_dir() else ()
        return sorted((record for record in found if record is not None), key=lambda record: record[0])

    def _file(self, key: str) -> Path:
        """Distinct keys have distinct files, also where characters had to be replaced."""
        name = _UNSAFE.sub("_", key)
        if name != key or len(name) > _LONGEST or name.startswith("."):
            digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:12]
            name = f"{name[:_LONGEST].lstrip('.')}-{digest}"
        return self.path / f"{name}.json"


def _read(path: Path) -> tuple[str, dict[str, Any]] | None:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("The provision record %s cannot be read (%s) and counts as missing.", path, error)
        return None
    key, info = (document.get(_KEY), document.get(_INFO)) if isinstance(document, dict) else (None, None)
    if not isinstance(key, str) or not isinstance(info, dict):
        logger.warning("The provision record %s has the wrong form and counts as missing.", path)
        return None
    return key, info
