"""A `task.toml` of any schema becomes a configuration; nothing in it is lost or silently ignored."""

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.task_toml import import_task_config_toml, read_task_toml

OLD = """\
version = "1.0"

[metadata]
difficulty = "easy"
when = 2024-05-01

[verifier]
timeout_sec = 180.0

[agent]
timeout_sec = 900.0

[environment]
build_timeout_sec = 600.0
memory = "2G"
storage = "10G"
allow_internet = false
"""

NEW = """\
schema_version = "1.4"
artifacts = ["/app/report.json", { source = "/var/log/api/req.log", service = "api" }]

[task]
name = "acme/fix-report"
version = "1.0.0"

[agent]
timeout_sec = 900
network_mode = "allowlist"
allowed_hosts = ["Api.Example.com.", "*.example.org", "10.0.0.0/8"]

[verifier]
environment_mode = "separate"
[verifier.environment]
network_mode = "no-network"
cpus = 1.5
[[verifier.collect]]
service = "api"
command = "cat /proc/1/status"

[environment]
cpus = 2
os = "Linux"
env = { TOKEN = "${TOKEN:-none}" }
[environment.healthcheck]
command = "test -f /tmp/ready"
[[environment.mcp_servers]]
name = "tools"
transport = "http"
url = "u"

[solution.env]
A = "b"
"""


def codes(issues, severity="error"):
    return {(issue.code, issue.path, issue.line) for issue in issues if issue.severity == severity}


def test_the_first_schema_is_read_with_its_old_spellings():
    imported = import_task_config_toml(OLD)
    environment = imported.config.environment
    assert (environment.memory_mb, environment.storage_mb) == (2048, 10240)
    assert environment.network_mode == "no-network"
    assert imported.config.schema_version == "1.0"
    assert imported.compatibility.status == "strict"
    assert "memory" not in imported.declared["environment"]


def test_the_newest_schema_is_read_whole():
    imported = import_task_config_toml(NEW)
    config = imported.config
    assert imported.compatibility.to_dict() == {
        "source": "task.toml",
        "status": "strict",
        "config_extra": {},
        "config_extra_paths": [],
    }
    assert config.agent.allowed_hosts == ("api.example.com", "*.example.org", "10.0.0.0/8")
    assert config.artifacts[1].service == "api"
    assert config.verifier.environment.cpus == 1.5
    assert config.environment.mcp_servers[0].transport == "streamable-http"
    assert config.oracle.env == {"A": "b"}
    assert imported.issues == ()


def test_unknown_keys_are_preserved_with_a_warning_on_their_line():
    environment = '[environment]\ncpus = 2\nmodal = { image = "x" }\n'
    text = environment + '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\nrunner = 1\n'
    imported = import_task_config_toml(text, source="corpus")
    compatibility = imported.compatibility
    assert compatibility.source == "corpus"
    assert compatibility.status == "preserved-extra"
    assert compatibility.config_extra == {
        "environment": {"modal": {"image": "x"}},
        "steps": [None, {"runner": 1}],
    }
    assert compatibility.config_extra_paths == ("environment.modal.image", "steps[1].runner")
    assert codes(imported.issues, "warning") >= {
        ("unknown-key", "environment.modal", 3),
        ("unknown-key", "steps[1].runner", 8),
    }
    assert imported.declared["environment"] == {"cpus": 2}


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ('[agent]\ntimeout_sec = "soon"\n', "agent.timeout_sec", 2),
        ("[environment]\n\nenv = { A = 1 }\n", "environment.env.A", 3),
        ('[task]\nname = "nameless"\n', "task.name", 2),
        ('[[steps]]\nname = "a"\n[steps.verifier]\ntimeout_sec = -1\n', "steps[0].verifier.timeout_sec", 4),
        ("agent = []\n", "agent", 1),
        ('[environment]\nmemory = "4GB"\n', "environment.memory", 2),
    ],
)
def test_a_wrong_value_is_an_error_with_its_file_and_line(text, path, line):
    with pytest.raises(PackageError) as caught:
        import_task_config_toml(text)
    issues = caught.value.issues
    assert {(issue.path, issue.line, issue.file) for issue in issues} == {(path, line, "task.toml")}


def test_all_wrong_values_are_reported_together():
    reading = read_task_toml('[agent]\ntimeout_sec = 0\n[environment]\ncpus = "many"\n')
    assert {path for _, path, _ in codes(reading.issues)} == {"agent.timeout_sec", "environment.cpus"}


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        ('schema_version = "2.0"', {"schema_version": "2.0"}),
        ('version = "nightly"', {"version": "nightly"}),
        ('version = "1.0"\nschema_version = "1.3"', {"version": "1.0"}),
        (
            '[environment]\nallow_internet = false\nnetwork_mode = "public"',
            {"environment": {"allow_internet": False}},
        ),
        ("[environment]\nmemory = 512", {"environment": {"memory": 512}}),
        ('[environment]\nskills_dir = "skills"', {"environment": {"skills_dir": "skills"}}),
        (
            'steps = [{name = "a"}, {name = "b", agent = {skills_dir = "rel"}}]',
            {"steps": [None, {"agent": {"skills_dir": "rel"}}]},
        ),
        ("multi_step_reward_mode = 'mean'", {"multi_step_reward_mode": "mean"}),
    ],
)
def test_what_only_harbor_accepts_is_accepted_and_set_aside(text, extra):
    imported = import_task_config_toml(text)
    assert imported.compatibility.config_extra == extra
    assert codes(imported.issues, "warning")
    assert TaskConfig.model_validate(imported.declared) == imported.config


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ('[task]\nname = "a/b"\nauthors = ["Me"]', "task.authors.0.name", "Me"),
        ('[agent]\nnetwork_mode = "allowlist"', "agent.network_mode", "no-network"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = []', "agent.network_mode", "no-network"),
        ("schema_version = 1.4", "schema_version", "1.4"),
        ('[solution]\nFOO = "x"', "oracle.env.FOO", "x"),
        ("[metadata]\nat = 07:32:00", "metadata.at", "07:32:00"),
        ("[sandbox]\ncpus = 3", "environment.cpus", 3),
        ('artifacts = ["/a"]', "artifacts.0.source", "/a"),
    ],
)
def test_other_spellings_become_the_native_one(text, path, value):
    imported = import_task_config_toml(text)
    found = imported.config.to_dict()
    for part in path.split("."):
        found = found[int(part)] if part.isdigit() else found[part]
    assert found == value
    assert imported.compatibility.status == "strict"
    assert TaskConfig.model_validate(imported.declared) == imported.config


