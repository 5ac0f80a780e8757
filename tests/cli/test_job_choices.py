"""What a job runs: tasks, agents and models, by options or from a file; and jobs beside each other."""

import json
import xml.etree.ElementTree as ET

import pytest

from benchflow.cli.eval.run import combinations, job_names
from benchflow.errors import UsageError
from benchflow.evaluation.compare import compare, compare_all
from benchflow.evaluation.reports.job_report import comparison_lines, together_lines
from benchflow.evaluation.statistics import sign_test
from benchflow.evaluation.task_choice import chosen_tasks
from benchflow.evaluation.work import TaskRef
from benchflow.record import Job, TaskChoice, TaskId
from loaded_commands import bench

TASKS = [TaskRef(TaskId(f"acme/{name}", "sha256:0"), f"tasks/{name}", None) for name in "abcdefghij"]


def names(**choice):
    return "".join(task.name[-1] for task in chosen_tasks(TASKS, TaskChoice(**choice)))


def test_tasks_are_chosen_by_name_last_part_and_path():
    assert names(include=("acme/[ab]", "c", "tasks/d")) == "abcd"
    assert names(exclude=("*/[a-h]",), limit=1) == "i"
    with pytest.raises(UsageError, match=r"None of the 10 tasks matches --include 'acme/aa'. Did you mean 'acme/a'\?"):
        names(include=("acme/aa",))


def test_a_sample_depends_on_the_seed_and_the_tasks_alone():
    first = names(sample=4, seed=1)
    assert (len(first), names(sample=4, seed=1), names(sample=40)) == (4, first, "abcdefghij")
    assert len({names(sample=4, seed=seed) for seed in range(20)}) > 5
    others = [task for task in TASKS if task.name[-1] in first]
    assert "".join(task.name[-1] for task in chosen_tasks(others[::-1], TaskChoice(sample=4, seed=1)))[::-1] == first


