"""`task.md` as written by its author: `TaskDocument`, with its scenes resolved and its interaction mode derived.

`read_document` turns the text and the sidecar prompts into a document and reports every problem;
`TaskDocument.from_text` and `from_path` raise instead. The document keeps the frontmatter as written
(private facts included) so that it can be rewritten; no dump of a document shows private facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchflow.errors import Issue, IssuesError, PackageError
from benchflow.task.config.interaction import Role, Scene, Turn, User
from benchflow.task.config.namespace import PROFILE_KEYS, SHORT_KEYS, DocumentRoot, Namespace
from benchflow.task.config.parsed_record import FrozenMap, IssueLog, shorten
from benchflow.task.config.task_config import TaskConfig
from benchflow.task.document.markdown import Body, MarkdownError, decode, normalise, split_frontmatter, split_sections
from benchflow.task.document.yaml_source import YamlError, YamlSource

TASK_MD: Final = "task.md"
PERSONA: Final = "user-persona"
_NONE: Final = FrozenMap()
MergeProfiles = Callable[[dict[str, Any], IssueLog], dict[str, Any]]


class TaskDocumentParseError(IssuesError, ValueError):
    """A `task.md` that is not valid."""

    default_code = "invalid-document"


@dataclass(frozen=True, slots=True)
class TaskDocument:
    """The authoring view of a task."""

    config: TaskConfig
    namespace: Namespace
    instruction: str
    """The base prompt."""
    roles: Mapping[str, Role] = field(default_factory=FrozenMap)
    scenes: tuple[Scene, ...] = ()
    """Named, with the roles and turns that apply; turn prompts hold inline text only."""
    user: User | None = None
    role_prompts: Mapping[str, str] = field(default_factory=FrozenMap, repr=False)
    scene_prompts: Mapping[str, str] = field(default_factory=FrozenMap, repr=False)
    persona: str | None = None
    preamble: str = field(default="", repr=False)
    """Text before `## prompt`; it is not part of any prompt."""
    mode: str = "single-shot"
    """The interaction mode, declared or derived."""
    presets: tuple[str, ...] = ()
    frontmatter: Mapping[str, Any] = field(default_factory=FrozenMap, repr=False)
    """As written, including shorthands and private facts."""
    body: str = field(default="", repr=False)
    """As written, with normalised line endings."""
    spelling: Mapping[str, str] = field(default_factory=FrozenMap, repr=False)
    """Canonical root sections -> the author's spelling where it differs (`environment` -> `sandbox`)."""

    @classmethod
    def from_text(cls, text: str, *, sidecars: Mapping[str, str] | None = None) -> TaskDocument:
        """Parse a text; raises `TaskDocumentParseError`. Profile references are kept but not resolved."""
        return TaskDocumentParseError.require(*read_document(text, sidecars=sidecars or {}))

    @classmethod
    def from_path(cls, path: Path | str) -> TaskDocument:
        """Parse the `task.md` of a package folder, or the file itself, with its sidecars and profiles."""
        from benchflow.task.package import load_package

        folder = Path(path)
        package = load_package(folder.parent if folder.name == TASK_MD else folder)
        missing = () if TASK_MD in package.files else (Issue("missing-document", "error", "", "there is no task.md"),)
        return TaskDocumentParseError.require(package.document, (*package.document_issues, *missing))


def read_document(
    source: bytes | str,
    *,
    sidecars: Mapping[str, str],
    merge_profiles: MergeProfiles | None = None,
    file: str = TASK_MD,
) -> tuple[TaskDocument | None, list[Issue]]:
    """Parse a document with its sidecar prompts (section key -> text); None when it has no readable root."""
    try:
        text = decode(source) if isinstance(source, bytes) else normalise(source)
        parts = split_frontmatter(text)
        yaml = YamlSource(parts.yaml, first_line=2)
    except (MarkdownError, YamlError) as problem:
        return None, [
            Issue(problem.code, "error", shorten(problem.path), shorten(f"{file} {problem}"), file, problem.line)
        ]
    problems = IssueLog(file, yaml.line)
    frontmatter = {} if yaml.value is None else yaml.value
    if not isinstance(frontmatter, dict):
        problems.error("not-a-mapping", "", f"the frontmatter of {file} must be a mapping", line=2)
        return None, problems.issues
    body = split_sections(parts.body, parts.body_line)
    return _assemble(frontmatter, parts.body, body, sidecars, merge_profiles, problems), problems.issues


