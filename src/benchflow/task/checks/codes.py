"""Every code that reading, checking and converting packages can report, with its meaning and remedy.

The documentation page is generated from this table: `python -m benchflow.task.checks.codes > docs/check-codes.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final


@dataclass(frozen=True, slots=True)
class CheckCode:
    """One kind of problem, with its stable name."""

    code: str
    group: str
    meaning: str
    remedy: str


_TABLE: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Reading the definition (level `schema`)": {
        "not-a-package": (
            "There is neither `task.md` nor `task.toml`.",
            "Name a package, or create one with `bench tasks init`.",
        ),
        "missing-document": ("There is no `task.md`.", "Write it, or generate it with `bench tasks migrate`."),
        "missing-file": ("A file that the definition needs is missing.", "Add it."),
        "missing-frontmatter": (
            "The document does not start with a `---` line.",
            "Put the settings between two `---` lines at the top.",
        ),
        "unclosed-frontmatter": ("There is no second `---` line after the settings.", "Add it before the prompt."),
        "not-utf8": ("The file is not UTF-8 text.", "Save it as UTF-8."),
        "too-large": (
            "A definition is larger than the format allows, a file larger than 1 GiB or the package than 4 GiB.",
            "Move data into separate files, and large files into an image or a download.",
        ),
        "too-many-issues": (
            "A file has so many problems that only the first are listed.",
            "Fix these and check again.",
        ),
        "too-complex": (
            "The YAML is nested too deeply, or its anchors expand to too many nodes.",
            "Simplify it; the limits are 10,000 nodes and 64 levels.",
        ),
        "invalid-yaml": ("The text is not valid YAML, or uses a tag that is not allowed.", "Fix the line."),
        "invalid-toml": ("The text is not valid TOML.", "Fix the line."),
        "invalid-key": ("A key is not a string.", "Quote it."),
        "duplicate-key": ("The same key occurs twice in one mapping.", "Remove one of them."),
        "not-a-mapping": ("The settings are a list or a single value.", "Write them as `key: value`."),
        "invalid-document": ("`task.md` is not valid.", "See the problems listed with it."),
        "unknown-key": (
            "The format does not have this key; it would have no effect.",
            "Fix the spelling, or move it to `metadata`. In `task.toml` this is only a warning.",
        ),
        "missing-key": ("A required key is missing.", "Add it."),
        "invalid-game": (
            "The protocol of a built-in assessor contradicts itself: an unknown name or a wrong type.",
            "Fix the key; [the language of games](arena-protocol.md) says what it takes.",
        ),
        "conflicting-keys": ("Two keys contradict each other, or set the same thing twice.", "Remove one of them."),
        "invalid-type": ("A value has the wrong type.", "Use the type named in the message."),
        "invalid-value": ("A value is not allowed for its key.", "Use an allowed value."),
        "unsafe-path": (
            "A path is absolute, or points outside the folder it belongs to.",
            "Use a relative path without `..`.",
        ),
        "unknown-preset": ("The preset is unknown.", "Use one of those listed in the message."),
        "unknown-role": ("A role is used but not declared.", "Declare it under `agents.roles`, or add its section."),
        "unknown-tool": (
            "A simulated user has a tool that is not known and has no command.",
            "Use a name that the message lists, or give the tool a `command`.",
        ),
        "duplicate-section": ("A section of the body occurs twice.", "Merge the two."),
        "mode-contradiction": (
            "The declared interaction mode contradicts the rest of the document.",
            "Remove or fix `interaction.mode`.",
        ),
        "preamble": ("Text before `## prompt` is not part of any prompt.", "Move it below the heading."),
        "unused-prompt": ("A prompt does not belong to a declared role or scene.", "Fix its name, or remove it."),
        "empty-prompt": ("The agent has no prompt.", "Write the prompt."),
        "marker-left": (
            "A placeholder of the scaffold has not been filled in.",
            "Replace everything from `[REPLACE:` to `]`.",
        ),
        "profile-missing": ("A referenced profile cannot be read.", "Fix the path, which is relative to the package."),
        "profile-outside": ("A profile is outside the folder that contains the package.", "Move it into that folder."),
        "unknown-schema": (
            "This release does not know the `schema_version`.",
            "Check that the settings have the meaning you expect.",
        ),
        "no-effect": ("A setting has no effect here.", "Remove it if nothing else uses it."),
        "time-as-text": (
            "A TOML time of day cannot be written in YAML; it is read, and exported, as text.",
            "Write it as a string, or as a date with a time.",
        ),
    },
    "Files of the package (level `structural`)": {
        "secret-ambiguous": (
            "Several secrets of scope `image-pull` are declared, and no image refers to them; a launch is refused.",
            "Set `credential_secret_ref` of the images in `benchflow.provenance.images`.",
        ),
        "undeclared-secret": (
            "A setting names a secret that `benchflow.secrets` does not declare for that use.",
            "Declare it with its name and scope, or fix the name.",
        ),
        "proof-no-oracle": (
            "The isolation of verification is `auto`, and the package has no oracle to prove it with.",
            "Add `oracle/solve.sh`, or declare `verifier.isolation`; until then it is verified at `open`.",
        ),
        "unreadable": ("A file or folder cannot be read.", "Fix its permissions, or remove it."),
        "unreadable-folder": (
            "A folder above packages cannot be searched; packages in it may be missing from the report.",
            "Fix its permissions, or name the packages themselves.",
        ),
        "path-not-utf-8": (
            "The path of the package is not valid UTF-8, so records cannot contain it.",
            "Rename the folder, or the folder above it that is not valid UTF-8.",
        ),
        "link-escape": (
            "A symbolic link points outside the package; its target differs between machines.",
            "Copy the file into the package, or remove the link.",
        ),
        "linked-part": (
            "A part of the package, such as `verifier/`, is a symbolic link.",
            "Replace the link with the files.",
        ),
        "wrong-part": ("There is a file where a folder is expected, or the reverse.", "Rename it."),
        "special-file": (
            "The package contains a pipe, socket or device.",
            "Remove it; create it in the environment instead.",
        ),
        "bad-file-name": ("A file name is not valid UTF-8.", "Rename the file."),
        "too-deep": ("Folders or values are nested too deeply.", "Flatten them."),
        "too-many-files": ("The package contains too many files.", "Ship the data as an archive or image."),
        "alias-drift": (
            "Two spellings of the same part differ, such as `verifier/` and `tests/`.",
            "Keep one of them, or make them equal.",
        ),
        "incomplete-split": (
            "Only one half of the split definition exists beside `task.md`.",
            "Remove it, or add the other half.",
        ),
        "projection-drift": (
            "`verifier/task.toml` and `verifier/verifier.md` declare different verifiers.",
            "Remove `verifier/task.toml`, or make them equal.",
        ),
        "exposed-asset": (
            "A hidden asset is where the agent can see it, or an agent asset where the agent cannot.",
            "Move the asset, or fix its visibility.",
        ),
        "missing-asset": ("A declared asset is not in the package.", "Add it, or declare it as generated or external."),
        "pin-mismatch": (
            "The SHA-256 of a file differs from its pin.",
            "Restore the file, or review the evidence and pin again.",
        ),
        "check-failed": (
            "The package could not be checked because of a bug in the checker.",
            "Report it, with the package.",
        ),
    },
    "Verifier (level `structural`)": {
        "invalid-verifier-document": ("`verifier/verifier.md` is not valid.", "See the problems listed with it."),
        "unknown-strategy": ("A strategy has an unknown type, or is referenced but not declared.", "Fix the name."),
        "verifier-missing": ("There is no verifier folder, so nothing scores the result.", "Add `verifier/`."),
        "verifier-empty": (
            "The verifier folder is empty. There is no fallback to `tests/`.",
            "Add `verifier/verifier.md` or `verifier/test.sh`.",
        ),
        "verifier-entrypoint-missing": (
            "The verifier folder has neither `verifier.md` nor `test.sh`.",
            "Add one of them.",
        ),
        "verifier-file-missing": (
            "`verifier.md` names a file that does not exist. A warning if the selected strategy does not need it.",
            "Add the file, or fix the name.",
        ),
        "solution-exposed": (
            "A file of the solution is also in `environment/`, where the agent can read it.",
            "Remove the copy, or exclude it from the image.",
        ),
        "tests-exposed": (
            "A test that scores is also in `environment/`, where the agent can read it.",
            "Remove the copy, or score with tests that the agent does not have.",
        ),
        "oracle-in-prompt": (
            "Most lines of the solution are in the prompt.",
            "Ask for the result instead of giving the answer.",
        ),
        "tests-download": (
            "A test script downloads something whenever the task is scored.",
            "Install what the tests need in the image.",
        ),
        "tests-import-work": (
            "A test loads code of the agent into its own process, where that code can change the verdict.",
            "Run the agent's code as another process, and compare what it prints.",
        ),
        "nested-package": (
            "A folder inside the package looks like another package. It is part of this one, not a separate task.",
            "Move it beside the package if it is a task.",
        ),
        "step-incomplete": ("A step has no folder below `steps/`, or no instruction.", "Add it."),
        "report-path": (
            "`test.sh` writes its test report to a path that is not kept.",
            "Write it to `/logs/verifier/ctrf.json`.",
        ),
    },
    "Sandbox (level `runtime-capability`, or with `--sandbox`)": {
        "unsupported-feature": (
            "The sandbox does not support a declared setting, so a run would be refused.",
            "Choose another sandbox, or remove the setting. `bench sandboxes` lists what each supports.",
        )
    },
    "Publication (level `publication-grade`)": {
        "not-native": ("There is no `task.md`.", "Run `bench tasks migrate --remove-legacy`."),
        "legacy-file": ("A part of the split layout still exists.", "Remove it; only its native equivalent is used."),
        "oracle-missing": ("There is no reference solution.", "Add `oracle/solve.sh`."),
        "verifier-document-missing": ("There is no `verifier/verifier.md`.", "Describe the verifier there."),
        "rubric-missing": (
            "The meaning of the score is not documented: no rubric dimensions, or no file in `verifier/rubrics/`.",
            "Declare `verifier.rubric.dimensions` and add `verifier/rubrics/verifier.md`.",
        ),
        "reward-json-undeclared": (
            "`verifier.outputs.reward_json` is not declared.",
            "Declare it and write the reward there.",
        ),
    },
    "Evidence (level `acceptance`)": {
        "evidence-missing": (
            "A claim that acceptance requires is not declared.",
            "Declare it under `benchflow.evidence`.",
        ),
        "evidence-insufficient": (
            "A claim is declared but too weak.",
            "Improve the task or its verifier until the claim holds.",
        ),
        "evidence-file-missing": (
            "A claim refers to a file that is not in the package.",
            "Add the file, or fix the path.",
        ),
        "evidence-file-invalid": ("An evidence file is not valid.", "Write it again."),
        "evidence-disagrees": (
            "An evidence file contradicts the claim that refers to it.",
            "Repeat the measurement, or fix the claim.",
        ),
        "evidence-stale": (
            "Evidence describes another state of the package, or another package.",
            "Run `bench tasks prove` again; for a live report, `bench tasks check --level acceptance-live`.",
        ),
        "evidence-not-declarable": (
            "`bench tasks prove --declare` cannot write into this `task.md` without changing other parts of it.",
            "Write `benchflow:` as a block with one key per line.",
        ),
        "evidence-unpinned": ("A file that a claim depends on has no SHA-256 pin.", "Run `bench tasks pin`."),
        "pins-missing": (
            "Nothing shows that the evidence applies to this `task.md` and verifier.",
            "Run `bench tasks pin`.",
        ),
        "live-proof-not-run": (
            "The package requires live runs, but this level runs nothing.",
            "Run `bench tasks check --level acceptance-live --sandbox NAME`.",
        ),
    },
    "Live evidence (level `acceptance-live`)": {
        "live-case-invalid": (
            "A live case cannot be run: it has no command, no oracle to run, or the name of another case.",
            "Fix the case in `benchflow.evidence.acceptance_live` or in the calibration report.",
        ),
        "live-case-failed": (
            "A live case did not score what it is expected to score.",
            "Inspect the runs in the report; fix the task, its verifier or the expectation.",
        ),
        "live-unsuitable": (
            "The package requires suitability for a leaderboard, and its live evidence is not enough.",
            "Add what the message names.",
        ),
        "report-not-written": (
            "The live report could not be written.",
            "Make the folder writable, or use `--report-output FILE`.",
        ),
    },
    "Conversion": {
        "already-native": ("The package already has a `task.md`.", "There is nothing to do."),
        "not-migratable": ("The package has no equivalent native form.", "Fix what the message names."),
        "not-normalisable": (
            "`task.md` cannot be rewritten without changing what it means.",
            "Report it, with the package.",
        ),
        "shadowed-section": (
            "A section was dropped because a file in `prompts/` overrides it.",
            "Keep the file; the section had no effect.",
        ),
        "export-refused": ("An invalid package is not exported.", "Fix what `bench tasks check` reports."),
        "invalid-compose": ("The compose file of a Terminal-Bench folder cannot be read.", "Fix it."),
        "not-terminal-bench": (
            "A `task.yaml` has no instruction: it belongs to another format.",
            "Convert it with the tools of that format.",
        ),
        "two-test-scripts": (
            "A Terminal-Bench folder has two different `run-tests.sh`; the one of the folder itself runs.",
            "Delete the other one if nothing uses it.",
        ),
        "own-shell": (
            "Terminal-Bench ran the tests in the agent's shell; here they have their own.",
            "Let the tests check files instead of variables.",
        ),
        "hidden-files-in-image": (
            "The Dockerfile of a Terminal-Bench folder copies tests or solution into the image.",
            "Remove them from the image if the task does not need them.",
        ),
        "missing-script": (
            "The tests use a script that the Terminal-Bench harness added.",
            "Add it beside the tests.",
        ),
        "unresolved-variable": (
            "A compose file uses a variable that only the Terminal-Bench harness sets.",
            "Replace it with a value.",
        ),
        "oracle-not-converted": (
            "A `solution.yaml` sends keystrokes, which a script cannot do.",
            "Write `oracle/solve.sh`.",
        ),
        "unusable-name": ("The name of the folder is not a valid task name.", "Set `task.name`."),
        "file-exists": ("A file exists where the conversion would write.", "Move it."),
    },
    "Running a package": {
        "package-changed": (
            "A file of the package is not what was planned: it changed before its rollout began.",
            "Start the rollout again, or resume the job, to run the package as it is now.",
        ),
        "copy-damaged": (
            "Something changed the copy of the package that a rollout was using.",
            "Run it again; find out what writes to the temporary folder.",
        ),
    },
    "Refused commands (exit code 2)": {
        "no-such-path": ("The path does not exist.", "Fix the path."),
        "not-a-folder": (
            "The path is not a folder, or is a file where packages would have to be changed.",
            "Name a package, or a folder above packages.",
        ),
        "unreadable-path": ("The path cannot be read.", "Fix its permissions."),
        "no-packages": (
            "There is no package at or below the path.",
            "Name another folder; hidden and linked folders are searched only when named.",
        ),
        "no-package": ("The folder contains nothing that can be migrated.", "Name a package."),
        "bad-name": ("The name is not a valid task name.", "Use letters, digits, `.`, `_` and `-`."),
        "unknown-level": ("The check level is unknown.", "Use one of those listed in the message."),
        "unknown-sandbox": ("The sandbox is unknown.", "Use one of those listed in the message."),
        "sandbox-missing": ("The level needs a sandbox.", "Add `--sandbox NAME`."),
        "unknown-target": ("The export target is unknown.", "Use one of those listed in the message."),
        "output-exists": ("The output already exists.", "Name another one, or use `--overwrite`."),
        "output-overlaps": ("The output overlaps its source.", "Name a folder elsewhere."),
        "output-unwritable": ("The output cannot be written.", "Create its folder, or fix its permissions."),
        "bundle-invalid": (
            "The file is not a bundle, or is damaged, or was changed after it was written.",
            "Get it again, or write it again with `bench tasks bundle`.",
        ),
        "bundle-clash": (
            "The packages do not fit into one bundle.",
            "Rename what the message names, or bundle the folder above all of them.",
        ),
        "digest-invalid": ("What follows `@` is not a digest.", "Write `FILE@sha256:` and 64 hexadecimal digits."),
        "digest-mismatch": ("The file is not the one that is pinned.", "Get the pinned file, or change the pin."),
        "no-such-part": ("The file has no split or dataset of this name.", "Use one of those listed in the message."),
        "manifest-invalid": ("The benchmark manifest cannot be used.", "Fix what the message names."),
        "registry-invalid": ("The file is not a registry file that can be read.", "Fix what the message names."),
        "git-missing": ("Git is not installed.", "Install it."),
        "git-failed": ("A Git command failed.", "Fix what the message names."),
        "fetch-failed": (
            "A commit that a registry file names cannot be fetched.",
            "Check the address, the commit and the network.",
        ),
        "split-invalid": ("A split is malformed, or matches no package.", "Fix its name or its patterns."),
    },
}

CODES: Final[Mapping[str, CheckCode]] = {
    code: CheckCode(code, group, meaning, remedy)
    for group, rows in _TABLE.items()
    for code, (meaning, remedy) in rows.items()
}
"""Every code with its meaning and remedy, in the order of the documentation."""

_INTRODUCTION: Final = """# Check codes

Problems are records: `{code, severity, path, message, file, line}`. Codes are stable; messages may change.
`path` is the dotted key (`steps[0].verifier.env`) or the pair that differs (`verifier|tests`), `file` is
relative to the package, `line` counts from 1. A package is valid when no problem has the severity `error`.
"""


def render_check_codes() -> str:
    """The documentation page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield _INTRODUCTION.rstrip()
    for group, members in groupby(CODES.values(), key=lambda item: item.group):
        yield f"\n## {group}\n"
        yield "| code | meaning | what to do |"
        yield "|---|---|---|"
        for item in members:
            meaning, remedy = item.meaning.replace("|", "\\|"), item.remedy.replace("|", "\\|")
            yield f"| `{item.code}` | {meaning} | {remedy} |"


if __name__ == "__main__":
    print(render_check_codes(), end="")
