"""One rollout as text for a terminal: short at the end of `bench run`, whole in `bench eval show JOB --rollout R`.

Everything that a package, an agent or a verifier wrote is made printable here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchflow.cli.pull_lines import size
from benchflow.cli.rollouts.exchange_view import exchange_document, exchange_lines
from benchflow.cli.tasks.rendering import counted
from benchflow.cli.terminal import columns, printable, printable_lines, shortened, style

if TYPE_CHECKING:
    from benchflow.record import ArenaPart, Result, SandboxPart, VerifierPart
    from benchflow.record.reading.rollout_story import Output, RewardPart, RolloutStory
    from benchflow.record.reading.trajectory_steps import Part, Step

_CHOSEN_BY: Final = {"declared": "declared", "user": "--isolation", "proof": "proven", "default": "default"}
_MARKS: Final = {"thought": "thinks", "message": "says", "result": "gets"}
_TAIL: Final = 6
"""Lines of a verifier's output in a short view."""
_LINES: Final = 60
"""Lines of an output, from its beginning and from its end together, unless all are wanted."""
_WIDE: Final = 160


def result_lines(result: Result, folder: Path) -> list[str]:
    """A result in short: the outcome and its reasons, what the verifier said of it, timings, notes, and the folder."""
    lines = [*_head(result), *_explained(result, folder), *_notes(result)]
    spent = _spent(result)
    where = [f"  {printable(str(folder))}"] if folder.is_dir() else []
    return [*lines, *([f"  {spent}"] if spent else []), *where]


def _explained(result: Result, folder: Path) -> Iterator[str]:
    from benchflow.record.outcome import FULL

    if result.error is None and (result.reward or 0.0) >= FULL:
        yield from _agent_end(result)
        return
    from benchflow.record.reading.rollout_story import read_story

    story = read_story(folder, result)
    yield from _reason_lines(story)
    yield from _said_last(story)


def story_lines(story: RolloutStory, *, whole: bool = False) -> Iterator[str]:
    """A rollout from its prompt to its files; `whole` shows every text in full."""
    from benchflow.record.reading.trajectory_steps import read_steps

    result = story.result
    if result is None:
        yield style(printable(story.name), "bold")
        yield f"  no result: {printable(story.problem or 'it has not ended')}"
    else:
        yield from _head(result)
        yield from _reason_lines(story)
        yield from _part_lines(story.parts)
        yield from _notes(result)
    said = story.folder.a2a_messages.is_file()
    if said:
        yield from _section("exchange")
        yield from exchange_lines(story.folder, whole=whole)
    yield from _section("steps")
    count = 0
    for step in read_steps(story.trajectory):
        if said and all(part.name == "a2a_message" for part in step.parts):
            continue  # shown above
        count += 1
        yield from _step_lines(step, whole=whole)
    if not count:
        yield "  none were recorded"
    for output in story.verifier:
        yield from _output_lines("verifier", output, whole=whole)
    for output in story.agent:
        yield from _output_lines("agent", output, whole=whole)
    if result is not None:
        yield from _section("time and usage")
        yield f"  {_spent(result) or 'not recorded'}"
        if result.usage:
            yield "  " + ", ".join(f"{printable(name)} {value:,.6g}" for name, value in result.usage.items())
        yield f"  from {printable(result.started_at)} to {printable(result.finished_at)}{_where(result)}"
    yield from _call_lines(story)
    yield from _section("files")
    yield f"  {printable(str(story.folder.path))}"
    for file in story.files:
        yield f"    {size(file.size):>9}  {printable(file.name)}"


def _where(result: Result) -> str:
    """The node, and whether its times can be compared with others."""
    node = result.notes.node
    if node is None:
        return ""
    offset = node.clock_offset_sec
    clock = "" if offset is None else f", whose clock was {abs(offset):g} s {'ahead' if offset > 0 else 'behind'}"
    return f", on node {printable(node.name)}{clock}"


