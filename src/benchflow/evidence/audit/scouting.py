"""Scouting: what an attacker who has the package sees of it, before anything is tried.

One rollout by the oracle shows what a solution writes, one by an agent that only looks shows what the environment has;
the prompt and the verifier name further paths. `named_paths` and `outputs_of` are pure.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from benchflow.agents.protocol import Agent, AgentContext, TurnResult
from benchflow.errors import AgentFailure, SandboxFailure
from benchflow.evidence.audit.exploit_family import Seen
from benchflow.evidence.audit.solving import solve
from benchflow.evidence.trial_stage import Stage
from benchflow.task.package import TaskPackage
from benchflow.task.package_layout import ALIASES

PROGRAMS: Final = (
    "bash cargo cc coverage curl date gcc git go java javac jq make md5sum node npm npx perl pip pip3 ps pytest python "
    "python3 R Rscript ruby rustc sha256sum sqlite3 sudo tar tox unzip uv uvx wget zip"
)
"""What the environment is asked for."""
MAX_FILES: Final = 4000
MAX_OUTPUTS: Final = 24
MAX_REPOSITORIES: Final = 4
MAX_TEXT: Final = 256 << 10
_LOOK_SEC: Final = 60.0
_ABSOLUTE: Final = re.compile(r"(?<![\w.:/~$}*-])/(?:[\w.@+-]+/)*[\w.@+-]*[\w]")
_RELATIVE: Final = re.compile(r"[`'\"]((?:\./)?(?:[\w@+-][\w.@+-]*/)*[\w@+-][\w.@+-]*\.\w{1,8})[`'\"]")
_SYSTEM: Final = re.compile(r"/(bin|dev|etc|lib|lib64|logs|proc|run|sbin|sys|tests|verifier|oracle|solution|usr)/")
_LOOK: Final = """\
id -un 2>/dev/null || echo root
echo "$HOME"
for name in {programs}; do if command -v "$name" >/dev/null 2>&1; then printf '%s ' "$name"; fi; done; echo
env | sed -n 's/^\\([A-Za-z_][A-Za-z_0-9]*\\)=.*/\\1/p' | tr '\\n' ' '; echo
{{ find "$PWD" -xdev -maxdepth 4 -name .git; find / -xdev -maxdepth 4 -name .git; }} 2>/dev/null |
  sed 's,/\\.git$,,' | head -n {repositories} | tr '\\n' '\\t'; echo