def _assemble(
    frontmatter: dict[str, Any],
    text: str,
    body: Body,
    sidecars: Mapping[str, str],
    merge_profiles: MergeProfiles | None,
    problems: IssueLog,
) -> TaskDocument | None:
    mapping, presets = dict(frontmatter), tuple[str, ...]()
    if _has_shorthand(frontmatter):
        from benchflow.task.document.authoring import expand_authoring

        mapping, presets, renames = expand_authoring(frontmatter, problems)
        problems.renames.update(renames)
    if merge_profiles is not None and any(key in mapping for key in PROFILE_KEYS):
        mapping = merge_profiles(mapping, problems)
    root = DocumentRoot.parse(mapping, "", problems)
    if root is None:
        return None
    prompts = _prompts(body, sidecars, problems)
    roles: Mapping[str, Role] = root.agents.roles
    _report_unused(prompts, roles, root.scenes, sidecars, problems)
    persona = prompts.get(PERSONA) or (root.user.persona if root.user else None)
    scenes = resolve_scenes(root.scenes, roles, problems)
    check_roles(root.benchflow, roles, problems)
    _check_spelling(root.benchflow, problems)
    return TaskDocument(
        config=root.config(),
        namespace=root.benchflow,
        instruction=prompts["prompt"],
        roles=roles,
        scenes=scenes,
        user=root.user,
        role_prompts=_named(prompts, "role:"),
        scene_prompts=_named(prompts, "scene:"),
        persona=persona,
        preamble=body.preamble if body.has("prompt") else "",
        mode=derive_mode(root.benchflow, scenes, root.user, persona, problems),
        presets=presets,
        frontmatter=FrozenMap(frontmatter),
        body=text,
        spelling=FrozenMap(_spelling(frontmatter)),
    )


def _has_shorthand(frontmatter: Mapping[str, Any]) -> bool:
    """Whether it has keys for authors only: short ones, or the path of a folder for a section."""
    sections = (frontmatter.get(key) for key in ("verifier", "oracle", "solution"))
    return not SHORT_KEYS.isdisjoint(frontmatter) or any(isinstance(section, str) for section in sections)


def _check_spelling(namespace: Namespace, problems: IssueLog) -> None:
    if namespace.compat is None or namespace.compat.spelling is None:
        return
    from benchflow.task.document.toml_source import parse_toml

    where = "benchflow.compat.spelling"
    try:
        parse_toml(namespace.compat.spelling, file=where)
    except PackageError as problem:
        problems.error(problem.code, where, str(problem))


def _spelling(frontmatter: Mapping[str, Any]) -> dict[str, str]:
    known = DocumentRoot.KEYS.get
    return {field.key: key for key in frontmatter if (field := known(key)) is not None and field.key != key}


def _named(prompts: Mapping[str, str], prefix: str) -> FrozenMap:
    if len(prompts) == 1:
        return _NONE
    return FrozenMap({key.removeprefix(prefix): text for key, text in prompts.items() if key.startswith(prefix)})


def _prompts(body: Body, sidecars: Mapping[str, str], problems: IssueLog) -> dict[str, str]:
    """Every prompt by section key; a sidecar overrides a heading of the same name."""
    prompts: dict[str, str] = {}
    for section in body.sections:
        if section.key in prompts:
            message = f"the section '## {section.key}' appears twice"
            problems.error("duplicate-section", section.key, message, line=section.line)
            continue
        prompts[section.key] = section.text
    if "prompt" not in prompts:
        prompts["prompt"] = body.preamble
    elif body.preamble:
        message = "text before '## prompt' is not part of any prompt; move it below that heading"
        first = min(section.line for section in body.sections)
        problems.warning("preamble", "prompt", message, line=first)
    prompts.update(sidecars)
    return prompts


def _report_unused(
    prompts: Mapping[str, str],
    roles: Mapping[str, Role],
    scenes: tuple[Scene, ...],
    sidecars: Mapping[str, str],
    problems: IssueLog,
) -> None:
    if len(prompts) == 1:
        return  # the base prompt alone
    names = {scene.name or f"scene-{index}" for index, scene in enumerate(scenes)}
    for key in prompts:
        prefix, _, name = key.partition(":")
        known = roles if prefix == "role" else names if prefix == "scene" else None
        if known is not None and name not in known:
            origin = f"prompts/{prefix}.{name}.md" if key in sidecars else f"the section '## {key}'"
            problems.warning("unused-prompt", key, f"{origin} does not belong to a declared {prefix}")


