"""What an image says about itself: environment, user, command, healthcheck.

Read from and written in the form of the `config` object of an OCI image.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchflow.sandbox.protocol import Healthcheck, Image

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_SHELL: Final = ("/bin/sh", "-c")
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The settings of an image; a Dockerfile changes them from instruction to instruction."""

    env: Mapping[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    workdir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    shell: tuple[str, ...] = DEFAULT_SHELL
    healthcheck: Healthcheck | None = None
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_signal: str | None = None
    maintainer: str | None = None
    triggers: tuple[str, ...] = ()
    """ONBUILD instructions that a build on this image would have to run first."""

    def to_oci(self) -> dict[str, Any]:
        """The `config` object of an OCI image configuration, empty fields left out."""
        values: dict[str, Any] = {
            "User": self.user,
            "ExposedPorts": {port: {} for port in self.ports},
            "Env": [f"{name}={value}" for name, value in self.env.items()],
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "Volumes": {path: {} for path in self.volumes},
            "WorkingDir": self.workdir,
            "Labels": dict(self.labels),
            "StopSignal": self.stop_signal,
            "Maintainer": self.maintainer,
            "OnBuild": list(self.triggers),
            "Shell": list(self.shell) if self.shell != DEFAULT_SHELL else None,
            "Healthcheck": _healthcheck_to_oci(self.healthcheck) if self.healthcheck else None,
        }
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_oci(cls, values: Mapping[str, Any]) -> ImageConfig:
        """Read the `config` object of an OCI or Docker image; what is absent gets its default."""
        env = dict(item.partition("=")[::2] for item in values.get("Env") or ())
        return cls(
            env=env or {"PATH": DEFAULT_PATH},
            workdir=values.get("WorkingDir") or None,
            user=values.get("User") or None,
            entrypoint=_words(values.get("Entrypoint")),
            command=_words(values.get("Cmd")),
            shell=tuple(values.get("Shell") or DEFAULT_SHELL),
            healthcheck=_healthcheck_from_oci(values.get("Healthcheck") or {}),
            ports=tuple(values.get("ExposedPorts") or ()),
            volumes=tuple(values.get("Volumes") or ()),
            labels=dict(values.get("Labels") or {}),
            stop_signal=values.get("StopSignal"),
            maintainer=values.get("Maintainer"),
            triggers=tuple(values.get("OnBuild") or ()),
        )

    def image(self, digest: str, *, base: str, layers: Sequence[Path] = ()) -> Image:
        """An image with these settings, known by its digest."""
        return Image(
            reference=digest,
            digest=digest,
            layers=tuple(layers),
            env=dict(self.env),
            workdir=self.workdir,
            user=self.user,
            entrypoint=self.entrypoint,
            command=self.command,
            healthcheck=self.healthcheck,
            base=base,
        )


def image_digest(layers: Sequence[str], config: ImageConfig) -> str:
    """The identity of an image: its layers in order and its settings."""
    record = json.dumps([list(layers), config.to_oci()], sort_keys=True)
    return "sha256:" + hashlib.sha256(record.encode()).hexdigest()


def _words(value: object) -> tuple[str, ...]:
    """A command; old images have it as one text."""
    if isinstance(value, str):
        return tuple(shlex.split(value))
    return tuple(str(word) for word in value) if isinstance(value, list | tuple) else ()


def _healthcheck_to_oci(check: Healthcheck) -> dict[str, Any]:
    shell = isinstance(check.command, str)
    return {
        "Test": ["CMD-SHELL", check.command] if shell else ["CMD", *check.command],
        "Interval": round(check.interval_sec * _NANOSECONDS),
        "Timeout": round(check.timeout_sec * _NANOSECONDS),
        "StartPeriod": round(check.start_period_sec * _NANOSECONDS),
        "StartInterval": round(check.start_interval_sec * _NANOSECONDS),
        "Retries": check.retries,
    }


def _healthcheck_from_oci(values: Mapping[str, Any]) -> Healthcheck | None:
    """None for no check and for one that is switched off; durations of 0 mean the defaults of the format."""
    test = values.get("Test") or ["NONE"]
    if test[0] == "NONE" or len(test) < 2:
        return None
    return Healthcheck(
        command=test[1] if test[0] == "CMD-SHELL" else tuple(test[1:]),
        interval_sec=(values.get("Interval") or 30 * _NANOSECONDS) / _NANOSECONDS,
        timeout_sec=(values.get("Timeout") or 30 * _NANOSECONDS) / _NANOSECONDS,
        start_period_sec=(values.get("StartPeriod") or 0) / _NANOSECONDS,
        start_interval_sec=(values.get("StartInterval") or 5 * _NANOSECONDS) / _NANOSECONDS,
        retries=values.get("Retries") or 3,
    )
