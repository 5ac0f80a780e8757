"""The tree of a rollout: its steps, scenes and rounds in their order, and the branches that leave them.

A branch is a fork of the sandbox from before a round, in which the agent got another answer; it hangs where it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow.record import BranchRecord, Result, read_lines
from benchflow.view.known_jobs import Missing
from benchflow.view.page_addresses import address
from benchflow.view.pages.rollout_page import OpenRollout
from benchflow.view.plain_text import one_line
from benchflow.view.viewer import Viewer

MAIN: Final = "main"
MOST_ROUNDS: Final = 2_000


@dataclass(slots=True)
class Node:
    """One place of the tree."""

    kind: str
    title: str
    note: str = ""
    outcome: str = ""
    reward: float | None = None
    link: str = ""
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Round:
    number: int
    step: str | None
    branch: str
    scene: str
    role: str
    prompt: str
    reward: float | None
    calls: int | None


def tree_page(viewer: Viewer, job_name: str, name: str) -> str:
    """The page with the tree of a rollout."""
    job = viewer.jobs.get(job_name)
    rollout = OpenRollout(viewer, job, name)
    story = job.story(name)
    if story.result is None:
        raise Missing("The rollout has no result yet.", "Its tree is shown when it has ended.")
    rounds = list(_rounds(read_lines(rollout.folder.user_rounds)))
    rollout_url = address("job", job_name, "rollout", name)
    tree = _Tree(story.result, rounds, lambda branch: address("job", job_name, "rollout", name, branch=branch))
    return viewer.page(
        "tree.html",
        f"Tree of {name}",
        [("Jobs", "/"), (job_name, address("job", job_name)), (name, rollout_url), ("Tree", None)],
        name=name,
        result=story.result,
        tree=tree.grow(),
        rounds=len(rounds),
    )


class _Tree:
    def __init__(self, result: Result, rounds: list[_Round], link: Any) -> None:
        self._result = result
        self._rounds = rounds
        self._link = link

    def grow(self) -> Node:
        result = self._result
        top = Node("rollout", result.task.name, f"attempt {result.attempt}", _outcome(result), result.reward)
        if result.steps:
            for step in result.steps:
                node = Node("step", step.name, "" if step.passed is None else "passed" if step.passed else "not passed")
                node.outcome, node.reward = _outcome(step), step.reward
                node.children = self._line(MAIN, step.name)
                top.children.append(node)
        else:
            top.children = self._line(MAIN, None)
        return top

    def _line(self, line: str, step: str | None) -> list[Node]:
        """The scenes and rounds of the main line or a branch, each with the branches that leave it."""
        rounds = [each for each in self._rounds if each.branch == line and each.step == step]
        leaving = [b for b in self._result.notes.branches if b.parent == line and b.step == step]
        nodes: list[Node] = []
        scene: Node | None = None
        placed: set[str] = set()
        for each in rounds:
            node = Node(
                "round", f"Round {each.number}", f"{each.role} · {one_line(each.prompt, 120)}", link=self._link(line)
            )
            if each.reward is not None:
                node.outcome, node.reward = _outcome_of(each.reward), each.reward
            here = [branch for branch in leaving if branch.round == each.number]
            node.children = [self._branch(branch) for branch in here]
            placed |= {branch.id for branch in here}
            if each.scene and (scene is None or scene.title != each.scene):
                scene = Node("scene", each.scene)
                nodes.append(scene)
            (scene.children if scene is not None else nodes).append(node)
        return nodes + [self._branch(branch) for branch in leaving if branch.id not in placed]

    def _branch(self, branch: BranchRecord) -> Node:
        node = Node(
            "branch",
            f"Branch {branch.id}: {branch.option.id}",
            one_line(f"{branch.option.kind} · {branch.request}", 160),
            _outcome(branch),
            branch.reward,
            self._link(branch.id) if branch.status in ("scored", "unscored") else "",
        )
        node.children = self._line(branch.id, branch.step)
        return node


def _rounds(lines: Iterator[Mapping[str, Any]]) -> Iterator[_Round]:
    """The rounds of a file; what is not one is left out."""
    for count, line in enumerate(lines):
        number = line.get("round")
        if not isinstance(number, int) or count >= MOST_ROUNDS:
            continue
        rewards = line.get("rewards")
        reward = rewards.get("reward") if isinstance(rewards, dict) else None
        calls = line.get("n_tool_calls")
        step = line.get("step")
        yield _Round(
            number,
            step if isinstance(step, str) else None,
            str(line.get("branch") or MAIN),
            str(line.get("scene") or ""),
            str(line.get("role") or "agent"),
            str(line.get("prompt") or ""),
            float(reward) if isinstance(reward, int | float) else None,
            calls if isinstance(calls, int) else None,
        )


def _outcome(part: Any) -> str:
    if part.reward is None:
        return str(part.status)
    return _outcome_of(part.reward)


def _outcome_of(reward: float) -> str:
    return "full" if reward >= 1 else "zero" if reward <= 0 else "partial"
