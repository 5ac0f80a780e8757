"""Migrated Terminal-Bench tasks are scored as their parser reads the results: real tests in real sandboxes."""

from __future__ import annotations

import textwrap

import pytest

from benchflow.rewards import Unscored
from benchflow.task.interop.migration import migrate_task_to_task_md

pytestmark = [pytest.mark.anyio, pytest.mark.sandbox]

ANSWER = "/app/answer.txt"
PYTEST = f"""\
#!/bin/bash
cat > /tmp/test_it.py <<'EOF'
import pathlib, pytest
def test_answer(): assert pathlib.Path("{ANSWER}").read_text() == "42\\n"
def test_that_always_passes(): pass
@pytest.mark.skip
def test_later(): assert False
EOF
/usr/bin/pytest-3 -p no:cacheprovider -rA /tmp/test_it.py
"""


def marked(name: str, passed: str) -> str:
    return f"""\
#!/bin/bash
echo "{name} starts here"
if grep -qx 42 {ANSWER}; then echo "{passed}"; else echo FAILED; fi
echo "{name} ends here"
exit 0
"""


LONG_CLI = f"""\
#!/bin/bash
mkdir -p /app/test_output
if grep -qx 42 {ANSWER}; then pass=1; else pass=0; fi
echo "{{\\"is_pass\\": $pass, \\"step_score\\": 0.5}}" > /app/test_output/f2p_score.json
printf '== short test summary info ==\\nPASSED t.py::test_old\\n' > /app/test_output/p2p_output.txt
"""
MINIATURES = {
    "pytest": ("", PYTEST, {"passed test_answer", "passed test_that_always_passes"}),
    "swebench": ("", marked("SWEBench results", "PASSED"), {"passed tests"}),
    "sweperf": ("", marked("SWE-Perf results", "PASSED"), {"passed tests"}),
    "mlebench": ("", marked("MLEBench results", "ALL TESTS PASSED"), {"passed tests"}),
    "swelancer": ("", f"grep -qx 42 {ANSWER} && echo SWE Lancer SUCCESS || echo SWE Lancer failure", {"passed task"}),
    "long_cli": (
        "parser_results_f2p: text\nparser_results_p2p: pytest\n",
        LONG_CLI,
        {"passed f2p", "passed p2p: test_old"},
    ),
}


@pytest.fixture
def terminal_bench(tmp_path):
    def make(parser: str, keys: str, script: str):
        folder = tmp_path / "hello"
        (folder / "tests").mkdir(parents=True)
        (folder / "task.yaml").write_text(f"instruction: Answer.\nparser_name: {parser}\n{keys}")
        (folder / "run-tests.sh").write_text(textwrap.dedent(script))
        (folder / "docker-compose.yaml").write_text("services: {client: {working_dir: /app, tty: true}}\n")
        migrate_task_to_task_md(folder, remove_legacy=True)
        return folder

    return make


@pytest.mark.parametrize("parser", MINIATURES)
async def test_the_reward_is_what_the_parser_reads(bench, terminal_bench, parser):
    keys, script, expected = MINIATURES[parser]
    async with bench(terminal_bench(parser, keys, script)) as it:
        assert (await it.verify()).verdict.reward == 0
        assert "failed " in (it.output / "test-results.txt").read_text()
        await it.agent(f"mkdir -p /app; echo 42 > {ANSWER}")
        assert (await it.verify()).verdict.reward == 1
        assert expected <= set((it.output / "test-results.txt").read_text().splitlines())


async def test_tests_that_could_not_run_give_no_reward(bench, terminal_bench):
    async with bench(terminal_bench("swebench", "", "echo SWEBench results starts here; exit 127")) as it:
        verdict = (await it.verify()).verdict
        assert isinstance(verdict, Unscored)
        assert "no test results that the parser swebench recognizes" in (it.output / "test-stdout.txt").read_text()


async def test_a_result_file_that_the_agent_left_does_not_count(bench, terminal_bench):
    async with bench(terminal_bench("long_cli", "parser_results_f2p: text\n", "exit 1")) as it:
        await it.agent("mkdir -p /app/test_output; echo '{\"is_pass\": 1}' > /app/test_output/f2p_score.json")
        assert (await it.verify()).verdict.reward == 0
