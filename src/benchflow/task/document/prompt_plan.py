"""Which text each turn gets, and what the declared user may do: `TaskPromptPlan`.

Base, role, scene and turn texts are put together by the document's prompt policy. The user is compiled into
a contract that names private facts by key only; their values stay in the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchflow.task.config.interaction import PROMPT_PARTS, Scene, Turn
from benchflow.task.document.task_document import TaskDocument
from benchflow.task.document.user_runtime import UserContract, compile_user_runtime

_REPLACE_ORDER: Final = tuple(reversed(PROMPT_PARTS))


@dataclass(frozen=True, slots=True)
class PromptPart:
    """One text and where it comes from: `base`, `role`, `scene` or `turn`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One prompt to one role."""

    scene: str | None
    role: str | None
    prompt: str
    parts: tuple[PromptPart, ...]


@dataclass(frozen=True, slots=True)
class TaskPromptPlan:
    """All prompts of a task in order."""

    composition: str
    order: tuple[str, ...]
    turns: tuple[PlannedTurn, ...]
    user_runtime: UserContract = field(default_factory=UserContract)

    def to_dict(self) -> dict[str, Any]:
        return {
            "composition": self.composition,
            "order": list(self.order),
            "turns": [
                {
                    "scene": turn.scene,
                    "role": turn.role,
                    "prompt": turn.prompt,
                    "parts": [asdict(part) for part in turn.parts],
                }
                for turn in self.turns
            ],
            "user_runtime": self.user_runtime.to_dict(),
        }


def compile_task_prompt_plan(document: TaskDocument | None, *, fallback_prompt: str = "") -> TaskPromptPlan:
    """The plan of a document; a split package has one turn with its instruction."""
    if document is None:
        prompt = fallback_prompt.strip()
        return TaskPromptPlan("replace", ("base",), (_turn(None, None, {"base": prompt}, ("base",), append=False),))
    policy = document.namespace.prompt
    composition = policy.composition if policy else "replace"
    append = composition == "append"
    order = (policy.order if policy else None) or (PROMPT_PARTS if append else _REPLACE_ORDER)
    turns = [
        _turn(scene.name, turn.role, _texts(document, scene, turn), order, append=append)
        for scene in document.scenes
        for turn in scene.turns or ()
    ]
    if not turns:
        turns = [_turn(None, None, {"base": document.instruction}, ("base",), append=False)]
    return TaskPromptPlan(composition, tuple(order), tuple(turns), compile_user_runtime(document))


def _texts(document: TaskDocument, scene: Scene, turn: Turn) -> dict[str, str]:
    return {
        "base": document.instruction,
        "role": document.role_prompts.get(turn.role, ""),
        "scene": document.scene_prompts.get(scene.name or "", ""),
        "turn": turn.prompt or "",
    }


def _turn(
    scene: str | None, role: str | None, texts: Mapping[str, str], order: tuple[str, ...], *, append: bool
) -> PlannedTurn:
    parts = [PromptPart(kind, texts[kind].strip()) for kind in order if texts.get(kind, "").strip()]
    chosen = tuple(parts if append else parts[:1])
    return PlannedTurn(scene, role, "\n\n".join(part.text for part in chosen), chosen)


def materialize_prompt_plan_scenes(document: TaskDocument) -> tuple[Scene, ...]:
    """The document's scenes with each turn's prompt as the plan puts it together."""
    planned = iter(compile_task_prompt_plan(document).turns)
    return tuple(
        scene.replace(turns=tuple(turn.replace(prompt=next(planned).prompt) for turn in scene.turns or ()))
        for scene in document.scenes
    )
