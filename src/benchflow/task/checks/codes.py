"""Every code that reading, checking and converting packages can report, with its meaning and its remedy.

The documentation page is this table: `python -m benchflow.task.checks.codes > docs/check-codes.md` writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final


@dataclass(frozen=True, slots=True)
class CheckCode:
    """One kind of problem, by its stable name."""

    code: str
    group: str
    meaning: str
    remedy: str


_TABLE: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Reading the definition (level `schema`)": {
        "not-a-package": (
            "There is neither `task.md` nor `task.toml`.",
            "Name a package, or start one with `bench tasks init`.",
        ),
        "missing-document": ("There is no `task.md`.", "Write it, or let `bench tasks migrate` write it."),
        "missing-file": ("A file that the definition needs is missing.", "Add it."),
        "missing-frontmatter": (
            "The document does not begin with a line `---`.",
            "Put the settings between two lines `---` at the top.",
        ),
        "unclosed-frontmatter": ("No second line `---` ends the settings.", "Add it before the prompt."),
        "not-utf8": ("The file is not UTF-8 text.", "Save it as UTF-8."),
        "too-large": (
            "A definition is larger than the format allows, a file larger than 1 GiB or the package than 4 GiB.",
            "Move data into files of the package, and large files into an image or a download.",
        ),
        "too-many-issues": (
            "A file has so many problems that only the first are listed.",
            "Correct these and check again.",
        ),
        "too-complex": (
            "The YAML is nested too deeply, or its anchors expand to too many nodes.",
            "Write it out more plainly; more than 10,000 nodes or 64 levels are refused.",
        ),
        "invalid-yaml": (
            "The text is not valid YAML, or uses a tag that is not accepted.",
            "Correct the line.",
        ),
        "invalid-toml": ("The text is not valid TOML.", "Correct the line."),
        "invalid-key": ("A key is not a string.", "Put it in quotes."),
        "duplicate-key": ("The same key stands twice in one mapping.", "Keep one of them."),
        "not-a-mapping": ("The settings are a list or a single value.", "Write them as `key: value`."),
        "invalid-document": ("`task.md` is not accepted.", "See the problems that are listed with it."),
        "unknown-key": (
            "A key that the format does not know; its setting would have no effect.",
            "Correct the spelling, or move it to `metadata`. In a `task.toml` it is only a warning.",
        ),
        "missing-key": ("A required key is missing.", "Add it."),
        "conflicting-keys": (
            "Two keys exclude each other, or say the same thing twice.",
            "Keep one of them.",
        ),
        "invalid-type": ("A value has the wrong type.", "Write the type that the message names."),
        "invalid-value": ("A value is outside what its key allows.", "Use an allowed value."),
        "unsafe-path": (
            "A path is absolute, or leaves the folder it belongs to.",
            "Use a relative path without `..`.",
        ),
        "unknown-preset": ("There is no preset of this name.", "Use one that the message lists."),
        "unknown-role": (
            "A role is used that is not declared.",
            "Declare it under `agents.roles`, or write its section.",
        ),
        "duplicate-section": ("A section of the body appears twice.", "Join the two."),
        "mode-contradiction": (
            "The declared interaction mode contradicts what is declared.",
            "Remove `interaction.mode`, or correct it.",
        ),
        "preamble": ("Text before `## prompt` belongs to no prompt.", "Move it below the heading."),
        "unused-prompt": (
            "A prompt belongs to no declared role or scene.",
            "Correct its name, or remove it.",
        ),
        "empty-prompt": ("The agent is asked for nothing.", "Write the prompt."),
        "marker-left": (
            "A marker of the scaffold has not been filled in.",
            "Replace everything from `[REPLACE:` to `]`.",
        ),
        "profile-missing": (
            "A profile is referenced that cannot be read.",
            "Correct the path, which is relative to the package.",
        ),
        "profile-outside": (
            "A profile lies outside the folder that holds the package.",
            "Move it into that folder.",
        ),
        "unknown-schema": (
            "`schema_version` is not one that this release knows.",
            "Check that the settings mean what you expect.",
        ),
        "no-effect": ("A setting has no effect here.", "Remove it if nothing else reads it."),
        "time-as-text": (
            "A TOML time of day has no form in YAML and is read as text; an export writes the text.",
            "Write it as a string, or as a date with a time.",
        ),
        "shared-live-box": (
            "An imported package is verified in the box the agent leaves, which could act on the verifier.",
            "Declare `verifier.environment_mode: separate`, or set `verifier.hardening` yourself.",
        ),
    },
    "Files of the package (level `structural`)": {
        "undeclared-secret": (
            "A setting names a secret that `benchflow.secrets` does not declare for that use.",
            "Declare it with its name and scope, or correct the name.",
        ),
        "unreadable": ("A file or folder cannot be read.", "Correct its permissions, or remove it."),
        "unreadable-folder": (
            "A folder above packages cannot be searched; packages in it may be missing from the report.",
            "Correct its permissions, or name the packages themselves.",
        ),
        "link-escape": (
            "A symbolic link points out of the package; it would mean something else on every machine.",
            "Copy the file into the package, or remove the link.",
        ),
        "linked-part": (
            "A part of the package, such as `verifier/`, is a symbolic link.",
            "Put the files themselves there.",
        ),
        "wrong-part": ("A file stands where a folder belongs, or the reverse.", "Rename it."),
        "special-file": (
            "A pipe, socket or device lies in the package.",
            "Remove it; create it in the environment instead.",
        ),
        "bad-file-name": ("A file's name is not valid UTF-8.", "Rename the file."),
        "too-deep": ("Folders or values are nested deeper than a package may be.", "Flatten them."),
        "too-many-files": (
            "The package holds more files than a package may.",
            "Ship the data as an archive or image.",
        ),
        "alias-drift": (
            "Two spellings of the same part differ, such as `verifier/` and `tests/`.",
            "Keep one of them, or make them equal.",
        ),
        "incomplete-split": (
            "Only one half of the split definition stands beside `task.md`.",
            "Remove it, or add the other half.",
        ),
        "projection-drift": (
            "`verifier/task.toml` and `verifier/verifier.md` declare different verifiers.",
            "Remove `verifier/task.toml`, or make them equal.",
        ),
        "exposed-asset": (
            "A hidden asset lies where the agent sees it, or an agent's asset where it does not.",
            "Move the asset, or correct its visibility.",
        ),
        "missing-asset": (
            "A declared asset is not in the package.",
            "Add it, or declare it as generated or external.",
        ),
        "pin-mismatch": (
            "A file has another SHA-256 than the one it was pinned with.",
            "Restore the file; or look at the evidence again and pin anew.",
        ),
        "check-failed": (
            "The package could not be checked because of a defect in the checker.",
            "Report it, with the package.",
        ),
    },
    "Verifier (level `structural`)": {
        "invalid-verifier-document": (
            "`verifier/verifier.md` is not accepted.",
            "See the problems that are listed with it.",
        ),
        "unknown-strategy": (
            "A strategy has an unknown type, or is referred to and not declared.",
            "Correct the name.",
        ),
        "verifier-missing": ("There is no verifier folder: nothing scores the work.", "Add `verifier/`."),
        "verifier-empty": (
            "The verifier folder holds no file. There is no fall-back to `tests/`.",
            "Add `verifier/verifier.md` or `verifier/test.sh`.",
        ),
        "verifier-entrypoint-missing": (
            "The verifier folder has neither `verifier.md` nor `test.sh`.",
            "Add one of them.",
        ),
        "verifier-file-missing": (
            "`verifier.md` names a script, rubric, runner or criteria file that is not there.",
            "Add the file, or correct the name.",
        ),
        "step-incomplete": ("A step has no folder below `steps/`, or no instruction.", "Add it."),
        "report-path": (
            "`test.sh` writes its test report where it is not kept.",
            "Write it to `/logs/verifier/ctrf.json`.",
        ),
    },
    "Sandbox (level `runtime-capability`, or with `--sandbox`)": {
        "unsupported-feature": (
            "The sandbox cannot honour a declared setting, so a run would be refused.",
            "Choose another sandbox, or do without the setting. `bench sandboxes` says what each can do.",
        ),
    },
    "Publication (level `publication-grade`)": {
        "not-native": ("There is no `task.md`.", "Run `bench tasks migrate --remove-legacy`."),
        "legacy-file": (
            "A part of the split layout is still there.",
            "Remove it; its native twin is the one that counts.",
        ),
        "oracle-missing": ("There is no reference solution.", "Add `oracle/solve.sh`."),
        "verifier-document-missing": ("There is no `verifier/verifier.md`.", "Describe the verifier there."),
        "rubric-missing": (
            "The score has no stated meaning: no rubric dimensions, or no file in `verifier/rubrics/`.",
            "Declare `verifier.rubric.dimensions` and add `verifier/rubrics/verifier.md`.",
        ),
        "reward-json-undeclared": (
            "`verifier.outputs.reward_json` is not declared.",
            "Declare it and write the reward there.",
        ),
    },
    "Evidence (level `acceptance`)": {
        "evidence-missing": (
            "A claim that acceptance asks for is not declared.",
            "Declare it under `benchflow.evidence`.",
        ),
        "evidence-insufficient": (
            "A claim is declared and too weak.",
            "Improve the task or its verifier until the claim holds.",
        ),
        "evidence-file-missing": (
            "A claim points to a file that is not in the package.",
            "Add the file, or correct the path.",
        ),
        "evidence-file-invalid": ("An evidence file is not the JSON that it should be.", "Write it anew."),
        "evidence-disagrees": (
            "An evidence file contradicts the claim that points to it.",
            "Repeat the measurement; correct the claim.",
        ),
        "evidence-unpinned": ("A file that a claim rests on has no SHA-256 pin.", "Run `bench tasks pin`."),
        "pins-missing": (
            "Nothing shows that the evidence is about this `task.md` and this verifier.",
            "Run `bench tasks pin`.",
        ),
    },
    "Conversion": {
        "already-native": ("The package has a `task.md` already.", "There is nothing to do."),
        "not-migratable": (
            "The package has no native form that means the same.",
            "Correct what the message names.",
        ),
        "not-normalisable": (
            "`task.md` cannot be rewritten without changing what it means.",
            "Report it, with the package.",
        ),
        "shadowed-section": (
            "A section was left out because a file in `prompts/` had taken its place.",
            "Keep the file; the section had no effect.",
        ),
        "export-refused": (
            "An invalid package is not exported.",
            "Correct what `bench tasks check` reports.",
        ),
        "invalid-compose": ("The compose file of a Terminal-Bench folder cannot be read.", "Correct it."),
        "file-exists": ("A file stands where the conversion would write.", "Move it away."),
    },
    "Refused commands (exit code 2)": {
        "no-such-path": ("The path does not exist.", "Correct it."),
        "not-a-folder": ("The path is not a folder.", "Name a package, or a folder above packages."),
        "unreadable-path": ("The path cannot be read.", "Correct its permissions."),
        "no-packages": (
            "There is no package at or below the path.",
            "Name another folder; hidden and linked ones only count when named.",
        ),
        "no-package": ("The folder holds no definition that could be migrated.", "Name a package."),
        "bad-name": ("The name cannot be that of a task.", "Use letters, digits, `.`, `_` and `-`."),
        "unknown-level": ("There is no check level of this name.", "Use one that the message lists."),
        "unknown-sandbox": ("There is no sandbox of this name.", "Use one that the message lists."),
        "sandbox-missing": ("The level needs to know the sandbox.", "Add `--sandbox NAME`."),
        "unknown-target": ("There is no export target of this name.", "Use one that the message lists."),
        "output-exists": ("The output exists already.", "Name another one, or use `--overwrite`."),
        "output-overlaps": (
            "The output would lie in, over or around its source.",
            "Name a folder elsewhere.",
        ),
    },
}

CODES: Final[Mapping[str, CheckCode]] = {
    code: CheckCode(code, group, meaning, remedy)
    for group, rows in _TABLE.items()
    for code, (meaning, remedy) in rows.items()
}
"""Every code with its meaning and remedy, in the order of the documentation."""

_INTRODUCTION: Final = """# Check codes

Problems are records: `{code, severity, path, message, file, line}`. Codes are stable; messages may improve.
`path` is the dotted key (`steps[0].verifier.env`) or the pair that drifted (`verifier|tests`), `file` is
relative to the package, `line` counts from 1. A package is valid when no problem has the severity `error`.
"""


def render_check_codes() -> str:
    """The documentation page of all codes."""
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
