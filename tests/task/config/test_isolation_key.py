"""`verifier.isolation` and its other spellings: which rung they mean, and when they contradict each other."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from benchflow.record.result import Rung
from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.config.task_config import AUTO, RUNGS, VerifierConfig
from benchflow.task.document.task_document import read_document


def parsed(settings):
    problems = IssueLog()
    return VerifierConfig.parse(settings, "verifier", problems), [(item.code, item.path) for item in problems.issues]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, None),
        ({"hardening": {"cleanup_conftests": False}}, None),
        *(({"isolation": value}, value) for value in (*RUNGS, AUTO)),
        ({"environment_mode": "separate"}, "separate"),
        ({"environment": {"cpus": 1}}, "separate"),
        ({"environment_mode": "shared"}, "shared"),
        ({"environment_mode": "shared", "isolation": "auto"}, "auto"),
        ({"environment_mode": "shared", "hardening": {"keep_system_changes": True}}, "system"),
        ({"hardening": {"keep_system_changes": True}}, "system"),
        ({"hardening": {"keep_processes": True}}, "services"),
        ({"hardening": {"keep_processes": True, "keep_system_changes": True}}, "services"),
        ({"hardening": {"keep_processes": False}}, "shared"),
        ({"isolation": "services", "hardening": {"keep_system_changes": True}}, "services"),
        ({"isolation": "system", "hardening": {"keep_processes": False}}, "system"),
    ],
)
def test_every_spelling_names_one_isolation(settings, wanted):
    config, problems = parsed(settings)
    assert problems == []
    assert config.wanted_isolation == wanted


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"isolation": "shared", "environment_mode": "separate"}, "verifier.environment_mode"),
        ({"isolation": "auto", "environment": {"cpus": 1}}, "verifier.environment"),
        ({"isolation": "separate", "environment_mode": "shared"}, "verifier.environment_mode"),
        ({"environment": {}, "environment_mode": "shared"}, "verifier.environment"),
        ({"isolation": "shared", "hardening": {"keep_processes": True}}, "verifier.hardening.keep_processes"),
        ({"isolation": "open", "hardening": {"keep_processes": True}}, "verifier.hardening.keep_processes"),
        (
            {"isolation": "system", "hardening": {"keep_system_changes": False}},
            "verifier.hardening.keep_system_changes",
        ),
        ({"isolation": "auto", "hardening": {"keep_processes": False}}, "verifier.hardening.keep_processes"),
        (
            {"environment_mode": "separate", "hardening": {"keep_system_changes": True}},
            "verifier.hardening.keep_system_changes",
        ),
    ],
)
def test_spellings_that_contradict_each_other_are_an_error(settings, path):
    assert parsed(settings)[1] == [("conflicting-keys", path)]


def test_a_contradiction_has_its_line():
    settings = "verifier:\n  isolation: shared\n  hardening:\n    keep_processes: true\n"
    _, issues = read_document(f"---\nschema_version: '1.3'\n{settings}---\nDo it.\n".encode(), sidecars={})
    assert [(issue.code, issue.path, issue.line) for issue in issues] == [
        ("conflicting-keys", "verifier.hardening.keep_processes", 6)
    ]


def test_settings_without_a_problem_mean_what_each_of_their_spellings_means():
    choices = {
        "isolation": (None, *RUNGS, AUTO),
        "environment_mode": (None, "shared", "separate"),
        "keep_system_changes": (None, False, True),
        "keep_processes": (None, False, True),
    }
    for isolation, mode, system, processes in product(*choices.values()):
        kept = {"keep_system_changes": system, "keep_processes": processes}
        hardening = {name: value for name, value in kept.items() if value is not None}
        settings = {"isolation": isolation, "environment_mode": mode, "hardening": hardening}
        config, problems = parsed({name: value for name, value in settings.items() if value})
        if problems:
            continue
        wanted = config.wanted_isolation
        assert isolation in (None, wanted)
        assert (mode == "separate") <= (wanted == "separate")
        assert bool(processes) <= (wanted == "services")
        assert bool(system) <= (wanted in ("system", "services"))


def test_the_key_and_the_record_have_the_same_rungs():
    assert get_args(Rung) == RUNGS
