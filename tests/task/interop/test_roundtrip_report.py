"""Split -> native -> split loses nothing: shown on real folders and, by properties, on any task."""

import json
import tempfile
import tomllib
from pathlib import Path

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchflow.errors import PackageError
from benchflow.task.document.task_toml import import_task_config_toml
from benchflow.task.interop.roundtrip_report import build_harbor_roundtrip_conformance_report
from benchflow.task.package import load_package, normal_prompt


def test_a_split_task_is_proven_lossless_and_not_touched(split, look):
    before = look(split)
    report = build_harbor_roundtrip_conformance_report(split)
    assert report.to_dict() == {
        "target": "harbor",
        "status": "lossless",
        "source_task_dir": str(split),
        "config_equal": True,
        "prompt_equal": True,
        "environment_file_map_equal": True,
        "solution_file_map_equal": True,
        "tests_file_map_equal": True,
        "steps_file_map_equal": True,
        "restored_extension_paths": ["environment.modal.image"],
        "mismatches": [],
    }
    json.dumps(report.to_dict())
    assert look(split) == before


def test_a_multi_step_task_is_proven_lossless(steps):
    report = build_harbor_roundtrip_conformance_report(steps)
    assert report.status == "lossless"
    assert report.restored_extension_paths == ("steps[1].runner",)


def test_an_empty_list_of_a_step_says_nothing(steps, tree):
    toml = '[[steps]]\nname = "one"\n[steps.verifier]\npytest_plugins = []\n'
    tree(steps, {"task.toml": toml, "steps/one/instruction.md": "Do it."})
    assert build_harbor_roundtrip_conformance_report(steps).config_equal


def test_native_settings_of_a_split_task_come_back(split, tree):
    verifier = '[verifier]\ntype = "llm-judge"\n[verifier.judge]\nmodel = "m"\n'
    toml = verifier + "[reward]\na = 1\n[oracle]\ntimeout_sec = 9\n"
    tree(split, {"task.toml": toml, "tests/rubric.toml": ""})
    report = build_harbor_roundtrip_conformance_report(split)
    assert report.status == "lossless"
    assert report.restored_extension_paths == (
        "oracle.timeout_sec",
        "reward",
        "verifier.judge",
        "verifier.type",
    )


def test_a_time_of_day_is_text_in_the_document_and_comes_back(split, tree):
    tree(split, {"task.toml": "[metadata]\nat = [07:32:00]\nday = 1979-05-27\n[foreign]\nt = 07:32:00\n"})
    assert build_harbor_roundtrip_conformance_report(split).status == "lossless"
    warnings = [(i.severity, i.path, i.line) for i in load_package(split).issues if i.code == "time-as-text"]
    assert warnings == [("warning", "metadata.at[0]", 2), ("warning", "foreign.t", 5)]


def test_every_file_comes_back(split, tree):
    files = {"steps/stray/file.txt": "x", ".meta/a/b": "c", "media.toml": "", "evidence/e": "", "verifier.md": "v"}
    tree(split, {**files, "instruction.md": "\ufeff\n Do\r\nit.\n\nNow."})
    (split / "tests/data").symlink_to("../environment/data")
    (split / "notes").symlink_to("README.md")
    report = build_harbor_roundtrip_conformance_report(split)
    assert report.to_dict()["mismatches"] == []


def test_what_does_not_come_back_is_named_with_code_file_and_line(split, tree, monkeypatch):
    """An export that writes in its own words, adds a key and leaves out a file."""
    toml = 'version = "1.0"\n\n[environment]\ncpus = 2\nmemory = "1G"\n[x]\ny = [{z = 07:32:00}]\n'
    tree(split, {"task.toml": toml, "data/a": "b", "tests/other.sh": "x"})
    monkeypatch.setattr("benchflow.task.interop.toml_export.respelled", lambda data, *_: {**data, "new": 1})
    monkeypatch.setattr("benchflow.task.interop.export_plan._add_the_rest", lambda *_: None)
    report = build_harbor_roundtrip_conformance_report(split)
    assert (report.status, report.config_equal, report.prompt_equal) == ("drift", False, True)
    assert [(m.code, m.path, m.file, m.line) for m in report.mismatches] == [
        ("key-lost", "environment.memory", "task.toml", 5),
        ("key-added", "environment.memory_mb", "task.toml", 3),
        ("key-added", "new", "task.toml", None),
        ("key-added", "schema_version", "task.toml", None),
        ("key-lost", "version", "task.toml", 1),
        ("key-changed", "x.y[0].z", "task.toml", 7),
        ("file-lost", "data/a", "data/a", None),
    ]


def test_native_and_broken_packages_are_refused(native, split):
    with pytest.raises(PackageError) as caught:
        build_harbor_roundtrip_conformance_report(native)
    assert caught.value.code == "already-native"
    (split / "task.toml").write_text("a = ")
    with pytest.raises(PackageError) as caught:
        build_harbor_roundtrip_conformance_report(split)
    assert caught.value.file == "task.toml"


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
seconds = st.floats(0.1, 1e6)
small = st.integers(1, 64)
foreign = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False), words, st.dates(), st.datetimes()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)
unknown = st.dictionaries(words.map("x-".__add__), foreign, max_size=2)
variables = st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), words, max_size=2)
hosts = st.lists(st.sampled_from(["a.example", "*.example.org", "10.0.0.0/8", "::1"]), max_size=2)


