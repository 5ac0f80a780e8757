"""Real folders: a split task, a multi-step one, a native package, a Terminal-Bench folder."""

import hashlib
from pathlib import Path

import pytest


def write_tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if name.endswith(".sh"):
            path.chmod(0o755)
    return root


def snapshot(root: Path) -> dict[str, tuple[str, int]]:
    """Every file and folder with its content and permissions."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = (f"-> {path.readlink()}", 0)
        elif path.is_file():
            found[name] = (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode & 0o777)
        else:
            found[name] = ("folder", 0)
    return found


SPLIT = {
    "task.toml": """\
schema_version = "1.4"
artifacts = ["/app/out.txt"]

[task]
name = "acme/split"
description = "A split task"

[metadata]
since = 2024-05-01

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 30.0

[environment]
cpus = 2
memory = "1G"

[environment.modal]
image = "x"

[solution.env]
A = "b"
""",
    "instruction.md": "Write /app/out.txt.\n\n## prompt\n\nThe heading above is part of the text.\n",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "environment/data/x.bin": bytes(range(256)),
    "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/bash\necho done > /app/out.txt\n",
    "README.md": "About.\n",
}

STEPS = {
    "task.toml": """\
schema_version = "1.3"
multi_step_reward_strategy = "final"

[task]
name = "acme/steps"

[[steps]]
name = "first"
min_reward = 0.5

[[steps]]
name = "second"
runner = "x"
[steps.verifier]
timeout_sec = 5
""",
    "environment/Dockerfile": "FROM ubuntu:24.04\n",
    "tests/common.sh": "true\n",
    "steps/first/instruction.md": "First.\n",
    "steps/first/tests/test.sh": "#!/bin/bash\n",
    "steps/first/solution/solve.sh": "#!/bin/bash\n",
    "steps/first/workdir/setup.sh": "#!/bin/bash\n",
    "steps/second/instruction.md": "Second.\n",
    "steps/second/tests/test.sh": "#!/bin/bash\nfalse\n",
}

NATIVE = {
    "task.md": """\
---
schema_version: "1.3"
task: {name: acme/native}
agent: {timeout_sec: 60}
environment: {cpus: 1}
oracle: {env: {A: b}}
---

Do it.
""",
    "environment/Dockerfile": "FROM ubuntu:24.04\n",
    "verifier/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "#!/bin/bash\ntrue\n",
}

TERMINAL_BENCH = {
    "task.yaml": """\
instruction: |-
  Create hello.txt.

  ## role:agent
author_name: Ann
author_email: ann@example.org
difficulty: easy
category: files
tags: [files]
parser_name: pytest
max_agent_timeout_sec: 360.0
max_test_timeout_sec: 60.0
run_tests_in_same_shell: false
disable_asciinema: false
""",
    "docker-compose.yaml": """\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
      - MODE=fast
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
""",
    "Dockerfile": "FROM ubuntu:24.04\nCOPY data/in.txt /app/\n",
    "data/in.txt": "in\n",
    "run-tests.sh": "#!/bin/bash\npytest $TEST_DIR/test_outputs.py -rA\n",
    "solution.sh": "#!/bin/bash\ntouch hello.txt\n",
    "tests/test_outputs.py": "def test_it(): pass\n",
}


@pytest.fixture
def tree():
    return write_tree


@pytest.fixture
def look():
    return snapshot


@pytest.fixture
def split(tmp_path):
    return write_tree(tmp_path / "split", SPLIT)


@pytest.fixture
def steps(tmp_path):
    return write_tree(tmp_path / "steps", STEPS)


@pytest.fixture
def native(tmp_path):
    return write_tree(tmp_path / "native", NATIVE)


@pytest.fixture
def terminal_bench(tmp_path):
    return write_tree(tmp_path / "hello", TERMINAL_BENCH)


@pytest.fixture
def make_native(tmp_path):
    """A native package with other frontmatter, body or files."""

    def make(frontmatter: str, body: str = "Do it.", **files: str) -> Path:
        named = {name.replace("__", "/").replace("_DOT_", "."): text for name, text in files.items()}
        return write_tree(tmp_path / "native", {**NATIVE, "task.md": f"---\n{frontmatter}\n---\n{body}\n", **named})

    return make
