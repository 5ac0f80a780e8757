"""The selected strategy of a verifier -> the `tests/test.sh` that Harbor runs, or the reason why Harbor cannot run it.

Scripts, reward kits and hybrids of both can run in Harbor. The generated script needs bash, for hybrids awk, for
reward kits the Python that the kit itself needs.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow.task.interop.export_report import CompatibilityExportLoss
from benchflow.task.package import TaskPackage
from benchflow.task.verifier.declared_strategies import (
    HybridStrategy,
    RewardKitStrategy,
    ScriptStrategy,
    Strategy,
)
from benchflow.task.verifier.verifier_document import VerifierDocument

TEST_SH: Final = "test.sh"
_TEST_SCRIPT: Final = "test-script"
ASIDE: Final = "test-of-package.sh"
"""The name of a `test.sh` of the package that is not what the strategy runs."""
_HEAD: Final = """#!/bin/bash
# Runs the verifier strategy '@NAME@' (@TYPE@), exported for Harbor.
workspace=$PWD
logs=/logs/verifier
mkdir -p "$logs"
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
"""
_FACTORS: Final = r"""
combined=@START@
parts=
factor() { # name, weight: takes the reward that a strategy left
  local value
  if [ -s "$logs/reward.txt" ]; then
    read -r value < "$logs/reward.txt"
  elif [ -s "$logs/reward.json" ]; then
    value=$(sed -n 's/.*"reward"[[:space:]]*:[[:space:]]*\([-+0-9.eE]*\).*/\1/p' "$logs/reward.json" | head -n 1)
  fi
  if ! [[ $value =~ ^[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?$ ]]; then
    echo "The factor $1 has no reward." >&2
    rm -f "$logs/reward.txt" "$logs/reward.json"
    exit 1
  fi
  mkdir -p "$logs/factors/$1"
  mv -f "$logs"/reward* "$logs/factors/$1/"
  combined=$(awk -v old="$combined" -v new="$value" -v weight="$2" 'BEGIN { printf "%.12g", @FOLD@ }')
  value=$(awk -v new="$value" 'BEGIN { printf "%.12g", new }')
  parts="$parts, \"$1\": $value"
}
"""
_COMBINED: Final = """printf '{"reward": %s%s}\\n' "$combined" "$parts" > "$logs/reward.json"
"""
_KIT: Final = r"""
python=$(command -v python3 || command -v python) || exit 127
export BENCHFLOW_VERIFIER_DIR="$PWD" BENCHFLOW_REWARD_KIT_ROOT="$PWD/"@ROOT@
export BENCHFLOW_REWARD_TEXT="$logs/reward.txt" BENCHFLOW_REWARD_JSON="$logs/reward.json"
export BENCHFLOW_REWARD_DETAILS_JSON="$logs/reward-details.json"
@CRITERIA@"$python" @RUNNER@ || exit
"""
_CHECKS: Final = r"""
grade() { rewardkit "$@"; }
command -v rewardkit > /dev/null || grade() { uvx --from harbor-rewardkit rewardkit "$@"; }
grade @ROOT@ --workspace "$workspace" --output "$logs/reward.json" || exit
"""
_FOLD: Final = r"""[ ! -s "$logs/reward.json" ] || "$python" - "$logs/reward.json" @POLICY@ <<'END' || exit
# Harbor reads a flat mapping of numbers: the metrics, and the reward that the declared policy makes of them.
import json
import sys

path, policy = sys.argv[1], json.loads(sys.argv[2])
with open(path) as stream:
    found = json.load(stream)
metrics = found.get("metrics", {name: value for name, value in found.items() if name != "reward"})
metrics = {name: float(value) for name, value in metrics.items()}
weights = policy.get("weights") or {name: 1.0 for name in metrics}
method = policy.get("method")
if metrics and method:
    if set(weights) != set(metrics):
        sys.exit("the metrics are not the declared criteria: " + ", ".join(sorted(metrics)))
    total = sum(value * weights[name] for name, value in metrics.items())
    reward = total if method == "weighted_sum" else total / sum(weights.values())
elif "reward" in found:
    reward = float(found["reward"])
else:
    sys.exit("there is no reward and no policy to combine the metrics")
with open(path, "w") as stream:
    json.dump(dict(metrics, reward=reward), stream)
END
"""
_METHODS: Final = ("mean", "weighted_mean", "weighted_sum")


class _Unsupported(Exception):
    """A strategy that Harbor cannot run; the message says why."""


@dataclass(frozen=True, slots=True)
class HarborTests:
    """What becomes of the tests."""

    script: str | None = None
    """The `test.sh` to write; None if the package has the right one, or none can be written."""
    refusal: str | None = None
    """Why Harbor cannot run the strategy."""


def harbor_tests(package: TaskPackage) -> HarborTests:
    """How Harbor runs the selected strategy. What came from the split layout is exported as it was."""
    document = package.verifier_document
    if came_from_split(package):
        return HarborTests()
    if document is None:
        kind = package.config.verifier.type if package.config is not None else _TEST_SCRIPT
        return HarborTests() if kind == _TEST_SCRIPT else HarborTests(refusal=f"Harbor cannot run the {kind} verifier")
    strategy = document.selected
    if isinstance(strategy, ScriptStrategy) and _runs_test_sh(strategy.command) and _file(package, TEST_SH):
        return HarborTests()
    try:
        return HarborTests(script=_script(package, document))
    except _Unsupported as problem:
        return HarborTests(refusal=str(problem))


def came_from_split(package: TaskPackage) -> bool:
    """Whether the package is, or was imported from, a split package."""
    compat = package.document.namespace.compat if package.document is not None else None
    return package.document is None or (compat is not None and compat.source == "task.toml")


def verifier_losses(package: TaskPackage, tests: HarborTests) -> Iterator[CompatibilityExportLoss]:
    """What is lost of the verifier document."""
    document = package.verifier_document
    if document is None:
        if tests.refusal is not None:
            yield CompatibilityExportLoss("verifier", tests.refusal, "refusal")
        return
    own = f"{package.verifier_dir}/verifier.md" in package.files
    reason = "Harbor runs tests/test.sh and does not read the verifier document"
    yield CompatibilityExportLoss("verifier.verifier_md" if own else "verifier-profile", reason)
    path = f"verifier.strategies.{document.default_strategy}"
    if tests.refusal is not None:
        yield CompatibilityExportLoss(path, tests.refusal, "refusal")
    elif tests.script is None and not isinstance(document.selected, ScriptStrategy):
        yield CompatibilityExportLoss(path, f"Harbor cannot run the {document.selected.type} strategy")
    elif tests.script is not None and "uvx --from" in tests.script:
        reason = "Harbor needs rewardkit in the image, or uv to download it"
        yield CompatibilityExportLoss(path, reason, "warning")


def _script(package: TaskPackage, document: VerifierDocument) -> str:
    strategy = document.selected
    head = _HEAD.replace("@NAME@", document.default_strategy).replace("@TYPE@", strategy.type)
    if not isinstance(strategy, HybridStrategy):
        return head + _commands(package, document, strategy)
    weighted = strategy.combine == "weighted_sum"
    fold = "old + weight * new" if weighted else "old * new"
    body = _FACTORS.replace("@START@", "0" if weighted else "1").replace("@FOLD@", fold)
    for name, factor in strategy.factors.items():
        source = document.strategies.get(factor.strategy)
        if source is None or isinstance(source, HybridStrategy):
            raise _Unsupported(f"Harbor cannot run the factor '{name}' of the hybrid strategy")
        commands = _commands(package, document, source)
        body += f"({commands.rstrip()}\n)\nfactor {shlex.quote(name)} {factor.weight if weighted else 1}\n"
    return head + body + _COMBINED


def _commands(package: TaskPackage, document: VerifierDocument, strategy: Strategy) -> str:
    """The commands that leave the reward of one strategy in the logs."""
    if isinstance(strategy, ScriptStrategy):
        return f"\n{_with_test_sh_aside(package, strategy.command)}\n"
    if not isinstance(strategy, RewardKitStrategy):
        raise _Unsupported(f"Harbor cannot run the {strategy.type} strategy")
    root = shlex.quote(strategy.root)
    runner = f"{strategy.root}/{strategy.entrypoint}"
    if not _file(package, runner):
        return _CHECKS.replace("@ROOT@", root)
    policy = _policy(package, document, strategy)
    criteria = ""
    if strategy.criteria is not None:
        criteria = f'export BENCHFLOW_REWARD_KIT_CRITERIA="$PWD/"{shlex.quote(strategy.criteria)}\n'
    text = _KIT.replace("@ROOT@", root).replace("@RUNNER@", shlex.quote(runner)).replace("@CRITERIA@", criteria)
    return text + _FOLD.replace("@POLICY@", shlex.quote(json.dumps(policy)))


def _policy(package: TaskPackage, document: VerifierDocument, strategy: RewardKitStrategy) -> Mapping[str, Any]:
    """How metrics become a reward: by the criteria file, or by the policy of the document."""
    declared = document.outputs.aggregate_policy
    policy: dict[str, Any] = declared.to_declared_dict() if declared is not None else {}
    if strategy.criteria is not None:
        policy = _criteria(package, strategy.criteria)
    method = policy.get("method") or policy.get("fallback")
    if method is not None and method not in _METHODS:
        raise _Unsupported(f"the metrics are combined by {method}, which the exported script does not support")
    return {"method": method, "weights": policy.get("weights")}


def _criteria(package: TaskPackage, name: str) -> dict[str, Any]:
    data = package.files.read(f"{package.verifier_dir}/{name}") if _file(package, name) else b""
    try:
        match tomllib.loads(data.decode()):
            case {"criteria": [*rows], **rest}:
                scoring = rest.get("scoring", {})
                method = str(scoring.get("aggregation", "weighted_mean")).replace("-", "_")
                weights = {row.get("id") or row["name"]: float(row.get("weight", 1)) for row in rows}
                return {"method": method, "weights": None if method == "mean" else weights}
    except (ValueError, KeyError, AttributeError, TypeError):
        pass
    raise _Unsupported(f"the criteria of {name} cannot be written into the exported script")


def _file(package: TaskPackage, name: str) -> bool:
    return package.verifier_dir is not None and f"{package.verifier_dir}/{name}" in package.files


def _with_test_sh_aside(package: TaskPackage, command: str) -> str:
    """The command, with the new name of the package's own `test.sh`, whose place the generated script takes."""
    if not _file(package, TEST_SH):
        return command
    if any(mark in command for mark in ("'", '"', "$", "`", ";", "|", "&")):
        if TEST_SH in command:
            raise _Unsupported("the command uses test.sh, whose name the exported script needs")
        return command
    words = command.split()
    return " ".join(f"./{ASIDE}" if word in {TEST_SH, f"./{TEST_SH}"} else word for word in words)


def _runs_test_sh(command: str) -> bool:
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if words and words[0] in {"bash", "sh"}:
        words = words[1:]
    return words in ([f"./{TEST_SH}"], [TEST_SH])