def section(**fields):
    """Some of the fields, and some keys that nobody knows."""
    known = st.fixed_dictionaries({}, optional=fields)
    return st.builds(lambda a, b: {**b, **a}, known, unknown)


networks = st.one_of(
    st.just({}),
    st.sampled_from([{"network_mode": "public"}, {"network_mode": "no-network"}]),
    hosts.map(lambda found: {"network_mode": "allowlist", "allowed_hosts": found}),
)


def networked(sections):
    return st.builds(lambda a, b: {**a, **b}, sections, networks)


agents = networked(section(timeout_sec=seconds, user=st.sampled_from(["root", 1000])))
servers = st.lists(st.fixed_dictionaries({"name": st.just("s"), "url": st.just("u")}), max_size=2)
environments = networked(
    section(
        cpus=st.one_of(small, st.just(1.5)),
        memory_mb=small,
        storage=st.sampled_from(["10G", "512M"]),
        docker_image=st.just("ubuntu:24.04"),
        env=variables,
        mcp_servers=servers,
        workdir=st.just("/app"),
        healthcheck=st.fixed_dictionaries({"command": st.just("true")}, optional={"retries": small}),
    )
)
verifiers = networked(
    section(
        timeout_sec=seconds,
        env=variables,
        environment=environments,
        pytest_plugins=st.lists(st.just("p"), max_size=2),
        collect=st.lists(st.fixed_dictionaries({"command": st.just("c")}), max_size=1),
    )
)
artifacts = st.lists(
    st.one_of(
        st.just("/app/x"),
        st.fixed_dictionaries({"source": st.just("/y")}, optional={"service": st.just("db")}),
    ),
    max_size=2,
)
steps_of = st.lists(
    st.sampled_from(["one", "two", "Drei", "four 4"]), unique_by=str.casefold, min_size=1, max_size=3
).flatmap(
    lambda names: st.tuples(
        *(
            st.builds(
                lambda fields, name: {**fields, "name": name},
                section(agent=agents, verifier=verifiers, min_reward=seconds, artifacts=artifacts),
                st.just(name),
            )
            for name in names
        )
    ).map(list)
)
configs = section(
    schema_version=st.sampled_from(["1.0", "1.3", "1.4", "2.7", "next"]),
    task=section(description=words, keywords=st.lists(words, max_size=2)).map(lambda t: {**t, "name": "acme/t"}),
    metadata=st.dictionaries(words, foreign, max_size=3),
    agent=agents,
    verifier=verifiers,
    environment=environments,
    solution=section(env=variables),
    source=words,
    artifacts=artifacts,
    steps=steps_of,
    multi_step_reward_strategy=st.sampled_from(["mean", "final"]),
)
lines = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(
        [
            "## prompt",
            "\\## prompt",
            "## Role:a.b ",
            "\\\\## scene:x",
            "## user-persona",
            "```",
            "~~~~",
            "---",
            "    ```",
        ]
    ),
)
instructions = st.lists(lines, max_size=8).map("\n".join)
names = st.sampled_from(["a", "b.sh", "sub/c", "sub/d e", "ünï"])
trees = st.dictionaries(names, st.binary(max_size=8), max_size=3)


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(configs, instructions, trees, trees, trees)
def test_any_split_task_survives_the_way_there_and_back(config, instruction, environment, tests, solution):
    text = tomli_w.dumps(config)
    import_task_config_toml(text)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "task")
        files = {"task.toml": text.encode(), "instruction.md": instruction.encode()}
        for name, tree in (("environment", environment), ("tests", tests), ("solution", solution)):
            files |= {f"{name}/{path}": content for path, content in tree.items()}
        for step in config.get("steps", []):
            files[f"steps/{step['name']}/instruction.md"] = instruction.encode()
            files |= {f"steps/{step['name']}/tests/{path}": content for path, content in tests.items()}
        write(folder, files)
        assert load_package(folder).valid
        report = build_harbor_roundtrip_conformance_report(folder)
        assert report.status == "lossless", report.to_dict()


@given(instructions)
def test_any_instruction_survives_as_the_body_of_a_document(instruction):
    from benchflow.task.document.markdown import normalise
    from benchflow.task.document.task_document import TaskDocument
    from benchflow.task.document.task_text import render_task_md

    document = TaskDocument.from_text(render_task_md({"schema_version": "1.3"}, normalise(instruction)))
    assert normal_prompt(document.instruction) == normal_prompt(normalise(instruction))
    assert document.role_prompts == document.scene_prompts == {}


def test_the_exported_toml_of_a_split_package_is_its_own(split, tmp_path):
    from benchflow.task.interop.split_export import export_task_to_split_layout

    report = export_task_to_split_layout(split, tmp_path / "out")
    back = tomllib.loads((tmp_path / "out/task.toml").read_text())
    assert back == tomllib.loads((split / "task.toml").read_text())
    assert report.output_hashes["README.md"] == report.input_hashes.get("README.md", report.output_hashes["README.md"])
