"""Whatever a `task.toml` says, and however it says it, comes back from a `task.md` key by key, unless it was edited."""

import datetime as dt
import tomllib
from dataclasses import replace

import pytest
import tomli_w
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from benchflow.task.config.namespace import SourceInstruction
from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.document.task_document import TaskDocument
from benchflow.task.document.task_toml import read_harbor_config, read_task_toml
from benchflow.task.interop.instruction_text import as_in_source, source_instruction
from benchflow.task.interop.migration import render_split
from benchflow.task.interop.spelling import same
from benchflow.task.interop.toml_export import Preserved, harbor_toml

REFUSED_SERVER = """\
[[environment.mcp_servers]]
name = "a"
command = "c"
transport = "stdio"
headers = {A = "b"}
[[environment.mcp_servers]]
name = "b"
url = "u"
"""
TWO_STEPS = """\
[[steps]]
name = "one"
[steps.verifier]
[[steps]]
name = "two"
[steps.agent]
[steps.verifier]
type = "test-script"
[steps.verifier.sandbox]
memory = "1G"
when = 07:00:00
"""


def exported(task_md):
    """The `task.toml` of a document, parsed."""
    document = TaskDocument.from_text(task_md)
    data = harbor_toml(document.config, Preserved.of_document(document.namespace.compat)).data
    return tomllib.loads(tomli_w.dumps(data))


def compat(toml):
    return TaskDocument.from_text(render_split(toml, "Do it.\n").text).namespace.compat


@pytest.mark.parametrize(
    "toml",
    [
        "",
        'version = "1.0"',
        "version = 1.0",
        "schema_version = 1",
        "schema_version = 2.0",
        'schema_version = "next"',
        'version = "1.0"\nschema_version = "1.3"',
        'multi_step_reward_mode = "mean"',
        '[verifier]\ntype = "test-script"',
        '[verifier]\nservice = "main"',
        '[verifier]\nservice = "db"\ntype = "llm-judge"',
        "[verifier]",
        '[verifier]\nisolation = "auto"',
        '[verifier]\nisolation = "open"',
        '[verifier]\nisolation = "separate"',
        '[verifier]\nisolation = "shared"',
        '[verifier]\nenvironment_mode = "shared"',
        '[verifier]\nsandbox_mode = "separate"\n[verifier.sandbox]\nmemory = "1G"',
        '[verifier]\nsandbox_mode = "shared"\nenvironment_mode = "separate"\n[verifier.sandbox]\nx = 1\n',
        "[verifier.sandbox]\ncpus = 1\n[verifier.environment]\n",
        "[verifier.hardening]",
        "[verifier.hardening]\ncleanup_conftests = true",
        "[verifier.hardening]\nkeep_processes = true\nzeal = 3",
        "[verifier]\npytest_plugins = []\nreward_range = [-1, 1.5]",
        '[verifier]\npytest_plugins = ["a"]\ntimeout_sec = "600"',
        "[verifier.judge]",
        '[verifier]\ntype = "llm-judge"\n[verifier.judge]\nrubric_path = "tests/rubric.toml"',
        '[verifier.memory]\nexpected_skills = ["a"]',
        '[[verifier.collect]]\ncommand = "c"\nuser = "root"\nservice = "main"',
        "[oracle]",
        "[solution]",
        '[oracle.env]\nA = "b"',
        '[oracle]\nA = "b"\nfoo = 1\ntimeout_sec = "9"',
        '[solution]\nA = "b"\n[solution.env]\nC = "d"',
        '[oracle]\nenv = {A = "b"}\nx = 1\n[solution]\nenv = {}',
        "[sandbox]\ncpus = 2\n[sandbox.extra]\nx = 07:32:00",
        "[sandbox]\ncpus = 2\nt = 07:32:00\n[environment]\ncpus = 1.0",
        "[reward]",
        "[reward]\na = 1\n[reward.b]\nc = [1, 2.0]",
        '[environment]\nmemory = "2g"\nstorage = "10G"',
        '[environment]\nmemory = "2G"\nmemory_mb = 2048',
        "[environment]\nmemory = 2048\nstorage_mb = 10240.0",
        '[environment]\nimage = "a"',
        '[environment]\nimage = "a"\ndocker_image = "b"',
        "[environment]\nallow_internet = true",
        "[environment]\nallow_internet = false",
        '[environment]\nallow_internet = true\nnetwork_mode = "no-network"',
        '[environment]\nnetwork_mode = "allowlist"',
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = []',
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["A.Example."]',
        '[agent]\nnetwork_mode = "public"\nallowed_hosts = []\ntimeout_sec = 1',
        '[environment]\nos = "Linux"\ncpus = "2"\nskills_dir = "skills"\nbuild_timeout_sec = 600.0',
        '[[environment.mcp_servers]]\nname = "a"\nurl = "u"\ntransport = "http"\nextra = 1',
        REFUSED_SERVER,
        'artifacts = [{source = "/a"}, "/b", {source = "/c", service = "main"}]',
        'artifacts = [{source = "/a", destination = "./x//y", other = 1}]',
        '[task]\nname = "a/b"\nauthors = ["A", {name = "B", url = "u"}]',
        "[metadata]\nat = [07:32:00]\n[metadata.deep]\nnan = nan\nt = 07:32:00.5",
        "[foreign]\n[foreign.deep]\n[[foreign.rows]]\n[[foreign.rows]]\nt = 1979-05-27T07:32:00.123456-07:00",
        'steps = []\n[metadata]\n"a.b" = {"" = 1, "<<" = 2}',
        TWO_STEPS,
        '[[steps]]\nname = "one"\nmin_reward = {reward = 1, a = 0.5}\nartifacts = [{source = "/x"}]',
    ],
)
def test_a_key_comes_back_as_it_was_spelled(toml):
    text = render_split(toml, "Do it.\n").text
    assert exported(text) == tomllib.loads(toml) or "nan" in toml
    assert same(exported(text), tomllib.loads(toml))


