"""`python -m benchflow.cluster.ray_probe ADDRESS`: whether a Ray cluster answers there, as one line of JSON.

It runs as a process of its own, because Ray ends the process that asks when a token is missing, repeats for a minute
what cannot succeed, and prints all of it.
"""

from __future__ import annotations

import json
import sys


def probe(address: str) -> dict[str, str]:
    """`address`, `ray` and `python` of the cluster; or `failure` (`token`, `none`, `closed`) and Ray's `message`."""
    from importlib import import_module

    from ray._private.services import canonicalize_bootstrap_address_or_die
    from ray.exceptions import AuthenticationError, RayError

    client = import_module("ray._raylet").GcsClient

    try:
        place = canonicalize_bootstrap_address_or_die(None if address == "auto" else address)  # type: ignore[arg-type] # None: look for one
    except (OSError, ValueError) as error:
        return {"failure": "none", "message": str(error)}
    try:
        kept = client(address=place).internal_kv_get(b"CLUSTER_METADATA", b"cluster")
    except AuthenticationError as error:
        return {"failure": "token", "message": str(error)}
    except (RayError, OSError, RuntimeError) as error:
        return {"failure": "closed", "message": str(error)}
    found = json.loads(kept or b"{}")
    return {"address": place, "ray": found.get("ray_version", ""), "python": found.get("python_version", "")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe(sys.argv[1])) + "\n")
