"""Workspaces that are kept and put back: every kind of change comes back as it was, and damage is refused."""

import gzip
import io
import json
import tarfile
from dataclasses import replace

import pytest

from benchflow.environment import Environment
from benchflow.errors import InfrastructureFailure
from benchflow.files.redaction import NO_SECRETS, Redactor
from benchflow.rollout.phases import keep
from benchflow.rollout.phases.keep import keep_workspace
from benchflow.rollout.phases.restore import restore_workspace
from benchflow.task.package import changed_parts, load_package, package_parts

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("sandbox"), pytest.mark.sandbox]
LISTED = (
    "cd / && find app etc/mine opt root/deep -mindepth 1 ! -type l"
    " -exec stat -c '%n %f %u:%g %s %Y' {} + 2>/dev/null | sort;"
    "find app -type l -exec stat -c '%u:%g %N' {} + | sort;"
    "cat app/a app/b/*/* ; ls /usr/share/doc 2>&1 | head -3"
)
CHANGES = """
echo one > /app/a; chmod 4755 /app/a; mkdir -p /app/b/1 /app/b/2 /root/deep/er
for n in 1 2 3 4 5 6; do echo $n > /app/b/1/$n; done
echo x > '/app/b/2/with space'; printf 'y' > "$(printf '/app/b/2/new\\nline')"
ln -s ../a /app/b/link; ln -s /etc/passwd /app/out
touch -d 2001-02-03T04:05:06Z /app/b/1/3; chown 1000:1000 /app/b/2; chmod 700 /root/deep/er; chmod 000 /app/b/1/6
mkdir /etc/mine; mkdir -m 1777 /opt/sticky; rm -rf /usr/share/doc
"""


@pytest.fixture
async def environment(backend, make_package):
    async with await Environment.from_task(make_package(), sandbox=backend) as environment:
        yield environment


@pytest.mark.parametrize(
    ("much", "crowd", "told"), [(True, 256, True), (True, 1, True), (False, 256, True), (False, 256, False)]
)
async def test_every_change_comes_back_as_it_was(
    environment, backend, make_package, tmp_path, much, crowd, told, monkeypatch
):
    monkeypatch.setattr(keep, "_FEW", 0 if much else 32)
    monkeypatch.setattr(keep, "_CROWD", crowd)
    monkeypatch.setattr(keep, "_ARGUMENTS", 64)
    sandbox = environment.sandbox
    if not told:
        monkeypatch.setattr(sandbox, "changes", without_rights(sandbox.changes))
    done = await sandbox.exec(CHANGES, user="root", cwd="/")
    assert done.ok, done.stderr
    kept = await keep_workspace(sandbox, tmp_path / "w.tar.gz", NO_SECRETS)
    assert kept.reason is None, kept.reason
    async with await Environment.from_task(make_package(), sandbox=backend) as other:
        await restore_workspace(other.sandbox, tmp_path / "w.tar.gz")
        before, after = [await box.exec(LISTED, user="root") for box in (sandbox, other.sandbox)]
        assert after.stdout.decode() == before.stdout.decode()
        kinds = [
            [(change.path, change.kind, change.type, change.size) for change in await box.changes()]
            for box in (sandbox, other.sandbox)
        ]
        assert kinds[0] == kinds[1]


def without_rights(changes):
    """A backend that does not tell whose the files are."""

    async def plain():
        return [replace(change, rights=None) for change in await changes()]

    return plain


async def test_many_files_in_a_folder_of_the_environment_are_copied_at_once(environment, tmp_path, monkeypatch):
    asked = []
    sandbox = environment.sandbox
    download = sandbox.download

    async def counting(source, *rest, **options):
        asked.append(source)
        await download(source, *rest, **options)

    monkeypatch.setattr(sandbox, "download", counting)
    await sandbox.exec("i=0; while [ $i -lt 300 ]; do echo $i > /app/f$i; i=$((i+1)); done", user="root")
    kept = await keep_workspace(sandbox, tmp_path / "w.tar.gz", NO_SECRETS)
    assert (kept.entries, asked) == (300, ["/app"])


async def test_nothing_changed_is_a_workspace_too(environment, tmp_path):
    kept = await keep_workspace(environment.sandbox, tmp_path / "w.tar.gz", NO_SECRETS)
    assert (kept.kept, kept.bytes) == (True, 0)
    await restore_workspace(environment.sandbox, tmp_path / "w.tar.gz")