def test_nothing_is_recorded_of_a_task_in_the_usual_spelling():
    toml = 'schema_version = "1.3"\n[agent]\ntimeout_sec = 60.0\n[environment]\ncpus = 2\nmemory_mb = 1024\n'
    assert compat(toml).to_declared_dict() == {"source": "task.toml"}


def test_only_what_is_spelled_otherwise_is_recorded():
    toml = (
        'version = "1.0"\n[environment]\ncpus = 2\nmemory = "1G"\n[verifier]\ntype = "test-script"\ntimeout_sec = 5\n'
    )
    assert tomllib.loads(compat(toml).spelling) == {
        "version": "1.0",
        "environment": {"memory": "1G"},
        "verifier": {"type": "test-script"},
    }


@pytest.mark.parametrize(
    ("toml", "old", "new", "result"),
    [
        ('[environment]\nmemory = "2G"\n', "memory_mb: 2048", "memory_mb: 512", {"environment": {"memory_mb": 512}}),
        ('[environment]\nmemory = "2G"\ncpus = "2"\n', "  cpus: 2.0\n", "", {"environment": {"memory": "2G"}}),
        ('[verifier]\ntype = "test-script"\n', "type: test-script", "type: llm-judge", {"verifier": {}}),
        ('[verifier]\ntype = "test-script"\n', "  type: test-script\n", "", {"verifier": {}}),
        ('[verifier]\nisolation = "auto"\n', "isolation: auto", "isolation: shared", {"verifier": {}}),
        (
            "[environment]\nallow_internet = false\n",
            "network_mode: no-network",
            "network_mode: public",
            {"environment": {"network_mode": "public"}},
        ),
        ('[oracle.env]\nA = "b"\n', "A: b", "A: c", {"solution": {"env": {"A": "c"}}}),
        ('[oracle.env]\nA = "b"\n', "    A: b\n", "    A: b\n    C: d\n", {"solution": {"env": {"A": "b", "C": "d"}}}),
        ('version = "1.0"\n', "schema_version: '1.0'", "schema_version: '1.4'", {"schema_version": "1.4"}),
        ("[x]\nat = 07:32:00\n", "at: 07:32:00", "at: noon", {"x": {"at": "noon"}}),
        (
            '[task]\nname = "a/b"\nauthors = ["A"]\n',
            "name: A",
            "name: B",
            {"task": {"name": "a/b", "authors": [{"name": "B"}]}},
        ),
        (
            'steps = [{name = "one", verifier = {timeout_sec = "5"}}, {name = "two", verifier = {timeout_sec = "6"}}]',
            "timeout_sec: 6.0",
            "timeout_sec: 7.0",
            {
                "steps": [
                    {"name": "one", "verifier": {"timeout_sec": "5"}},
                    {"name": "two", "verifier": {"timeout_sec": 7.0}},
                ]
            },
        ),
    ],
)
def test_what_an_author_edits_wins_over_the_spelling_of_the_source(toml, old, new, result):
    text = render_split(toml, "Do it.\n").text
    assert text.count(old) == 1
    assert exported(text.replace(old, new)) == result