def _call_lines(story: RolloutStory) -> Iterator[str]:
    """How often models were called, with what outcome, tokens and cost; nothing if none was."""
    from benchflow.record.reading.call_lines import tally_calls

    found = tally_calls(story.folder)
    if not found.calls and not found.damaged:
        return
    yield from _section("model calls")
    outcomes = [f"{count:,} {outcome}" for outcome, count in sorted(found.outcomes.items())]
    outcomes += [f"{found.damaged:,} that cannot be read"] if found.damaged else []
    yield f"  {', '.join(outcomes)} (with those of judges and simulated users)"
    tokens = {name.replace("_", " "): found.usage.get(name) for name in ("input_tokens", "output_tokens")}
    parts = [f"{name} {'unknown' if value is None else f'{value:,.0f}'}" for name, value in tokens.items()]
    cost = found.usage.get("cost_usd")
    yield f"  {', '.join(parts)}, cost {'unknown' if cost is None else f'${cost:,.4g}'}"


def story_document(story: RolloutStory, *, whole: bool = False) -> dict[str, Any]:
    """The same as plain JSON values."""
    from benchflow.record.codec import plain
    from benchflow.record.reading.call_lines import tally_calls
    from benchflow.record.reading.trajectory_steps import read_steps

    longest = None if whole else 2_000
    return {
        "rollout": story.name,
        "folder": str(story.folder.path),
        "result": None if story.result is None else story.result.to_dict(),
        "problem": story.problem,
        "why": [{"kind": reason.kind, "text": reason.text} for reason in story.reasons],
        "parts": [plain(part) for part in story.parts],
        "steps": [_step_document(step, longest) for step in read_steps(story.trajectory)],
        **({"exchange": exchange_document(story.folder)} if story.folder.a2a_messages.is_file() else {}),
        "verifier_output": [_output_document(output) for output in story.verifier],
        "agent_output": [_output_document(output) for output in story.agent],
        "model_calls": plain(tally_calls(story.folder)),
        "files": [{"name": file.name, "bytes": file.size} for file in story.files],
    }


def used_image(sandbox: SandboxPart) -> list[str]:
    """What a rollout ran on, where that is not the very image that the package names."""
    replaced = f" instead of {' and '.join(sandbox.instead_of)}" if sandbox.instead_of else ""
    if sandbox.fidelity == "built":
        return [f"ran on an image built from the package's Dockerfile on {sandbox.base}{replaced}"]
    if sandbox.fidelity != "substituted":
        return []
    lacks = f"; {', '.join(sandbox.lacks)}" if sandbox.lacks else ""
    return [f"ran on the substitute {sandbox.base}{replaced or ' instead of the image named by the package'}{lacks}"]


def _head(result: Result) -> Iterator[str]:
    agent = result.agent.name + (f" ({result.agent.model})" if result.agent.model else "")
    attempt = f", attempt {result.attempt}" if result.attempt > 1 else ""
    yield f"{printable(result.task.name)}{attempt}  {style(printable(agent), 'dim')}"
    if result.error is None:
        yield style(f"  reward {result.reward:g}", "green" if (result.reward or 0) > 0 else "yellow")
    else:
        error = result.error
        yield style(f"  unscored: {error.category}/{printable(error.code)} in phase {error.phase}", "red")
        yield f"  {printable(error.message)}"
    if result.arena is not None:
        yield from _played(result.arena)
    else:
        yield from (f"  {printable(name)} {value:g}" for name, value in result.rewards.items() if name != "reward")


def _played(arena: ArenaPart) -> Iterator[str]:
    """Who played which role, with what reward and how it ended."""
    for name, role in arena.roles.items():
        who = (role.url or role.agent) + (f" ({role.model})" if role.model else "")
        reward = "no reward" if role.reward is None else f"{role.reward:g}"
        marks = [*(["winner"] if arena.winner == name else []), *([role.status] if role.status != "played" else [])]
        marks += ["forfeited"] if role.forfeited else []
        yield f"  {printable(name)}: {reward}  {style(printable(who), 'dim')}{'  ' + ', '.join(marks) if marks else ''}"
    events = f", {arena.events} reward events" if arena.events else ""
    yield f"  {arena.messages} messages{events}, assessor {printable(arena.assessor)}"


