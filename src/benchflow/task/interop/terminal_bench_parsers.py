"""The result parsers of Terminal-Bench 1 -> a `test.sh` that runs the tests, reads their results and writes the reward.

The script needs nothing but bash: an image that could run the tests has it. Test names and statuses are read from the
output (or from the files that a parser prescribes) and kept in `/logs/verifier/test-results.txt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_HEAD: Final = r"""#!/bin/bash
# Runs the tests of an imported Terminal-Bench task and reads their results as its parser does: @PARSER@.
# The reward is 1 if every test passed, 0 if one failed. If there are no results, exit code 1 or 2 counts as failed
# tests; after any other exit code the tests could not run, and no reward is written.
shopt -s extglob
TEST_DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export TEST_DIR
logs=/logs/verifier
output="$logs/test-output.txt"
mkdir -p "$logs"
declare -A results=()
@BEFORE@bash "$TEST_DIR/@SCRIPT@" > "$output" 2>&1
code=$?
cat "$output"
"""

_PYTEST: Final = r"""
# Lines after the short summary of pytest (-rA): a status and a test. The last status of a test counts.
read_pytest() { # FILE, prefix of the names
  local line status name summary=1
  while IFS= read -r line || [ -n "$line" ]; do
    line=${line//$'\e['*([0-9;])m/}
    if [ "$summary" != 0 ]; then
      [[ ${line,,} =~ =[[:space:]]*"short test summary info"[[:space:]]*= ]] && summary=0
      continue
    fi
    read -r status name <<< "${line%$'\r'}"
    [ "$status" = FAILED ] && name=${name% - *}
    name=${name#*::}
    [ -n "$name" ] || continue
    case "${status%:}" in
      PASSED | XFAIL) results["$2$name"]=passed ;;
      SKIPPED) results["$2$name"]=skipped ;;
      FAILED | XPASS | ERROR) results["$2$name"]=failed ;;
    esac
  done < "$1"
}
"""

_BLOCK: Final = r"""
# The text between the first start marker and the last end marker.
read_block() { # start, end, text of a pass
  local line block='' found='' inside=0 complete=0
  while IFS= read -r line || [ -n "$line" ]; do
    if [ "$inside" = 0 ]; then
      [[ $line == *"$1"* ]] || continue
      inside=1
      line=${line#*"$1"}
    fi
    if [[ $line == *"$2"* ]]; then
      found=$block${line%"$2"*}
      complete=1
    fi
    block+=$line$'\n'
  done < "$output"
  [ "$complete" = 1 ] || return
  found=${found##+([[:space:]])}
  found=${found%%+([[:space:]])}
  results[tests]=failed
  [ "$found" = "$3" ] && results[tests]=passed
}
"""

_LANCER: Final = r"""
# Phrases anywhere in the output; success wins.
read_phrases() {
  local line success='' failure='' tool='' completed=''
  while IFS= read -r line || [ -n "$line" ]; do
    line=${line,,}
    [[ $line == *"swe lancer success"* ]] && success=1
    [[ $line == *"swe lancer failure"* ]] && failure=1
    [[ $line == *user_tool* ]] && tool=1
    [[ $line == *completed* ]] && completed=1
  done < "$output"
  if [ -n "$success" ]; then
    results[task]=passed
  elif [ -n "$failure" ]; then
    results[task]=failed
  elif [ -n "$tool" ] && [ -n "$completed" ]; then
    results[task]=passed
  fi
}
read_phrases
"""

_LONG_FOLDER: Final = "/app/test_output"
_LONG_CLI: Final = r"""
# A group of tests has a score file with is_pass, which its own script writes.
read_score() { # group
  local text
  [ -f "$folder/$1_score.json" ] || return
  text=$(< "$folder/$1_score.json")
  results["$1"]=failed
  [[ $text =~ \"is_pass\"[[:space:]]*:[[:space:]]*(1|true)[^0-9.] ]] && results["$1"]=passed
}

# A group of tests that has no results counts as failed beside one that has some.
require() { # group
  local name
  for name in "${!results[@]}"; do
    [[ $name == "$1" || $name == "$1: "* ]] && return
  done
  missing+=("$1")
}

read_group_pytest() { # group
  local from="$output"
  [ -s "$folder/$1_output.txt" ] && from="$folder/$1_output.txt"
  read_pytest "$from" "$1: "
}
missing=()
"""

_TAIL: Final = r"""
passed=0
failed=0
for name in "${!results[@]}"; do
  printf '%s %s\n' "${results[$name]}" "$name"
  [ "${results[$name]}" = passed ] && passed=$((passed + 1))
  [ "${results[$name]}" = failed ] && failed=$((failed + 1))
done > "$logs/test-results.txt"
if [ "${#results[@]}" -gt 0 ]; then
  if [ "$passed" -gt 0 ] && [ "$failed" = 0 ]; then reward=1; else reward=0; fi
elif [ "$code" = 1 ] || [ "$code" = 2 ]; then
  reward=0
else
  echo "The output has no test results that the parser @PARSER@ recognizes (exit code $code)." >&2
  exit $((code == 0 ? 1 : code))
fi
echo "$reward" > "$logs/reward.txt"
"""

_MARKERS: Final[Mapping[str, tuple[str, str]]] = {
    "swebench": ("SWEBench results", "PASSED"),
    "sweperf": ("SWE-Perf results", "PASSED"),
    "mlebench": ("MLEBench results", "ALL TESTS PASSED"),
}
_GROUPS: Final = ("f2p", "p2p")
PARSERS: Final = ("pytest", *_MARKERS, "swelancer", "long_cli")
"""The parsers whose results can be read."""


class UnreadableResultsError(ValueError):
    """A parser, or a setting of one, that is not supported; `key` names the setting in `task.yaml`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def script_for(parser: Any, script: str, keys: dict[str, Any]) -> str:
    """The `test.sh` that runs `script`, a file beside it; takes the settings of the parser out of `keys`."""
    before, reading = "", ""
    if parser == "pytest":
        reading = _PYTEST + 'read_pytest "$output" ""\n'
    elif parser in _MARKERS:
        marker, text = _MARKERS[parser]
        reading = _BLOCK + f'read_block "{marker} starts here" "{marker} ends here" "{text}"\n'
    elif parser == "swelancer":
        reading = _LANCER
    elif parser == "long_cli":
        # Result files that the agent wrote must not count as results of the tests.
        before = f'folder={_LONG_FOLDER}\nrm -f "$folder"/{{f2p,p2p}}_{{output.txt,score.json}}\n'
        reading = _PYTEST + _LONG_CLI + _groups(keys)
    else:
        raise UnreadableResultsError("parser_name", f"is '{parser}'; supported parsers: {', '.join(PARSERS)}")
    text = _HEAD + reading + _TAIL
    for name, value in (("@BEFORE@", before), ("@SCRIPT@", script), ("@PARSER@", parser)):
        text = text.replace(name, value)
    return text


def _groups(keys: dict[str, Any]) -> str:
    """Read the groups of tests that the task declares; every one of them must have results, and pass."""
    lines = []
    for group in _GROUPS:
        key = f"parser_results_{group}"
        kind = keys.pop(key, None)
        if kind is None:
            continue
        if kind not in ("pytest", "text"):
            raise UnreadableResultsError(key, f"is '{kind}'; it must be pytest, text or null")
        lines.append(f"{'read_score' if kind == 'text' else 'read_group_pytest'} {group}")
        lines.append(f"require {group}")
    if not lines:
        raise UnreadableResultsError("parser_name", "is 'long_cli', but neither f2p nor p2p results are declared")
    lines.append('if [ "${#results[@]}" -gt 0 ]; then')
    lines.append('  for name in "${missing[@]}"; do results["$name"]=failed; done')
    lines.append("fi")
    return "\n".join(lines) + "\n"