def test_a_removed_step_takes_its_spelling_with_it():
    toml = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n[steps.verifier]\ntimeout_sec = "6"\n'
    text = render_split(toml, None).text
    edited = text.replace("  - name: two\n    verifier:\n      timeout_sec: 6.0\n", "")
    assert edited != text
    assert exported(edited) == {"steps": [{"name": "one"}]}


def test_a_broken_record_of_the_spelling_is_an_error_with_its_line():
    from benchflow.task.document.task_document import read_document

    text = render_split('version = "1.0"\n', "Do it.\n").text.replace('version = "1.0"', 'version = "1.0')
    _, issues = read_document(text, sidecars={})
    assert [(i.code, i.severity, i.path, i.line) for i in issues] == [
        ("invalid-toml", "error", "benchflow.compat.spelling", 8)
    ]


@pytest.mark.parametrize("text", ["a", "a\n\n", "\n\n a\r\nb\r\n", "\ufeffa\rb\n\nc\r\nd", "", "\n", " \n\x0b", "a\nb"])
def test_an_instruction_comes_back_byte_by_byte(text):
    form = source_instruction(text)
    document = TaskDocument.from_text(render_split("", text).text)
    assert as_in_source(document.instruction, form) == text
    kept = document.namespace.compat.instruction
    assert (kept.to_declared_dict() if kept else {}) == form.to_declared_dict()


def test_mixed_line_endings_are_used_only_while_there_are_as_many_lines():
    form = source_instruction("a\r\nb\nc\n")
    assert as_in_source("x\ny\nz", form) == "x\r\ny\nz\n"
    assert as_in_source("x\ny", form) == "x\ny\n"


words = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=4).map("x-".__add__)
zones = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-7))])
scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(),
    words,
    st.sampled_from(["a\nb\n", "  a\n\n", "null", "1.0", "=", "07:32:00", "~"]),
    st.dates(),
    st.times(),
    st.datetimes(timezones=zones),
)
foreign = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(words, inner, max_size=2),
        st.lists(st.dictionaries(words, inner, max_size=2), min_size=1, max_size=2),
    ),
    max_leaves=4,
)
unknown = st.dictionaries(names, foreign, max_size=1)
variables = st.dictionaries(st.sampled_from(["A", "B_C"]), words, max_size=2)


patient = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    deadline=None,
)


def one_of(*values):
    return st.sampled_from(values)


def table(**keys):
    """Any of the keys, and perhaps one that nobody knows."""
    return st.builds(lambda known, more: {**more, **known}, st.fixed_dictionaries({}, optional=keys), unknown)


def rows(required, **keys):
    return st.lists(table(**keys).map(lambda row: {**row, **required}), max_size=2)


