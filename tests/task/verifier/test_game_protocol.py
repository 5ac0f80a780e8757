"""A game protocol is checked to the last name, type and reference, and every problem is reported at its own line."""

import copy
import math
import shutil
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchflow.task import load_package
from benchflow.task.config.parsed_record import IssueLog
from benchflow.task.verifier.game_expressions import EvaluationError, ExpressionError, parse_expression
from benchflow.task.verifier.game_protocol import read_game
from benchflow.task.verifier.game_texts import Parameter, TextError, lines_of, parse_form, parse_template
from benchflow.task.verifier.verifier_document import read_verifier_document

EXAMPLES = Path(__file__).parents[3] / "examples" / "packages"
GAME = yaml.safe_load("""
roles: {a: {brief: "You are {role}. Your number is {one}."}, b: {brief: You wait.}}
values: {one: 1, two: {choose: [2, 3]}, three: {between: [4, 9]}}
state: {count: 0, last: nobody, done: false}
rounds: 3
turns: [a, {role: b, to: [], moves: [add], when: round > 1, ask: "{forms} now, {last}"}]
moves:
  add: {form: "ADD {number}", parameters: {number: {integer: [0, 9]}}, set: {count: count + number, last: role}}
  stop: {form: STOP, legal: count > 0, set: {done: true}, ends: true}
until: count > 20
payoffs: {a: "clip(count / 20, 0, 1)", b: 1 if done else 0}
""")


def problems_of(config):
    log = IssueLog("verifier.md")
    game = read_game(config, "config", log)
    assert (game is None) == bool(log.issues)
    return [(issue.path, issue.message) for issue in log.issues]


def test_a_sound_game_has_no_problems():
    assert problems_of(GAME) == []


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ("rounds: 0", "rounds", "at least 1"),
        ("turnz: []", "turnz", "did you mean 'turns'"),
        ("payoffs: {a: 1}", "payoffs", "no entry for the role 'b'"),
        ("payoffs: {a: 1, b: 1, c: 1}", "payoffs.c", "not declared in roles"),
        ("payoffs: {a: money, b: 1}", "payoffs.a", "'money', which is not known here"),
        ("payoffs: {a: last, b: 1}", "payoffs.a", "must be a number, and is a text"),
        ("payoffs: {a: 1 + done, b: 1}", "payoffs.a", "which is a flag and not a number"),
        ("payoffs: {a: __import__('os').getcwd(), b: 1}", "payoffs.a", "which expressions do not have"),
        ("payoffs: {a: 2 ** 9999, b: 1}", "payoffs.a", "which expressions do not have"),
        ("payoffs: {a: '(', b: 1}", "payoffs.a", "is not an expression"),
        ("until: count", "until", "must be a flag"),
        ("turns: [a, c]", "turns[1].role", "not declared in roles"),
        ("turns: [{role: a, to: [a]}]", "turns[0].to[0]", "not another role"),
        ("turns: [{role: a, moves: [fly]}]", "turns[0].moves[0]", "not declared in moves"),
        ("turns: [{role: a, ask: 'Say {secret}'}]", "turns[0].ask", "'{secret}', which is not known here"),
        ("roles: {a: {brief: 'A {brace'}, b: {brief: x}}", "roles.a.brief", "single brace"),
        ("roles: {a: {brief: '{count}'}, b: {brief: x}}", "roles.a.brief", "not known here"),
        ("moves: {x: {form: 'X {n}'}}", "moves.x.form", "not known here"),
        ("moves: {x: {form: X, set: {gold: 1}}}", "moves.x.set.gold", "not declared in state"),
        ("moves: {x: {form: X, set: {count: last}}}", "moves.x.set.count", "must be a number"),
        ("moves: {x: {form: X, legal: number > 1}}", "moves.x.legal", "not known here"),
        ("state: {one: 1}", "state.one", "already used"),
        ("state: {round: 1}", "state.round", "already used"),
        ("without_move: {then: fly}", "without_move.then", "must be one of fail, skip, forfeit, or a move"),
        ("without_move: {then: add}", "without_move.then", "has parameters"),
        ("without_move: {then: forfeit}", "without_move.then", "no section forfeit"),
        ("without_move: {then: fail}\nforfeit: {}", "without_move.then", "has lost"),
        ("values: {one: {choose: [1, x]}}", "values.one.choose", "one type"),
        ("values: {one: {between: [3, 1]}}", "values.one.between", "lower one first"),
        ("judge: {criteria: {count: How well}}", "judge.criteria.count", "already used"),
    ],
)
def test_a_mistake_is_reported_at_its_key(change, path, words):
    found = problems_of({**copy.deepcopy(GAME), **yaml.safe_load(change)})
    assert any(each == f"config.{path}" and words in message for each, message in found), found


def test_a_mistake_has_the_line_where_it_is_written():
    text = (
        "---\nverifier:\n  strategies:\n    r:\n      type: assessor\n      role: j\n      config:\n"
        "        rounds: 2\n        roles: {a: {brief: Hi.}}\n        turns: [a]\n        moves:\n          go:\n"
        "            form: GO\n            legal: nothing == 1\n        payoffs: {a: 1}\n---\n## role:j\nJudge.\n"
    )
    _, issues = read_verifier_document(text)
    assert [(issue.code, issue.line) for issue in issues] == [("invalid-game", 14)]
    assert issues[0].message.startswith("verifier.strategies.r.config.moves.go.legal uses 'nothing'")