def test_native_keys_that_harbor_does_not_know_take_effect_and_are_remembered():
    imported = import_task_config_toml('[verifier]\ntype = "llm-judge"\n[verifier.judge]\nmodel = "m"\n')
    assert imported.config.verifier.judge.model == "m"
    assert imported.compatibility.status == "strict"
    assert imported.compatibility.config_extra_paths == ("verifier.judge", "verifier.type")


def test_the_isolation_of_an_imported_task_is_chosen_by_proof():
    imported = import_task_config_toml('[[steps]]\nname = "a"\n[steps.verifier]\ntimeout_sec = 5\n')
    assert imported.config.verifier.wanted_isolation == "auto"
    assert imported.config.steps[0].verifier.wanted_isolation is None
    assert imported.issues == ()


def test_a_shared_environment_in_a_task_toml_is_chosen_by_proof_too():
    step = '[[steps]]\nname = "a"\n[steps.verifier]\nenvironment_mode = "shared"\n'
    imported = import_task_config_toml(f'[verifier]\nenvironment_mode = "separate"\n{step}')
    assert imported.config.verifier.wanted_isolation == "separate"
    assert imported.config.steps[0].verifier.wanted_isolation == "auto"


@pytest.mark.parametrize(
    ("text", "isolation"),
    [
        ('[verifier]\nenvironment_mode = "separate"\n', "separate"),
        ('[verifier.environment]\ndocker_image = "debian:12"\n', "separate"),
        ('[verifier]\nisolation = "system"\n', "system"),
        ("[verifier.hardening]\nkeep_system_changes = false\nkeep_processes = false\n", "shared"),
        ("[verifier.hardening]\nkeep_processes = true\n", "services"),
    ],
)
def test_a_declared_isolation_of_an_imported_task_is_left_as_it_is(text, isolation):
    assert import_task_config_toml(text).config.verifier.wanted_isolation == isolation


def test_text_that_is_no_toml_is_one_error():
    reading = read_task_toml("a = 1\nb\n")
    assert reading.config is None
    assert codes(reading.issues) == {("invalid-toml", "", 2)}


SECTIONS = [
    "task",
    "agent",
    "verifier",
    "environment",
    "solution",
    "steps",
    "artifacts",
    "metadata",
    "version",
]
FIELDS = [
    "timeout_sec",
    "env",
    "name",
    "network_mode",
    "allowed_hosts",
    "mcp_servers",
    "cpus",
    "memory",
    "zzz",
]
keys = st.sampled_from([*SECTIONS, *FIELDS, ""])
scalars = st.one_of(
    st.integers(-3, 3),
    st.booleans(),
    st.floats(),
    st.dates(),
    st.times(),
    st.sampled_from(["", "1.0", "a/b", "2G", "allowlist", "separate", "x", "${A}"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(keys, values, max_size=5))
def test_any_toml_is_read_or_refused_with_issues_and_what_is_read_is_valid_natively(document):
    reading = read_task_toml(tomli_w.dumps(document))
    errors = [issue for issue in reading.issues if issue.severity == "error"]
    assert all(issue.file == "task.toml" and issue.message for issue in reading.issues)
    if not errors:
        assert reading.config is not None
        assert TaskConfig.model_validate(reading.config.to_declared_dict()) == reading.config


@pytest.mark.parametrize(
    ("text", "aside", "line"),
    [
        ('[oracle]\nenv = {}\n[solution]\nenv = {A = "b"}\n', "oracle", 1),
        ("[environment]\ncpus = 1\n[sandbox]\ncpus = 2\n", "sandbox", 3),
        ('[environment]\nimage = "a"\ndocker_image = "b"\n', "environment.image", 2),
        ('[verifier]\nsandbox_mode = "shared"\nenvironment_mode = "separate"\n', "verifier.sandbox_mode", 2),
        ("[verifier.environment]\n[verifier.sandbox]\n", "verifier.sandbox", 2),
    ],
)
def test_of_two_spellings_the_one_that_harbor_reads_counts_and_the_other_is_preserved(text, aside, line):
    reading = read_task_toml(text)
    assert [(i.code, i.severity, i.path, i.line) for i in reading.issues] == [("no-effect", "warning", aside, line)]
    assert any(path.startswith(aside) for path in reading.compatibility.config_extra_paths)
    assert reading.config.environment.docker_image in (None, "b")
    assert reading.config.environment.cpus == 1
    assert reading.config.oracle.env in ({}, {"A": "b"})
