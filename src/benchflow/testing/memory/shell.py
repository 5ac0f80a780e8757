"""The in-memory shell: runs the trees of `shell_syntax` on a `NodeTree`.

A subset of POSIX sh that runs the scripts of small packages. Pipelines run one command after the other. Programs are
those of `program_table`, those that the machine was given, and executable scripts of the tree.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from benchflow.testing.memory import shell_syntax as syntax
from benchflow.testing.memory.memory_jobs import Job, Machine, Pipe
from benchflow.testing.memory.node_tree import Node, NodeTree
from benchflow.testing.memory.shell_syntax import ShellSyntaxError
from benchflow.testing.memory.shell_words import Expander

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchflow.testing.memory.shell_syntax import Command, Script

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
_SHELLS: Final = ("sh", "bash", "dash", "ash")
_STANDARD: Final = {"/dev/stdout": 1, "/dev/stderr": 2}

Output = Callable[[bytes], None]


class Leave(Exception):
    """The shell ends."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Return(Leave):
    """A function ends."""


class Jump(Exception):
    """`break` or `continue` of that many loops."""

    def __init__(self, levels: int, *, again: bool) -> None:
        super().__init__(levels)
        self.levels, self.again = levels, again


@dataclass(slots=True)
class Call:
    """One call of a program: its words, its streams and where it runs."""

    shell: Shell
    name: str
    args: list[str]

    @property
    def tree(self) -> NodeTree:
        return self.shell.machine.tree

    @property
    def uid(self) -> int:
        return self.shell.uid

    def path(self, name: str) -> str:
        """A path from the working folder."""
        return posixpath.join(self.shell.cwd, name)

    @property
    def stdin(self) -> Pipe:
        return self.shell.stdin

    def out(self, data: str | bytes) -> None:
        self.shell.outputs[1](data if isinstance(data, bytes) else data.encode(errors="surrogateescape"))

    def fail(self, message: str, code: int = 1) -> int:
        self.shell.outputs[2](f"{self.name}: {message}\n".encode(errors="surrogateescape"))
        return code

    def now(self) -> int:
        return int(time.time())