seconds = one_of(60, 60.0, "60", 0.5)
network = {"network_mode": one_of("public", "no-network", "allowlist"), "allow_internet": st.booleans()}
hosts = one_of([], ["a.example"], ["A.Example."])
agents = table(timeout_sec=seconds, user=one_of("root", 0), allowed_hosts=hosts, network_mode=network["network_mode"])
environments = table(
    **network,
    allowed_hosts=hosts,
    build_timeout_sec=seconds,
    docker_image=one_of("a:1"),
    image=one_of("b:2"),
    os=one_of("linux", "Linux"),
    cpus=one_of(1, 2.0, "2"),
    memory=one_of("2G", "512m", 2048),
    memory_mb=one_of(2048, 2048.0, "512"),
    storage=one_of("10G", "1K"),
    gpus=one_of(0, "1"),
    tpu=table().map(lambda more: {**more, "type": "v5", "topology": "2x4"}),
    mcp_servers=rows({"name": "s", "url": "u"}, transport=one_of("http", "sse", "streamable-http")),
    env=variables,
    skills_dir=one_of("skills", "/skills"),
    healthcheck=table(retries=one_of(3, 3.0)).map(lambda more: {**more, "command": "true"}),
    workdir=one_of("/app"),
)
verifiers = table(
    type=one_of("test-script", "llm-judge"),
    service=one_of("main", "db"),
    timeout_sec=seconds,
    env=variables,
    reward_range=one_of([0, 1], [-1.0, 2]),
    isolation=one_of("auto", "open", "shared", "separate"),
    environment_mode=one_of("shared", "separate"),
    sandbox_mode=one_of("shared", "separate"),
    environment=environments,
    sandbox=environments,
    collect=rows({"command": "c"}, service=one_of("main", "db")),
    judge=table(model=one_of("m"), rubric_path=one_of("tests/rubric.toml", "./r.toml")),
    memory=table(expected_skills=one_of([], ["a"])),
    hardening=table(cleanup_conftests=st.booleans(), keep_processes=st.booleans()),
    pytest_plugins=one_of([], ["p"]),
)
artifacts = one_of([], ["/a"], [{"source": "/a"}], ["/b", {"source": "/a", "exclude": []}], [{"source": "/a", "y": 1}])
oracles = table(env=variables, timeout_sec=seconds, HOME=one_of("/h"), Home=one_of("/h"))
steps = st.lists(
    table(agent=agents, verifier=verifiers, min_reward=one_of(1, {"a": 0.5}), artifacts=artifacts), max_size=2
).map(lambda found: [{**step, "name": f"step-{index}"} for index, step in enumerate(found)])
tasks = table(
    schema_version=one_of("1.0", "1.4", 1, 1.3, "2.7", "next"),
    version=one_of("1.0", 1.0, "x"),
    task=table(authors=one_of([], ["A"], [{"name": "A"}, "B"]), keywords=one_of([], ["k"])).map(
        lambda task: {**task, "name": "acme/t"}
    ),
    metadata=st.dictionaries(words, foreign, max_size=2),
    agent=agents,
    verifier=verifiers,
    environment=environments,
    sandbox=environments,
    oracle=oracles,
    solution=oracles,
    source=words,
    artifacts=artifacts,
    steps=steps,
    multi_step_reward_strategy=one_of("mean", "final"),
    reward=st.dictionaries(words, foreign, max_size=2),
)


@pytest.mark.slow
@patient
@given(tasks)
def test_any_task_comes_back_key_by_key(task):
    toml = tomli_w.dumps(task)
    assume(not any(issue.severity == "error" for issue in read_task_toml(toml).issues))
    assert same(exported(render_split(toml, "Do it.\n").text), tomllib.loads(toml))


@pytest.mark.slow
@patient
@given(tasks, tasks)
@example({"artifacts": [{"source": "/a", "y": 1}]}, {"artifacts": [{"source": "/a", "y": 1}]})
def test_no_spelling_changes_what_a_task_says(task, other):
    """However much an author edits after a migration: even the spelling of another task changes nothing."""
    ours, theirs = (read_task_toml(tomli_w.dumps(found)) for found in (task, other))
    assume(not any(issue.severity == "error" for issue in (*ours.issues, *theirs.issues)))
    spelling = Preserved.of_source(theirs.config, theirs.compatibility, theirs.data).spelling
    mine = replace(Preserved.of_source(ours.config, ours.compatibility, ours.data), spelling={})

    def meaning(preserved):
        return read_harbor_config(harbor_toml(ours.config, preserved).data, IssueLog(foreign=True))[:2]

    config, extra = meaning(replace(mine, spelling=spelling))
    assert config == meaning(mine)[0]
    assert same(extra, meaning(mine)[1])


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20) | st.text("a \r\n\ufeff#", max_size=9)
)
def test_any_instruction_comes_back_byte_by_byte(text):
    document = TaskDocument.from_text(render_split("", text).text)
    assert as_in_source(document.instruction, document.namespace.compat.instruction or SourceInstruction()) == text