find "$PWD" -xdev -name .git -prune -o -type f -print 2>/dev/null | head -n {most}
"""
_THERE: Final = 'for path in "$@"; do if [ -e "$path" ] || [ -L "$path" ]; then printf "%s\\n" "$path"; fi; done'


async def look(stage: Stage) -> Seen:
    """What is seen of the package of a stage. Raises `AgentFailure` if its environment cannot be looked at."""
    package = stage.package
    prompt = "\n\n".join(turn.prompt for turn in package.view.prompt_plan.turns)
    verifier, oracle = _texts(package, ALIASES[0]), _texts(package, ALIASES[1])
    solved = await solve(stage)
    made = tuple(path for path in solved.written if not _SYSTEM.match(path))
    scouts: list[_Scout] = []

    def scout() -> Agent:
        scouts.append(_Scout((prompt, *verifier.values()), made))
        return scouts[-1]

    trial = await stage.run(scout, name="scout")
    found = next((item for item in scouts if item.workdir), None)
    if found is None:
        error = trial.result.error
        raise AgentFailure(
            error.message if error is not None else "The environment cannot be looked at.", code="unseen"
        )
    return Seen(
        package=package,
        rung=stage.isolation.rung,
        workdir=found.workdir,
        user=found.user,
        home=found.home,
        prompt=prompt,
        files=found.files,
        programs=found.programs,
        outputs=outputs_of(made, found.named, found.there),
        read=tuple(path for path in found.named if path in found.there),
        verifier=verifier,
        oracle=oracle,
        edited=tuple(path for path in made if path in found.there)[:MAX_OUTPUTS],
        written=solved.written,
        solved=solved.reward,
        repositories=found.repositories,
        variables=found.variable_names,
    )


def outputs_of(made: Sequence[str], named: Sequence[str], there: Container[str]) -> tuple[str, ...]:
    """What a solution creates: what the oracle creates, files that are also named first, then what is only named.

    A name without a suffix that nothing creates may be a folder, and is left out where the oracle's files are known.
    """
    created = [path for path in made if path not in there]
    created.sort(key=lambda path: path not in named)
    known = frozenset(created)
    parents = {str(parent) for path in created for parent in PurePosixPath(path).parents}
    rest = [path for path in named if path not in there and path not in known and path not in parents]
    if created:
        rest = [path for path in rest if PurePosixPath(path).suffix]
    return tuple([*created, *rest][:MAX_OUTPUTS])


def named_paths(texts: Iterable[str], workdir: str) -> tuple[str, ...]:
    """The paths that texts name, absolute, in order, without folders of the system."""
    found: dict[str, None] = {}
    for text in texts:
        for path in _paths(text, workdir):
            plain = str(PurePosixPath(path))
            if plain != "/" and plain != workdir and not _SYSTEM.match(f"{plain}/"):
                found[plain] = None
    return tuple(found)


def _paths(text: str, workdir: str) -> Iterator[str]:
    for match in _ABSOLUTE.finditer(text):
        yield match[0]
    for match in _RELATIVE.finditer(text):
        if not match[1].startswith("/"):
            yield f"{workdir.rstrip('/')}/{match[1].removeprefix('./')}"


class _Scout(Agent):
    """Looks around in its first turn, and changes nothing."""

    name = "scout"

    def __init__(self, texts: Iterable[str], made: Iterable[str]) -> None:
        self._texts: Final = tuple(texts)
        self._made: Final = tuple(made)
        self._context: AgentContext | None = None
        self.workdir = ""
        self.user = "root"
        self.home = "/root"
        self.programs: frozenset[str] = frozenset()
        self.variable_names: tuple[str, ...] = ()
        self.repositories: tuple[str, ...] = ()
        self.files: tuple[str, ...] = ()
        self.named: tuple[str, ...] = ()
        self.there: frozenset[str] = frozenset()

    async def start(self, context: AgentContext) -> None:
        self._context = context

    async def prompt(self, text: str, *, timeout: float | None = None) -> TurnResult:
        del text, timeout
        if self._context is not None and not self.workdir:
            await self._look(self._context)
        return TurnResult("end_turn")

    async def close(self) -> None:
        """Nothing to stop."""

    async def _look(self, context: AgentContext) -> None:
        script = _LOOK.format(programs=PROGRAMS, most=MAX_FILES, repositories=MAX_REPOSITORIES)
        printed = await self._run(context, script, env=context.env)
        self.user, self.home, programs, variables, repositories, *files = (*printed, *[""] * 5)[: max(5, len(printed))]
        self.programs, self.files = frozenset(programs.split()), tuple(files)
        self.variable_names = tuple(variables.split())
        self.repositories = tuple(dict.fromkeys(filter(None, repositories.split("\t"))))
        self.workdir = context.workdir
        self.named = named_paths(self._texts, context.workdir)
        self.there = frozenset(await self._run(context, _THERE, *self.named, *self._made))

    async def _run(
        self, context: AgentContext, script: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> list[str]:
        command = ["sh", "-c", script, "sh", *arguments]
        try:
            found = await context.sandbox.exec(
                command, user=context.user, cwd=context.workdir, env=env, timeout=_LOOK_SEC
            )
        except SandboxFailure as error:
            raise AgentFailure(f"The environment cannot be looked at: {error}", code="unseen") from error
        return found.stdout.decode(errors="replace").splitlines()


def _texts(package: TaskPackage, folders: Iterable[str]) -> Mapping[str, str]:
    """The text files below folders of a package, of its steps too, by their path."""
    inside = re.compile(rf"(?:steps/[^/]+/)?(?:{'|'.join(map(re.escape, folders))})/")
    found = {}
    for path, entry in package.files.files.items():
        if inside.match(path) and entry.size <= MAX_TEXT:
            data = package.files.read(path)
            if b"\0" not in data:
                found[path] = data.decode(errors="replace")
    return found