async def test_what_is_too_much_or_no_file_is_not_kept_and_says_why(environment, tmp_path, monkeypatch):
    sandbox = environment.sandbox
    await sandbox.exec("head -c 3000 /dev/zero > /app/zeros; echo a > /app/b", user="root")
    monkeypatch.setattr(keep, "MAX_BYTES", 2000)
    kept = await keep_workspace(sandbox, tmp_path / "w.tar.gz", NO_SECRETS)
    assert "kept up to" in kept.reason
    monkeypatch.undo()
    monkeypatch.setattr(keep, "MAX_ENTRIES", 1)
    assert "paths" in (await keep_workspace(sandbox, tmp_path / "w.tar.gz", NO_SECRETS)).reason
    monkeypatch.undo()
    await sandbox.exec("mkfifo /app/pipe", user="root")
    assert "/app/pipe" in (await keep_workspace(sandbox, tmp_path / "w.tar.gz", NO_SECRETS)).reason
    assert not list(tmp_path.glob("*.gz")) + list(tmp_path.glob(".benchflow*"))


async def test_a_folder_that_cannot_be_written_is_a_reason_and_no_failure(environment, tmp_path):
    (tmp_path / "file").write_text("")
    kept = await keep_workspace(environment.sandbox, tmp_path / "file" / "w.tar.gz", NO_SECRETS)
    assert kept.reason.startswith("The workspace could not be written")


@pytest.mark.parametrize("much", [True, False])
async def test_secrets_are_taken_out_of_names_contents_and_links(environment, tmp_path, much, monkeypatch):
    monkeypatch.setattr(keep, "_FEW", 0 if much else 32)
    await environment.sandbox.exec("echo a-secret > /app/f; touch /app/a-secret; ln -s a-secret /app/l", user="root")
    kept = await keep_workspace(environment.sandbox, tmp_path / "w.tar.gz", Redactor(["a-secret"]))
    assert kept.reason is None
    assert b"a-secret" not in gzip.decompress((tmp_path / "w.tar.gz").read_bytes())


def archive(path, members, manifest=None):
    with tarfile.open(path, "w:gz") as tar:
        text = json.dumps(manifest or {"schema": "benchcube.workspace.v1", "deleted": []}).encode()
        for info, data in [(tarfile.TarInfo("workspace.json"), text), *members]:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@pytest.mark.parametrize(
    "members",
    [
        [member("files/../../evil")],
        [member("files//evil")],
        [member("files/link", tarfile.SYMTYPE, "/tmp"), member("files/link/evil")],
        [member("files/pipe", tarfile.FIFOTYPE)],
        [member("files/hard", tarfile.LNKTYPE, "/etc/passwd")],
        [member("files/twice"), member("files/twice")],
    ],
)
async def test_an_archive_that_means_harm_is_refused(environment, tmp_path, members):
    archive(tmp_path / "w.tar.gz", members)
    with pytest.raises(InfrastructureFailure, match="damaged"):
        await restore_workspace(environment.sandbox, tmp_path / "w.tar.gz")


@pytest.mark.parametrize("manifest", [{"schema": "other"}, {"schema": "benchcube.workspace.v1", "deleted": ["../x"]}])
async def test_a_manifest_that_is_none_is_refused(environment, tmp_path, manifest):
    archive(tmp_path / "w.tar.gz", [], manifest)
    with pytest.raises(InfrastructureFailure, match="damaged"):
        await restore_workspace(environment.sandbox, tmp_path / "w.tar.gz")


async def test_running_processes_that_the_verifier_looks_at_are_not_kept(make_package, run, tmp_path):
    package = make_package("verifier:\n  hardening: {keep_processes: true}\n")
    result = await run(package, commands=["echo done > answer.txt; (setsid sleep 300 >/dev/null 2>&1 &)"])
    assert result.to_dict()["workspace"] == {
        "kept": False,
        "reason": "The verifier needs running processes, which cannot be saved.",
    }
    assert not list((tmp_path / "out").rglob("workspace.tar.gz"))


@pytest.mark.parametrize(
    ("file", "text", "part"),
    [
        ("verifier/test.sh", "exit 0", "verifier"),
        ("verifier/more.txt", "x", "verifier"),
        ("oracle/solve.sh", "exit 0", "oracle"),
        ("environment/seed.txt", "x", "environment"),
        ("task.md", "---\ntask:\n  name: acme/task\n---\n\nOther words.\n", "task"),
        ("task.md", "---\ntask:\n  name: acme/task\nverifier: {timeout_sec: 7}\n---\n\n{prompt}\n", "verifier"),
        ("task.md", "---\ntask:\n  name: acme/task\nenvironment: {cpus: 2}\n---\n\n{prompt}\n", "environment"),
        ("evidence/notes.md", "x", None),
    ],
)
def test_a_change_belongs_to_one_part_of_a_package(make_package, file, text, part):
    folder = make_package()
    before = package_parts(load_package(folder))
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(text.replace("{prompt}", "Write done into answer.txt."))
    after = package_parts(load_package(folder))
    assert changed_parts(before, after) == ([part] if part else [])
