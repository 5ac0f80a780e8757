"""Users say the instruction first, and private facts only to those who ask for them."""

import pytest

from benchflow.rollout import (
    BaseUser,
    DocumentNudgeUser,
    FunctionUser,
    ModelDocumentNudgeUser,
    PassthroughUser,
    RoundResult,
)
from benchflow.rollout.users import asks_about, questions_in

pytestmark = pytest.mark.anyio

FACTS = {"deploy_region": "eu-west-1", "ticket_id": "OPS-7"}


def said(*texts, kind="agent_message", number=0):
    return RoundResult(number, [{"type": kind, "text": text} for text in texts])


async def test_passthrough_says_the_instruction_once():
    user = PassthroughUser()
    assert await user.run(0, "Do it.", None) == "Do it."
    assert await user.run(1, "Do it.", said("Done.")) is None


async def test_functions_may_be_plain_or_asynchronous():
    async def later(number, instruction, last):
        return f"{number} {instruction}"

    assert await FunctionUser(lambda number, instruction, last: None).run(0, "x", None) is None
    assert await FunctionUser(later).run(2, "x", None) == "2 x"
    with pytest.raises(NotImplementedError):
        await BaseUser().run(0, "x", None)


async def test_a_fact_is_told_once_to_a_targeted_question():
    user = DocumentNudgeUser(FACTS)
    assert await user.run(0, "Deploy.", None) == "Deploy."
    answer = await user.run(1, "Deploy.", said("Which region should I deploy to?"))
    assert answer == "Additional user detail for deploy region: eu-west-1"
    assert await user.run(2, "Deploy.", said("Which region should I deploy to?")) is None
    assert user.revealed == ("deploy_region",)


async def test_one_fact_per_round_in_the_order_of_declaration():
    user = DocumentNudgeUser(FACTS)
    both = said("What is the ticket id? And which region do I deploy to?")
    assert "eu-west-1" in await user.run(1, "", both)
    assert "OPS-7" in await user.run(2, "", both)


@pytest.mark.parametrize(
    "result",
    [
        said("I deployed to some region."),
        said("What next?"),
        said("Which region should I deploy to?", kind="tool_result"),
        said("Which region should I deploy to?", kind="user_message"),
        said("Which region should I deploy to?", kind="agent_thought"),
        said("I deploy now. Is the region fine?"),
    ],
    ids=["statement", "untargeted", "tool output", "own prompt", "thought", "two sentences"],
)
async def test_nothing_is_told_to_those_who_do_not_ask_for_it(result):
    assert await DocumentNudgeUser(FACTS).run(1, "", result) is None


async def test_a_copy_for_a_branch_reveals_on_its_own():
    user = DocumentNudgeUser(FACTS)
    copy = user.branch()
    assert await copy.run(1, "", said("Which deploy region?")) is not None
    assert user.revealed == ()


async def test_a_model_user_sees_facts_only_once_the_agent_has_asked():
    prompts = []

    async def answer(model, prompt):
        prompts.append((model, prompt))
        return "  Use the staging account. "

    user = ModelDocumentNudgeUser("gpt-x", persona="Terse.", private_facts=FACTS, call_model=answer)
    assert await user.run(0, "Deploy.", None) == "Deploy."
    assert prompts == []
    assert await user.run(1, "Deploy.", said("I am done.")) == "Use the staging account."
    assert await user.run(2, "Deploy.", said("Where does it go?", number=1)) == "Use the staging account."
    (model, first), (_, second) = prompts
    assert model == "gpt-x"
    assert "Terse." in first
    assert "OPS-7" not in first
    assert "OPS-7" in second


@pytest.mark.parametrize("answer", ["", "DONE", "none.", '"Stop"', " null \n"])
async def test_a_model_that_has_nothing_to_say_ends_the_conversation(answer):
    async def silent(model, prompt):
        return answer

    user = ModelDocumentNudgeUser("gpt-x", persona="Terse.", call_model=silent)
    assert await user.run(1, "x", RoundResult(0, rewards={"reward": 0.5}, role="a", scene="s", handoff_to="a")) is None


@pytest.mark.parametrize(
    ("text", "count"),
    [("Done.", 0), ("Ready? Sure.", 1), ("Tell me the port. Please provide a name", 2), ("Which one", 1), ("", 0)],
)
def test_questions_are_found_sentence_by_sentence(text, count):
    assert len(questions_in([text])) == count


def test_a_question_may_name_the_value_to_confirm_it():
    assert asks_about(["Should I use the eu-west-1 zone?"], "region", "eu-west-1")
    assert not asks_about(["Should I use the west zone?"], "region", "eu-west-1")
    assert asks_about(["What are the regions?"], "region", "x")
    assert asks_about(["What is the id?"], "id", "42")
