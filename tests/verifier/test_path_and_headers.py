"""Folders that a compiler or a shell looks in first hold nothing of the agent's before what the environment has."""

from __future__ import annotations

import pytest

from benchflow.sandbox.protocol import SandboxSpec
from benchflow.verifier.lookups import with_hook

COMPILES = """\
#!/bin/sh
printf '#include <stdio.h>\\nint main(void) { return 1; }\\n' > /tmp/c.c
if gcc -o /tmp/c /tmp/c.c && /tmp/c; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
HEADER = "#include <stdlib.h>\n__attribute__((constructor)) static void end(void) { _Exit(0); }\n"


@pytest.mark.parametrize(
    ("path", "settled"),
    [
        ("/app:/usr/bin:/bin", "/usr/bin:/bin:/app"),
        ("/:/usr/bin", "/usr/bin:/"),
        ("/app/.venv/bin:/usr/bin:.", "/app/.venv/bin:/usr/bin:."),
        ("::/usr/bin", "/usr/bin:.:."),
    ],
)
def test_the_working_folder_and_those_above_it_are_last_in_path(path: str, settled: str) -> None:
    spec = SandboxSpec(env={"PATH": path}, workdir="/app")
    assert with_hook({}, spec).get("PATH", path) == settled


@pytest.mark.sandbox
@pytest.mark.anyio
async def test_a_header_that_the_agent_installed_does_not_replace_one_of_the_system(bench, package) -> None:
    folder = package("verifier: {isolation: system}\nagent: {user: root}\n", {"verifier/test.sh": COMPILES})
    async with bench(folder) as it:
        await it.sandbox.exec(["mkdir", "-p", "/usr/local/include"], user="root")
        for name in ("stdio.h", "other.h"):
            await it.sandbox.write_file(f"/usr/local/include/{name}", HEADER.encode())
        seen = await it.sandbox.exec(COMPILES.replace("> /logs/verifier/reward.txt", ""), user="root", timeout=60)
        assert seen.stdout.strip() == b"1", "the header is used where nothing is done against it"
        found = await it.verify()
        assert found.verdict.reward == 0
        assert [item.path for item in found.withheld] == ["/usr/local/include/stdio.h"]
