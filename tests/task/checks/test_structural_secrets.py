"""Settings that name a secret name one that is declared for their use."""

import pytest

from benchflow.task.checks import check_folder

MOUNT = "  runtime_policy: {private_mounts: [{source: 'vol://m', target: /mnt/m, secret_ref: KEY}]}\n"
IMAGE = "  provenance: {images: [{reference: 'reg/x:1', credential_secret_ref: KEY}]}\n"
SUBMISSION = """---
document_version: "0.3"
verifier:
  strategies:
    board:
      type: leaderboard-submission
      inputs: [/app/out.csv]
      command: ./submit
      secret: KEY
---
"""


def found(folder) -> list[tuple[str, str, str | None, int | None]]:
    issues = check_folder(folder).issues
    return [(i.severity, i.path, i.file, i.line) for i in issues if i.code == "undeclared-secret"]


def document(*lines: str) -> str:
    return "---\ntask: {name: acme/a}\nbenchflow:\n  document_version: '0.3'\n" + "".join(lines) + "---\nDo it.\n"


def secret(scope: str) -> str:
    return f"  secrets: [{{name: KEY, scope: {scope}}}]\n"


@pytest.mark.parametrize(
    ("use", "path"),
    [
        (MOUNT, "benchflow.runtime_policy.private_mounts[0].secret_ref"),
        (IMAGE, "benchflow.provenance.images[0].credential_secret_ref"),
    ],
)
def test_an_undeclared_secret_of_a_document_is_named_with_its_line(make_package, use, path):
    assert found(make_package({"task.md": document(use)})) == [("warning", path, "task.md", 5)]
    assert found(make_package({"task.md": document(use, secret("image-pull"))}, name="declared")) == []


def test_an_undeclared_secret_of_a_strategy_is_named_with_its_line(make_package):
    files = {"task.md": document(), "verifier/verifier.md": SUBMISSION, "verifier/submit": "true\n"}
    path = "verifier.strategies.board.secret"
    assert found(make_package(files)) == [("warning", path, "verifier/verifier.md", 9)]
    files["task.md"] = document(secret("verifier"))
    assert found(make_package(files, name="declared")) == []


def test_several_secrets_for_pulls_that_no_image_refers_to_are_reported_before_a_launch(make_package):
    two = "  secrets: [{name: KEY, scope: image-pull}, {name: B, scope: image-pull}, {name: C, scope: image-pull}]\n"
    issues = check_folder(make_package({"task.md": document(IMAGE, two)})).issues
    (issue,) = [issue for issue in issues if issue.code == "secret-ambiguous"]
    assert (issue.severity, issue.path, "B, C" in issue.message) == ("warning", "benchflow.secrets", True)


def test_a_secret_declared_for_another_use_is_reported(make_package):
    folder = make_package({"task.md": document(IMAGE, secret("agent"))})
    (issue,) = [issue for issue in check_folder(folder).issues if issue.code == "undeclared-secret"]
    assert "declared for agent, not image-pull" in issue.message
