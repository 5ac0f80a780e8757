"""Tools that an environment built for itself stay its own, wherever they lie; what an agent builds is the agent's."""

from __future__ import annotations

import pytest

from benchflow.sandbox.protocol import Change
from benchflow.verifier.shared_box import as_built, outermost
from benchflow.verifier.surviving.survival import Rules, withhold

DOCKERFILE = """\
    FROM debian:12
    WORKDIR /app
    RUN python3 -m venv --without-pip /app/.venv && ln -s .venv /app/env
    RUN mkdir -p /srv/conda/conda-meta "/app/web ui/node_modules/x/node_modules" /app/src/lib /usr/share/x/node_modules
    RUN mkdir -p /app/python/bin /app/other && echo 'home = /app/python/bin' > /app/other/pyvenv.cfg
    """
USES = """\
    #!/bin/sh
    if /app/.venv/bin/python -c 'import added'; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
    """
INSTALL = "cd /app/.venv/lib/python3*/site-packages && touch added.py"


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_tools_in_an_image_are_found_with_nothing_but_its_shell(bench, package):
    files = {"environment/Dockerfile": DOCKERFILE + "    RUN rm -f /usr/bin/find\n", "verifier/test.sh": USES}
    async with bench(package(files=files), base_image="host") as it:
        assert (await as_built(it.environment)).tools == (
            "/app/.venv",
            "/app/env",
            "/app/other",
            "/app/python",
            "/app/web ui/node_modules",
            "/srv/conda",
        )


@pytest.mark.anyio
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.sandbox
async def test_what_an_agent_installs_into_them_counts_where_the_package_says_so(bench, package, kept):
    frontmatter = f"verifier: {{hardening: {{keep_system_changes: {str(kept).lower()}}}}}\n"
    files = {"environment/Dockerfile": DOCKERFILE, "verifier/test.sh": USES}
    async with bench(package(frontmatter, files), base_image="host") as it:
        await it.agent(INSTALL)
        found = await it.verify()
    assert found.verdict.reward == kept
    assert ("verifier.hardening.keep_system_changes" in found.opt_outs) == kept
    lost = [item.path.rpartition("/")[2] for item in found.withheld if item.reason == "path"]
    assert lost == ([] if kept else ["added.py"])


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_a_library_of_links_to_another_does_not_stop_a_verifier_that_is_not_root(bench, package):
    links = "cd /usr/local/lib && mkdir python3.99 && ln -s /usr/lib/python3.1?/encodings python3.99"
    files = {"environment/Dockerfile": f"FROM debian:12\nRUN {links}\nWORKDIR /app\n", "verifier/test.sh": USES}
    async with bench(package("verifier: {user: 4242}\n", files), base_image="host") as it:
        assert not any("3.99" in place for place in (await as_built(it.environment)).stdlibs)
        await it.agent(f"python3 -m venv --without-pip /app/.venv; {INSTALL}")
        assert (await it.verify()).verdict.reward == 1


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_a_virtual_environment_of_the_agents_own_is_its_work(bench, package):
    files = {"environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n", "verifier/test.sh": USES}
    async with bench(package(files=files), base_image="host") as it:
        await it.agent(f"python3 -m venv --without-pip /app/.venv; {INSTALL}")
        assert (await it.verify()).verdict.reward == 1


@pytest.mark.anyio
@pytest.mark.sandbox
async def test_separate_verification_keeps_its_own_tools_and_takes_the_rest_without_links(bench, package):
    frontmatter = "verifier: {environment_mode: separate}\nartifacts: [/app, /app/.venv]\n"
    script = """\
        #!/bin/sh
        /app/.venv/bin/python -c 'print("python works")'
        ls -A /app /app/sub
        echo 1 > /logs/verifier/reward.txt
        """
    dockerfile = """\
        FROM debian:12
        WORKDIR /app
        RUN python3 -m venv --without-pip /app/.venv && mkdir sub && touch sub/old old && ln -s /etc/hostname sub/link
        """
    files = {"environment/Dockerfile": dockerfile, "verifier/test.sh": script}
    async with bench(package(frontmatter, files), base_image="host") as it:
        await it.agent("rm old sub/old; touch new sub/.new; rm -rf .venv")
        found = await it.verify()
        printed = (it.output / "test-stdout.txt").read_text().split("\n")
    assert printed == ["python works", "/app:", ".venv", "new", "sub", "", "/app/sub:", ".new", ""]
    assert [(issue.code, issue.path) for issue in found.diagnostics] == [("not-transferred", "/app/.venv")]


def test_of_a_virtual_environment_around_the_working_folder_only_its_parts_are_protected():
    assert outermost(["/app", "/usr/bin"], "/app") == (
        "/app/bin", "/app/conda-meta", "/app/lib", "/app/lib64", "/app/pyvenv.cfg",
    )  # fmt: skip


def test_tools_in_the_system_need_no_protection_unless_the_agent_works_there():
    assert outermost(["/usr/venv", "/usr/app/.venv", "relative", ""], "/usr/app") == ("/usr/app/.venv",)


@pytest.mark.parametrize(
    ("change", "withheld"),
    [
        (Change("/app/tools/.venv/bin/python", "changed", "file"), True),
        (Change("/app/tools/.venv", "added", "symlink", target="/app/x"), True),
        (Change("/app/tools", "changed", "symlink", target="mine"), True),
        (Change("/app/tools", "deleted", "directory"), True),
        (Change("/app/tools", "changed", "file"), True),
        (Change("/app/tools", "changed", "directory"), False),
        (Change("/app/tools/.venv2/bin/python", "added", "file"), False),
    ],
)
@pytest.mark.parametrize("how", ["built", "lookup"])
def test_neither_tools_nor_the_way_to_them_can_be_replaced(change, withheld, how):
    rules = Rules("/app", **{how: ("/app/tools/.venv",)})
    assert [item.reason for item in withhold([change], rules)] == (["path"] if withheld else [])