@dataclass(slots=True)
class Shell:
    """The state of one shell process."""

    machine: Machine
    job: Job
    uid: int
    cwd: str
    variables: dict[str, str]
    stdin: Pipe
    outputs: dict[int, Output]
    exported: set[str] = field(default_factory=set)
    parameters: list[str] = field(default_factory=list)
    script: str = "sh"
    functions: dict[str, Command] = field(default_factory=dict)
    status: int = 0
    pid: int = 0
    last_job: int | None = None
    options: set[str] = field(default_factory=set)

    def child(self) -> Shell:
        """A copy, as for a subshell."""
        return replace(
            self,
            variables=self.variables.copy(),
            exported=self.exported.copy(),
            parameters=self.parameters.copy(),
            functions=self.functions.copy(),
            outputs=self.outputs.copy(),
            options=self.options.copy(),
        )

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in self.variables.items() if name in self.exported}

    # --- programs ---

    async def execute(self, words: Sequence[str], **variables: str) -> int:
        """Run a program as a process of its own, with more variables; its exit code."""
        env = {**self.environment(), **variables}
        inner = replace(self.child(), variables=env, exported=set(env), functions={}, options=set(), parameters=[])
        try:
            return await inner.call(list(words))
        except Leave as end:
            return end.code

    async def call(self, words: list[str]) -> int:
        """Run a function, a program or a script by its name, in this shell."""
        from benchflow.testing.memory import file_commands, shell_commands, text_commands  # noqa: F401 - each registers
        from benchflow.testing.memory.program_table import PROGRAMS

        name = words[0]
        if name in self.functions:
            return await self._function(self.functions[name], words[1:])
        folder, _, base = name.rpartition("/")
        known = base if not folder or folder in ("/bin", "/usr/bin", "/usr/local/bin") else ""
        program = self.machine.programs.get(known) or PROGRAMS.get(known)
        if program is not None:
            call = Call(self, base, words[1:])
            try:
                return await program(call)
            except OSError as error:
                return call.fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return await self._file(words)

    async def _file(self, words: list[str]) -> int:
        node = path = None
        folders = [""] if "/" in words[0] else self.variables.get("PATH", "").split(":")
        for folder in folders:
            path = posixpath.join(self.cwd, folder, words[0])
            if (node := self.machine.tree.find(path)) is not None and node.kind == "file":
                break
        if node is None or path is None or node.kind != "file":
            code = NOT_FOUND if node is None else NOT_EXECUTABLE
            self._complain(f"{words[0]}: {'not found' if node is None else 'Permission denied'}")
            return code
        if not node.mode & 0o111:
            self._complain(f"{words[0]}: Permission denied")
            return NOT_EXECUTABLE
        return await self._interpreted(node, path, words)

    async def _interpreted(self, node: Node, path: str, words: list[str]) -> int:
        first = node.data.partition(b"\n")[0].decode(errors="replace")
        line = first[2:].split() if first.startswith("#!") else ["/bin/sh"]
        if line and posixpath.basename(line[0]) == "env":
            line = line[1:]
        name = posixpath.basename(line[0]) if line else ""
        if name in _SHELLS:
            return await self.source(node.data.decode(errors="surrogateescape"), path, words[1:], set(line[1:]))
        if name in self.machine.programs:
            return await self.execute([name, *line[1:], path, *words[1:]])
        self._complain(f"{words[0]}: not found")
        return NOT_FOUND

    async def source(self, text: str, script: str, parameters: list[str], flags: set[str] | None = None) -> int:
        """Run a text as a new shell."""
        inner = self.child()
        inner.script, inner.parameters, inner.functions = script, parameters, {}
        inner.pid, inner.options = self.job.pid, {letter for flag in flags or () for letter in flag.lstrip("-")}
        try:
            return await inner.run_text(text)
        except Leave as end:
            return end.code

    async def run_text(self, text: str) -> int:
        try:
            return await self.run(syntax.parse(text))
        except ShellSyntaxError as error:
            self._complain(str(error))
            raise Leave(2) from None

    async def _function(self, body: Command, parameters: list[str]) -> int:
        former, self.parameters = self.parameters, parameters
        try:
            return await self._command(body)
        except Return as end:
            return end.code
        finally:
            self.parameters = former

    def _complain(self, message: str) -> None:
        self.outputs[2](f"{posixpath.basename(self.script)}: {message}\n".encode(errors="surrogateescape"))

    # --- trees ---

    async def run(self, script: Script, *, guarded: bool = False) -> int:
        """The status of the last list. `guarded`: a failure is expected and does not end a shell with `set -e`."""
        self.status = 0
        for item, background in script.items:
            if background:
                self._start(item)
            else:
                self.status = await self._and_or(item, guarded)
        return self.status

    def _start(self, item: syntax.AndOr) -> None:
        job = self.machine.job(self.uid, self.job.leader)
        inner = replace(self.child(), job=job, stdin=Pipe(b""))

        async def work() -> int:
            try:
                return await inner._and_or(item, guarded=False)
            except Leave as end:
                return end.code

        self.machine.background(job, work())
        self.last_job, self.status = job.pid, 0

    async def _and_or(self, item: syntax.AndOr, guarded: bool) -> int:
        lists = [("", item.first), *item.rest]
        for position, (operator, pipeline) in enumerate(lists):
            if (operator == "&&" and self.status) or (operator == "||" and not self.status):
                continue
            last = position == len(lists) - 1
            expected = guarded or not last or pipeline.negated
            self.status = await self._pipeline(pipeline, expected)
            if self.status and not expected and "e" in self.options:
                raise Leave(self.status)
        return self.status

    async def _pipeline(self, pipeline: syntax.Pipeline, guarded: bool) -> int:
        if len(pipeline.commands) == 1:
            status = await self._command(pipeline.commands[0], guarded=guarded)
        else:
            status = await self._piped(pipeline.commands, guarded)
        return int(not status) if pipeline.negated else status

    async def _piped(self, commands: tuple[Command, ...], guarded: bool) -> int:
        stdin, status = self.stdin, 0
        for command in commands:
            pipe, inner = Pipe(), self.child()
            inner.stdin = stdin
            if command is not commands[-1]:
                inner.outputs[1] = pipe.write
            try:
                status = await inner._command(command, guarded=guarded)
            except Leave as end:
                status = end.code
            pipe.close()
            stdin = pipe
        return status

    async def _command(self, command: Command, *, guarded: bool = False) -> int:
        match command:
            case syntax.Simple():
                return await self._simple(command)
            case syntax.Redirected(inner, redirects):
                return await self._redirected(inner, redirects, guarded)
            case syntax.Group(body, subshell):
                return await (self._subshell(body, guarded) if subshell else self.run(body, guarded=guarded))
            case syntax.Function(name, body):
                self.functions[name] = body
                return 0
            case syntax.If(branches, otherwise):
                for condition, body in branches:
                    if not await self.run(condition, guarded=True):
                        return await self.run(body, guarded=guarded)
                return await self.run(otherwise, guarded=guarded) if otherwise is not None else 0
            case syntax.Case(word, choices):
                return await self._case(word, choices, guarded)
            case syntax.For() | syntax.While():
                return await self._loop(command, guarded)

    async def _subshell(self, body: Script, guarded: bool) -> int:
        try:
            return await self.child().run(body, guarded=guarded)
        except Leave as end:
            return end.code

    async def _case(self, word: str, choices: tuple[tuple[tuple[str, ...], Script], ...], guarded: bool) -> int:
        value = await self._expander().text(word)
        for patterns, body in choices:
            for pattern in patterns:
                if (await self._expander().pattern(pattern))(value):
                    return await self.run(body, guarded=guarded)
        return 0

    async def _loop(self, loop: syntax.For | syntax.While, guarded: bool) -> int:
        status = 0
        async for _ in self._rounds(loop):
            await anyio.lowlevel.checkpoint()
            try:
                status = await self.run(loop.body, guarded=guarded)
            except Jump as jump:
                if jump.levels > 1:
                    raise Jump(jump.levels - 1, again=jump.again) from None
                if not jump.again:
                    break
        return status

    async def _rounds(self, loop: syntax.For | syntax.While):  # type: ignore[no-untyped-def]  # noqa: ANN202
        if isinstance(loop, syntax.While):
            while bool(await self.run(loop.condition, guarded=True)) == loop.until:
                yield
            return
        words = self.parameters.copy() if loop.words is None else await self._fields(loop.words)
        for self.variables[loop.name] in words:
            yield

    async def _simple(self, command: syntax.Simple) -> int:
        words = await self._fields(command.words)
        values = {name: await self._expander().text(word) for name, word in command.assignments}
        if "x" in self.options:
            self.outputs[2](f"+ {' '.join(words)}\n".encode(errors="surrogateescape"))
        if not words:
            self.variables.update(values)
            return self.status if any("$(" in word or "`" in word for _, word in command.assignments) else 0
        if not values:
            return await self.call(words)
        former, exported = self.variables, self.exported
        self.variables, self.exported = {**former, **values}, exported | set(values)
        try:
            return await self.call(words)
        finally:
            self.variables, self.exported = former, exported

    async def _redirected(self, command: Command, redirects: tuple[syntax.Redirect, ...], guarded: bool) -> int:
        stdin, outputs = self.stdin, self.outputs.copy()
        try:
            for redirect in redirects:
                await self._redirect(redirect)
            lasting = isinstance(command, syntax.Simple) and command.words == ("exec",)
            if lasting:
                stdin, outputs = self.stdin, self.outputs
                return 0
            return await self._command(command, guarded=guarded)
        except OSError as error:
            self._complain(f"cannot open {error.filename}: {error.strerror}")
            return 2 if isinstance(command, syntax.Simple) else 1
        finally:
            self.stdin, self.outputs = stdin, outputs

    async def _redirect(self, redirect: syntax.Redirect) -> None:
        if redirect.kind == "<<":
            text = redirect.target if redirect.literal else await self._expander().text(redirect.target, in_quotes=True)
            self.stdin = Pipe(text.encode(errors="surrogateescape"))
            return
        target = await self._expander().text(redirect.target)
        if redirect.kind == "&":
            self.outputs[redirect.fd] = (lambda _: None) if target == "-" else self.outputs[int(target)]
            return
        path, tree, uid = posixpath.join(self.cwd, target), self.machine.tree, self.uid
        if redirect.kind == "<":
            self.stdin = Pipe(tree.read(path, uid))
        elif path in _STANDARD:
            self.outputs[redirect.fd] = self.outputs[_STANDARD[path]]
        else:
            tree.write(path, b"", uid, append=redirect.kind == ">>", time=int(time.time()))
            self.outputs[redirect.fd] = lambda data: tree.write(path, data, uid, append=True, time=int(time.time()))

    # --- words ---

    async def _fields(self, words: tuple[str, ...]) -> list[str]:
        expander = self._expander()
        return [field for word in words for field in await expander.fields(word)]

    def _expander(self) -> Expander:
        return Expander(
            self.lookup, self.variables.__setitem__, lambda: self.parameters, self._substitute, self._matches
        )

    def lookup(self, name: str) -> str | None:
        special = {
            "?": str(self.status), "#": str(len(self.parameters)), "$": str(self.pid), "0": self.script,
            "!": str(self.last_job or ""), "-": "".join(sorted(self.options)),
        }  # fmt: skip
        if name in special:
            return special[name]
        if name.isdecimal():
            return self.parameters[int(name) - 1] if int(name) <= len(self.parameters) else None
        value = self.cwd if name == "PWD" else self.variables.get(name)
        if value is None and "u" in self.options:
            raise ShellSyntaxError(f"{name}: parameter not set")
        return value

    async def _substitute(self, text: str) -> str:
        collected: list[bytes] = []
        inner = self.child()
        inner.outputs[1] = collected.append
        try:
            self.status = await inner.run_text(text)
        except Leave as end:
            self.status = end.code
        return b"".join(collected).decode(errors="surrogateescape").rstrip("\n")

    def _matches(self, pattern: str) -> list[str]:
        """The paths that a pattern matches, name by name; hidden ones only when it says so."""
        tree = self.machine.tree
        found = ["/"] if pattern.startswith("/") else [""]
        for part in (part for part in pattern.split("/") if part):
            reached = []
            for folder in found:
                place = posixpath.join(self.cwd, folder)
                node = tree.find(place)
                names = tree.entries(place) if node is not None and node.kind == "directory" else []
                if not re.search(r"[*?[]", part):
                    names = [part] if tree.find(posixpath.join(place, part), follow=False) is not None else []
                matching = re.compile(fnmatch.translate(part)).match
                reached += [
                    posixpath.join(folder, name)
                    for name in names
                    if name == part or (matching(name) and (part.startswith(".") or not name.startswith(".")))
                ]
            found = reached
        return sorted(found)