SCRIPTED_MODELS = (None, "scripted", "deterministic")


def resolve_scenes(scenes: tuple[Scene, ...], roles: Mapping[str, Role], problems: IssueLog) -> tuple[Scene, ...]:
    """Each scene with a name, its roles and its turns; undeclared roles are reported and dropped."""
    resolved: list[Scene] = []
    seen: set[str] = set()
    for index, scene in enumerate(scenes):
        path = f"scenes[{index}]"
        name = scene.name or f"scene-{index}"
        if name in seen:
            problems.error("invalid-value", f"{path}.name", f"{path}.name: there is already a scene '{name}'")
        seen.add(name)
        resolved.append(_resolve(scene, name, path, roles, problems))
    return tuple(resolved)


def _resolve(scene: Scene, name: str, path: str, roles: Mapping[str, Role], problems: IssueLog) -> Scene:
    if scene.roles is not None:
        members = [
            role for index, role in enumerate(scene.roles) if _declared(role, f"{path}.roles[{index}]", roles, problems)
        ]
    elif scene.turns:
        members = list(dict.fromkeys(turn.role for turn in scene.turns if turn.role in roles))
    else:
        members = list(roles)
    turns: list[Turn] = []
    for index, turn in enumerate(scene.turns or ()):
        where = f"{path}.turns[{index}]"
        if not _declared(turn.role, where, roles, problems):
            continue
        if turn.role not in members:
            problems.error(
                "unknown-role", where, f"{where} uses the role '{turn.role}', which is not in the scene's roles"
            )
            continue
        turns.append(turn)
    if scene.turns is None:
        turns = [Turn(role=role) for role in members]
    if not turns:
        problems.error(
            "invalid-value", path, f"{path} has no turns; declare agents.roles and add roles or turns to the scene"
        )
    return scene.replace(name=name, roles=tuple(members), turns=tuple(turns))


def check_roles(namespace: Namespace, roles: Mapping[str, Role], problems: IssueLog) -> None:
    """Teams and live interactions may only name declared roles."""
    for name, team in namespace.teams.items():
        for index, role in enumerate(team.roles):
            _declared(role, f"benchflow.teams.{name}.roles[{index}]", roles, problems)
    interaction = namespace.interaction
    if interaction is None:
        return
    for index, role in enumerate(interaction.participants):
        _declared(role, f"benchflow.interaction.participants[{index}]", roles, problems)


def _declared(role: str, where: str, roles: Mapping[str, Role], problems: IssueLog) -> bool:
    if role in roles:
        return True
    problems.error(
        "unknown-role", where, f"{where} names the role '{role[:60]}', which is not declared in agents.roles"
    )
    return False


def derive_mode(
    namespace: Namespace, scenes: tuple[Scene, ...], user: User | None, persona: str | None, problems: IssueLog
) -> str:
    """The declared interaction mode, or the one the document implies; a contradiction is reported."""
    turns = [turn for scene in scenes for turn in scene.turns or ()]
    roles = {turn.role for turn in turns}
    has_user = user is not None or persona is not None or namespace.nudges is not None
    if has_user:
        derived = "simulated-user"
    elif len(roles) > 1:
        derived = "multi-agent-sequential"
    else:
        derived = "multi-round" if len(turns) > 1 else "single-shot"
    if namespace.interaction is None:
        return derived
    mode = namespace.interaction.mode
    problem = _contradiction(mode, derived, len(roles), user)
    if problem:
        where = "benchflow.interaction.mode"
        problems.error("mode-contradiction", where, f"{where} is {mode}, but {problem}")
    return mode


def _contradiction(mode: str, derived: str, roles: int, user: User | None) -> str | None:
    scripted = user is not None and user.model in SCRIPTED_MODELS
    match mode:
        case "single-shot" if derived != "single-shot":
            return f"the rest of the document makes it {derived}"
        case "multi-round" if derived == "multi-agent-sequential":
            return "its turns use several roles"
        case "multi-round" if derived == "simulated-user" and not scripted:
            return "a model-backed user or a persona makes it simulated-user"
        case "simulated-user" if derived != "simulated-user":
            return "there is no user, persona or nudge"
        case "multi-agent-sequential" if roles < 2:  # several means two
            return "its turns do not use several roles"
    return None
