"""A vector of environments on this machine and on two Ray nodes of it: CPU per step of the trainer.

The steps are those of `benchflow.trainers.make_vector`, with the same packages in real sandboxes (`true` in a shell of
its own). The trainer is one process, which on a cluster only sends and receives; the CPU of sandboxes is not counted.
Wall time depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from ray_nodes import RayNodes

from benchflow.trainers import make_vector
from lib.side_by_side import compile_ours, print_cells
from trainers import FILES

ENVIRONMENTS = 8


def measured(folder: str, engine: str, address: str | None, rounds: int) -> tuple[float, float]:
    """CPU of this process per step in milliseconds, and steps per second."""
    envs = make_vector(folder, ENVIRONMENTS, engine=engine, address=address, sandbox="local", base_image="host")  # type: ignore[arg-type]  # one of two
    try:
        envs.reset(seed=1)
        for _ in range(5):
            envs.step(("true",) * ENVIRONMENTS)
        started, used = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            envs.step(("true",) * ENVIRONMENTS)
        wall, used = time.perf_counter() - started, time.process_time() - used
    finally:
        envs.close()
    steps = rounds * ENVIRONMENTS
    return used / steps * 1e3, steps / wall


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="fewer steps")
    options.add_argument("--measure", nargs=2, metavar=("ENGINE", "FOLDER"), help=argparse.SUPPRESS)
    given = options.parse_args()
    rounds = 25 if given.quick else 250
    if given.measure:  # in a process of its own, which has the token of the cluster from its start
        engine, folder = given.measure
        address = os.environ["RAY_ADDRESS"] if engine == "ray" else None
        sys.stdout.write(json.dumps(measured(folder, engine, address, rounds)) + "\n")
        return 0
    if not given.quick:
        compile_ours()
    cluster = RayNodes()
    try:
        cluster.join(["one", "two"])
        with tempfile.TemporaryDirectory() as folder:
            for name, text in FILES.items():
                (Path(folder) / name).parent.mkdir(exist_ok=True)
                (Path(folder) / name).write_text(text)
            asked = [sys.executable, __file__, *(["--quick"] if given.quick else []), "--measure"]
            here, there = (
                json.loads(subprocess.run([*asked, engine, folder], env=cluster.environ, stdout=-1, check=True).stdout)
                for engine in ("local", "ray")
            )
    finally:
        cluster.stop()
    names = ("CPU of the trainer per step", "steps per second")
    rows = [[name, f"{one:,.3g}", f"{two:,.3g}"] for name, one, two in zip(names, here, there, strict=True)]
    print_cells([[f"{ENVIRONMENTS} environments; CPU in ms", "on this machine", "over 2 Ray nodes of it"], *rows])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