def test_the_config_of_an_assessor_with_an_agent_is_its_own():
    strategy = "{type: assessor, role: j, agent: 'a2a:x', config: {any: 1}}"
    text = f"---\nverifier:\n  strategies:\n    r: {strategy}\n---\n## role:j\nJudge.\n"
    assert read_verifier_document(text)[1] == []


@pytest.mark.parametrize("name", ["haggle-arena", "tip-auction"])
def test_the_roles_of_an_example_are_its_participants(name):
    package = load_package(EXAMPLES / name)
    game = read_game(package.verifier_document.selected.config, "config", IssueLog())
    assert game.roles == package.document.namespace.interaction.participants


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (("      config:", "      config: {free: 1}\n      description: |"), "config.free"),
        (("            brief: You are the seller", "            brief: You are the vendor"), None),
        (("          seller:\n            brief", "          vendor:\n            brief"), "config.turns[1].role"),
    ],
)
def test_an_arena_without_an_agent_needs_a_game_for_its_participants(change, path, tmp_path):
    shutil.copytree(EXAMPLES / "haggle-arena", tmp_path / "game")
    document = tmp_path / "game/verifier/verifier.md"
    text = document.read_text()
    assert change[0] in text
    document.write_text(text.replace(*change))
    package = load_package(tmp_path / "game", sandbox="local")
    found = [issue.path for issue in (*package.issues, *package.runtime_issues)]
    assert found[:1] == ([] if path is None else [f"verifier.strategies.referee.{path}"])


def test_a_game_for_other_roles_than_the_participants_is_not_launched(tmp_path):
    shutil.copytree(EXAMPLES / "haggle-arena", tmp_path / "game")
    task = tmp_path / "game/task.md"
    task.write_text(task.read_text().replace("participants: [buyer, seller]", "participants: [buyer]"))
    (feature,) = load_package(tmp_path / "game", sandbox="local").runtime_issues
    assert feature.path == "verifier.strategies.referee.config.roles"
    assert "the game has buyer, seller, and benchflow.interaction.participants buyer" in feature.reason


def test_the_game_on_the_page_about_the_language_is_sound():
    page = (EXAMPLES.parents[1] / "docs" / "arena-protocol.md").read_text()
    assert problems_of(yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])) == []


numbers = st.integers(-99, 99)


@given(numbers, numbers, numbers)
def test_arithmetic_is_that_of_python(x, y, z):
    types = dict.fromkeys("xyz", "number")
    scope = {"x": x, "y": y, "z": z}
    text = "clip(x * y - z, -50, 50) + (min(x, y, z) if x < y <= z or not z == 1 else abs(-x)) / 4"
    expected = max(-50, min(50, x * y - z)) + (min(x, y, z) if x < y <= z or z != 1 else abs(-x)) / 4
    assert math.isclose(parse_expression(text, types).value(scope), expected)


@given(st.text(max_size=60) | st.text("ab+-*/()<>=! 'if else and or not min max,.0159", max_size=60))
def test_any_text_is_a_value_or_a_sentence(text):
    try:
        found = parse_expression(text, {"a": "number", "b": "text"}).value({"a": 3, "b": "x"})
    except (ExpressionError, EvaluationError):
        return
    assert isinstance(found, (int, float, str, bool))


def test_a_division_by_zero_has_no_value():
    with pytest.raises(EvaluationError, match="'1 / a' has no value"):
        parse_expression("1 / a", {"a": "number"}).value({"a": 0})


@given(
    st.integers(-1000, 1000), st.sampled_from(["red", "blue"]), st.text(string.ascii_letters, min_size=1, max_size=9)
)
def test_a_move_that_is_written_is_read_back(amount, colour, word):
    parameters = {
        "amount": Parameter("number", -1000, 1000, whole=True),
        "colour": Parameter("text", words=("red", "blue")),
        "why": Parameter("text"),
    }
    form = parse_form("PUT {amount} on ({colour}): {why}", parameters)
    values = {"amount": amount, "colour": colour, "why": word}
    (line,) = lines_of(f"  **{form.write(values).lower()}**.")
    assert {**form.read(line), "why": word} == values
    assert str(form) == "PUT <amount> on (red|blue): <why>"


@given(st.text(max_size=300))
def test_no_message_is_too_odd_to_look_for_moves_in(message):
    form = parse_form("BID {n} {why}", {"n": Parameter("number", 0, 9), "why": Parameter("text")})
    for line in lines_of(message):
        form.read(line)


def test_a_number_outside_its_limits_is_refused_with_them():
    form = parse_form("BID {n}", {"n": Parameter("number", 1, 9, whole=True)})
    assert form.read("bid 12") == "n must be between 1 and 9"
    assert form.read("bid 1.5") is None


@pytest.mark.parametrize("form", ["", "{a}{b}", "{b} then {a}", "A {a}", "{a} {a} {b}", "two\nlines {a} {b}"])
def test_a_form_that_cannot_be_read_without_doubt_is_refused(form):
    with pytest.raises(TextError):
        parse_form(form, {"a": Parameter("number", 0, 1), "b": Parameter("text")})


def test_braces_that_belong_to_a_text_are_doubled():
    assert parse_template("{{x}} is {x}", frozenset({"x"})).fill({"x": 1.5}) == "{x} is 1.5"