def _reason_lines(story: RolloutStory) -> Iterator[str]:
    """Why the reward is not full; of an unscored rollout the head says it."""
    yield from (
        f"  {shortened(printable(reason.text), 300)}"
        for reason in story.reasons
        if reason.kind not in ("unscored", "reward", "game")
        and not (reason.kind == "part" and _is_shown(story, reason.text))
    )
    if story.result is not None and not story.reasons:
        yield from _agent_end(story.result)


def _agent_end(result: Result) -> Iterator[str]:
    """What was unusual about the end of an agent whose reward needs no explanation."""
    if result.notes.limits_reached:
        yield f"  the agent reached the sandbox's limit of {' and '.join(result.notes.limits_reached)}"
    if result.agent.timed_out or result.agent.exit_code:
        code = result.agent.exit_code
        yield "  the agent reached its time limit" if result.agent.timed_out else f"  the agent exited with code {code}"


def _is_shown(story: RolloutStory, text: str) -> bool:
    """Whether a part says no more than the metric in the head does."""
    metrics = story.result.rewards if story.result is not None else {}
    return any(text == f"{name} is {value:g}" for name, value in metrics.items())


def _said_last(story: RolloutStory) -> Iterator[str]:
    """The end of what the verifier printed, of a rollout without a full reward."""
    if not story.reasons:
        return
    for output in story.verifier:
        lines = [line for line in printable_lines(output.text) if line]
        if lines:
            yield style(f"  the verifier printed{'' if len(lines) <= _TAIL else ', last'}:", "dim")
            yield from (f"    {line}" for line in lines[-_TAIL:])


def _part_lines(parts: tuple[RewardPart, ...]) -> Iterator[str]:
    told = [part for part in parts if part.words or part.reason or part.weight is not None or part.step is not None]
    if not told:
        return
    yield from _section("parts of the reward")
    for part in told:
        at = f"{part.step}: " if part.step is not None else ""
        weight = f" (weight {part.weight:g})" if part.weight is not None else ""
        yield f"  {printable(at + part.name)} {part.value:g}{weight}"
        for name, text in (("criterion", part.words), ("judged", part.reason)):
            if text:
                yield f"    {name}: {shortened(printable(text), 600)}"


def _step_lines(step: Step, *, whole: bool) -> Iterator[str]:
    where = " ".join(str(value) for value in step.context.values())
    clock = step.time[11:19]
    head = f"  {step.number:>4}  {clock}  "
    indent = " " * len(head)
    for index, part in enumerate(step.parts):
        begin = head + (style(f"[{printable(where)}] ", "dim") if where else "") if index == 0 else indent
        lines = _part_text(part, whole=whole)
        yield begin + lines[0]
        yield from (indent + "  " + line for line in lines[1:])
    if step.usage:
        used = ", ".join(f"{printable(name)} {value:,.6g}" for name, value in step.usage.items())
        yield style(f"{indent if step.parts else head}{used}", "dim")


def _part_text(part: Part, *, whole: bool) -> list[str]:
    """A part of a step: folded to a line, a call to two; or as it is."""
    match part.kind:
        case "prompt":
            return _folded(style("prompt ", "cyan"), part.text, whole=whole, most=4)
        case "thought" | "message" | "result":
            return _folded(style(f"{_MARKS[part.kind]} ", "cyan"), part.text, whole=whole)
        case "call":
            said = part.text or _arguments(part.arguments)
            lines = _folded(style(f"calls {printable(part.name)} ", "cyan"), said, whole=whole)
            if whole and part.text and part.arguments is not None:
                lines += printable_lines(_arguments(part.arguments))
            if part.output is None:
                return [*lines, style("no result", "dim")]
            mark = style("failed: ", "yellow") if part.failed else "→ "
            return [*lines, *_folded(mark, part.output, whole=whole)]
        case _:
            rest = part.arguments if isinstance(part.arguments, Mapping) else {}
            told = ", ".join(f"{key} {_arguments(value)}" for key, value in rest.items() if value not in ("", None))
            return _folded(style(f"{printable(part.name)} ", "dim"), told or part.text, whole=whole)


