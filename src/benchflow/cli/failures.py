"""The one place where errors become a sentence on stderr and an exit code.

0: success. 1: a package is invalid, or something failed. 2: wrong usage, or nothing to work on.
130: interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import click

from benchflow.cli.terminal import note, printable, style
from benchflow.errors import BenchflowError, UnsupportedError, UsageError

GOOD: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130

DEBUG_VARIABLE: Final = "BENCHFLOW_DEBUG"
"""If this variable is set, an unexpected failure prints its traceback."""


def guarded(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, whatever happens inside it."""
    try:
        code = _run(command, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe is gone: there is nobody to report to, and the flush at exit must not fail either.
        _silence_stdout()
        return FAILED
    except OSError as error:
        _say(f"cannot write the output: {error.strerror or error}")
        _silence_stdout()
        return FAILED
    return code


def _run(command: click.Command, arguments: Sequence[str] | None) -> int:
    try:
        outcome = command.main(args=arguments, prog_name="bench", standalone_mode=False)
    except click.UsageError as error:
        return _refuse(error)
    except click.ClickException as error:
        _say(error.format_message())
        return FAILED
    except click.exceptions.Exit as error:
        return error.exit_code
    except SystemExit as error:
        # click exits this way when the reader of a pipe is gone.
        return error.code if isinstance(error.code, int) else FAILED
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return INTERRUPTED
    except BenchflowError as error:
        _say(_sentence(error))
        return exit_code_of(error)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last boundary: users get a sentence, never a traceback
        return _unforeseen(error)
    return outcome if isinstance(outcome, int) else GOOD


def exit_code_of(error: BenchflowError) -> int:
    """2 if refused before anything was done, 1 if something failed."""
    return REFUSED if isinstance(error, (UsageError, UnsupportedError)) else FAILED


def _sentence(error: BenchflowError) -> str:
    where = ":".join(str(part) for part in (error.file, error.line) if part is not None)
    return f"{where}: {error}" if where and where not in str(error) else str(error)


def _refuse(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        note(error.format_message())
        return REFUSED
    _say(error.format_message())
    if error.ctx is not None:
        note(f"Try '{error.ctx.command_path} --help'.")
    return REFUSED


def _unforeseen(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        note("".join(traceback.format_exception(error)))
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        _say(f"{named}{error.strerror or error}")
    else:
        _say(f"internal error: {type(error).__name__}: {error} (set {DEBUG_VARIABLE}=1 for a traceback)")
    return FAILED


def _say(sentence: str) -> None:
    """The message, followed by the output of the program that failed, if there is any."""
    first, *output = sentence.splitlines() or [""]
    lines = [f"{style('bench:', 'red', sys.stderr)} {printable(first)}", *(f"  {printable(line)}" for line in output)]
    note("\n".join(lines))


def _silence_stdout() -> None:
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