def test_every_agent_plays_with_every_model_and_those_without_one_once():
    players = combinations(("model", "oracle", "acp:x"), ("m/1", "m/2"))
    assert players == [("model", "m/1"), ("model", "m/2"), ("oracle", None), ("acp:x", "m/1"), ("acp:x", "m/2")]
    assert combinations(("oracle",), ("m",)) == [("oracle", "m")]
    assert job_names("n", players)[:3] == ["n__model__m-1", "n__model__m-2", "n__oracle"]
    assert len(set(job_names("n", [("acp:a b", None), ("acp:a-b", None)]))) == 2


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.yaml",
            "paths: [t]\natempts: 3\n",
            "a.yaml:2: 'atempts' is not an option of `bench eval run`. Did you mean",
        ),
        ("a.toml", 'agent = "nop"\n\nattempts = "many"\n', "a.toml:3: attempts: "),
        ("a.yaml", "agent: nop\nsandbox: [a, b]\n", "a.yaml:2: sandbox takes one value, not a list."),
        ("a.yaml", "agent: nop\nworkspaces: maybe\n", "a.yaml:2: workspaces must be true or false."),
        ("a.yaml", "agent: nop\npaths: {a: 1}\n", "a.yaml:2: paths must be a list of paths."),
        ("a.yaml", "agent: [\n", "a.yaml:"),
        ("a.yaml", "- agent\n", "a.yaml:1: a job file is a mapping of options."),
        ("a.json", "{}", "must end in .yaml, .yml or .toml"),
        ("a.yaml", None, "--config a.yaml cannot be read: No such file or directory."),
        ("a.yaml", "paths: [t]\n", "Missing option '--agent'."),
        ("a.yaml", "agent: nop\n", "Missing argument 'PATH...'."),
    ],
)
def test_a_job_file_is_refused_with_its_line(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    refused = bench("eval", "run", "--config", name, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert not (tmp_path / "jobs").exists()


@pytest.mark.sandbox
def test_a_job_file_gives_the_options_and_the_command_line_replaces_them(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / "tasks" / name / "verifier").mkdir(parents=True)
        (tmp_path / "tasks" / name / "task.md").write_text(f"---\ntask: {{name: acme/{name}}}\n---\nGo.\n")
        (tmp_path / "tasks" / name / "verifier" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    options = 'paths = ["tasks"]\nagent = ["script:a.sh", "nop"]\nsandbox = "local"\nexclude = ["c"]\n'
    options += 'attempts = 7\nname = "n"\n'
    (tmp_path / "job.toml").write_text(options)
    (tmp_path / "a.sh").write_text("true\n")
    done = bench("eval", "run", "--config", "job.toml", "--attempts", "1", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)["jobs"]
    assert [(job["job"], job["total"], job["tasks"]) for job in found] == [("n__script-a.sh", 2, 2), ("n__nop", 2, 2)]
    record = Job(tmp_path / "jobs" / "n__nop").record
    assert (record.request.attempts, record.request.choice.exclude, record.planned) == (1, ("c",), 2)
    again = bench("eval", "run", "--config", "job.toml", cwd=tmp_path)
    assert (again.returncode, "exists in jobs" in again.stderr) == (2, True)


@pytest.fixture
def jobs(tmp_path, make_result, make_job):
    """Three jobs over some tasks: the second gains two and loses one."""
    rewards = {"one": "110000", "two": "011100", "three": "111111"}
    for name, line in rewards.items():
        results = [
            make_result(f"t{place}", float(reward), usage={"cost_usd": 0.5}) for place, reward in enumerate(line)
        ]
        make_job(tmp_path / "jobs", name, results, agent="model", model=f"m{len(name)}{name[0]}")
    return tmp_path


def test_two_jobs_list_the_tasks_that_flipped(jobs):
    shown = bench("eval", "compare", "one", "two", cwd=jobs).stdout
    assert "pass only in two (2): t2, t3" in shown
    assert "pass only in one (1): t0" in shown
    flips = json.loads(bench("eval", "compare", "one", "two", "--json", cwd=jobs).stdout)["flips"]
    assert flips == {"gained": ["t2", "t3"], "lost": ["t0"], "chance": 1.0}


def test_several_jobs_are_a_table_of_models_and_agents(jobs):
    done = bench("eval", "compare", "one", "two", "three", cwd=jobs)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "mean reward on the 6 tasks that all jobs have scored, 95 % intervals"
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["model", "model"],
        ["m3o", "0.333"],
        ["m3t", "0.500"],
        ["m5t", "1.000"],
    ]
    found = json.loads(bench("eval", "compare", "one", "two", "three", "--json", cwd=jobs).stdout)
    assert [player["mean"]["value"] for player in found["jobs"]] == pytest.approx([1 / 3, 1 / 2, 1])
    assert [one["verdict"] for one in found["against_first"]] == ["no clear difference", "better"]
    assert bench("eval", "compare", "three", "one", "two", "--fail-if-worse", cwd=jobs).returncode == 1


def test_jobs_without_a_common_task_say_so(jobs, make_result, make_job):
    make_job(jobs / "jobs", "other", [make_result("elsewhere", 1.0)])
    found = compare_all([(name, Job(jobs / "jobs" / name)) for name in ("one", "two", "other")])
    assert (found.shared, next(iter(together_lines(found)))) == (0, "No task was scored in all jobs.")


@pytest.mark.parametrize(("gained", "lost", "chance"), [(0, 0, None), (1, 0, 1.0), (5, 0, 0.0625), (9, 1, 0.021484375)])
def test_the_chance_of_flips_is_that_of_a_sign_test(gained, lost, chance):
    assert sign_test(gained, lost) == sign_test(lost, gained) == chance


@pytest.mark.parametrize(
    ("gained", "said"), [(1, "may be chance (sign test, p = 1)"), (6, "unlikely to be chance (sign")]
)
def test_flips_are_called_chance_unless_they_are_unlikely(gained, said, tmp_path, make_result, make_job):
    for name, reward in (("before", 0.0), ("after", 1.0)):
        make_job(tmp_path, name, [make_result(f"task{number}", reward) for number in range(gained)])
    found = compare("before", Job(tmp_path / "before"), "after", Job(tmp_path / "after"))
    line = next(line for line in comparison_lines(found) if "gained" in line)
    assert line.startswith(f"{gained} gained, 0 lost: {said}")


@pytest.mark.slow
def test_jobs_are_plotted_and_the_same_jobs_give_the_same_file(jobs):
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        done = bench("eval", "compare", "one", "two", "--plot", name, cwd=jobs)
        assert (done.returncode, done.stderr) == (0, f"Wrote {name}\n")
    assert (jobs / "a.svg").read_bytes() == (jobs / "b.svg").read_bytes()
    texts = [element.text for element in ET.parse(jobs / "a.svg").iter() if element.tag.endswith("text")]
    assert {"Rewards", "pass@k", "Cost against reward", "one (6)"} <= set(texts)
    alone = bench("eval", "compare", "one", "--plot", "c.png", cwd=jobs)
    assert (alone.returncode, (jobs / "c.png").read_bytes()[:4]) == (0, b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["one"], "Name at least two jobs"),
        (["one", "--plot", "x.txt"], "the name must end in .svg, .png, .pdf"),
        (["one", "--plot", "no/such/x.svg"], "cannot be written"),
    ],
)
def test_a_plot_or_comparison_that_cannot_be_is_refused(jobs, words, said):
    refused = bench("eval", "compare", *words, cwd=jobs)
    assert (refused.returncode, refused.stdout, said in refused.stderr) == (2, "", True)
