"""Variables that packages take from the machine."""

import pytest

from benchflow.errors import EnvironmentFailure
from benchflow.sandbox.task_policy import forward_variables, referenced_variables, resolve_variables

MACHINE = {"TOKEN": "secret", "EMPTY": ""}


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("plain", "plain"),
        ("${TOKEN}", "secret"),
        ("${TOKEN:-other}", "secret"),
        ("${NO:-other}", "other"),
        ("${NO:-}", ""),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${NO:-a:-b}", "a:-b"),
        ("x${TOKEN}", "x${TOKEN}"),
        ("$TOKEN", "$TOKEN"),
        ("", ""),
    ],
)
def test_only_whole_values_stand_for_variables(value, resolved):
    assert resolve_variables({"A": value}, MACHINE) == {"A": resolved}


def test_a_missing_variable_stops_the_launch_and_is_named():
    with pytest.raises(EnvironmentFailure, match="NO") as caught:
        resolve_variables({"A": "${NO}"}, MACHINE)
    assert (caught.value.code, caught.value.path) == ("variable-missing", "environment.env.A")
    assert "secret" not in str(caught.value)


def test_forwarded_variables_must_be_set():
    assert forward_variables(("TOKEN",), MACHINE) == {"TOKEN": "secret"}
    with pytest.raises(EnvironmentFailure, match="NO"):
        forward_variables(("NO",), MACHINE)


def test_referenced_variables_are_known_for_redaction():
    assert referenced_variables({"A": "${X}", "B": "${Y:-1}", "C": "plain"}) == {"X", "Y"}