def _folded(mark: str, text: str, *, whole: bool, most: int = 1) -> list[str]:
    lines = [line for line in printable_lines(text, 100_000 if whole else 4_000) if whole or line]
    if whole:
        return [mark + (lines[0] if lines else ""), *lines[1:]]
    width = (columns() or _WIDE) - 40
    shown = [shortened(line, max(width, 40)) for line in lines[:most]]
    more = f"  [+{counted(len(lines) - most, 'line')}]" if len(lines) > most else ""
    return [
        mark + (shown[0] if shown else "") + (more if len(shown) < 2 else ""),
        *shown[1:],
        *([more.strip()] if more and len(shown) > 1 else []),
    ]


def _arguments(given: Any) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping) and len(given) == 1:
        [value] = given.values()
        if isinstance(value, str):
            return value
    return "" if given is None else json.dumps(given, ensure_ascii=False)


def _output_lines(who: str, output: Output, *, whole: bool) -> Iterator[str]:
    yield from _section(f"{who} output", f"{printable(output.name)}, {size(output.size)}")
    lines = list(printable_lines(output.text.rstrip("\n"))) if output.text.strip() else []
    if not lines:
        yield "  it printed nothing"
    if whole or len(lines) <= _LINES:
        yield from (f"  | {line}" for line in lines)
        return
    half = _LINES // 2
    yield from (f"  | {line}" for line in lines[:half])
    yield style(f"  [{len(lines) - 2 * half} lines; --full shows them]", "dim")
    yield from (f"  | {line}" for line in lines[-half:])


def _section(title: str, more: str = "") -> Iterator[str]:
    yield ""
    yield style(title, "bold") + (f"  {style(more, 'dim')}" if more else "")


def _spent(result: Result) -> str:
    return ", ".join(f"{printable(name)} {seconds:.1f} s" for name, seconds in result.timing.items() if seconds >= 0.05)


def _isolation(verifier: VerifierPart) -> str:
    rung, by = verifier.isolation.rung, verifier.isolation.chosen_by
    line = f"  isolation {rung} ({_CHOSEN_BY[by]})"
    return style(f"{line}: what the agent left behind can affect the verifier", "yellow") if rung == "open" else line


def _notes(result: Result) -> list[str]:
    verifier = result.verifier
    notes = [_isolation(verifier)] if verifier is not None else []
    notes += [f"  note: {printable(issue.message)}" for issue in verifier.diagnostics] if verifier is not None else []
    lost = verifier.not_carried_over.total if verifier is not None else 0
    if lost:
        notes.append(f"  note: the verifier did not see {lost} of the agent's changes; result.json lists them")
    for _, check in result.wider:
        reward = "is not scored" if check.reward is None else f"scores {check.reward:g}"
        notes.append(f"  note: at '{check.rung}', where the verifier sees more, the same work {reward}")
    notes += [f"  note: {printable(line)}" for line in used_image(result.sandbox)]
    failed = result.notes.cleanup
    return notes + [f"  note: the {part.what} was not cleaned up: {printable(part.message)}" for part in failed]


def _step_document(step: Step, longest: int | None) -> dict[str, Any]:
    parts = [
        {
            "kind": part.kind,
            "name": part.name,
            "text": _cut(part.text, longest),
            **({"arguments": part.arguments} if part.arguments is not None else {}),
            **({"output": _cut(part.output, longest), "failed": part.failed} if part.output is not None else {}),
        }
        for part in step.parts
    ]
    used = {"usage": dict(step.usage)} if step.usage else {}
    return {"number": step.number, "kind": step.kind, "time": step.time, **step.context, "parts": parts, **used}


def _cut(text: str, longest: int | None) -> str:
    return text if longest is None else shortened(text, longest)


def _output_document(output: Output) -> dict[str, Any]:
    return {"name": output.name, "bytes": output.size, "text": output.text, "dropped_bytes": output.dropped}
