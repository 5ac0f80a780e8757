"""A Dockerfile becomes layers and settings; equal inputs are never built twice, unequal ones never mixed up."""

import os
import stat
from pathlib import Path

import anyio
import pytest

from benchflow.errors import BenchflowError, EnvironmentFailure, UnsupportedError, UsageError
from benchflow.sandbox.images import BuildOptions, DockerfileBuilder
from benchflow.sandbox.images.image_config import ImageConfig
from benchflow.sandbox.images.image_registry import ImageRecord
from benchflow.sandbox.images.layer_tree import LayerTree
from benchflow.sandbox.inside.removal import remove_tree
from benchflow.sandbox.protocol import ExecResult, Healthcheck, NetworkPolicy

pytestmark = pytest.mark.anyio
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


def tree(image):
    return LayerTree(image.layers)


def mode(image, path):
    return stat.S_IMODE(tree(image).find(path).status.st_mode)


def owner(image, path):
    status = tree(image).lookup(path).status
    return status.st_uid, status.st_gid


def write(context, files):
    for name, text in files.items():
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# Settings


async def test_settings_are_recorded(build):
    image = await build(
        "FROM scratch\nENV A=1 B=$PATH\nENV C=$A$A\nWORKDIR /srv\nWORKDIR app\nUSER me\nENTRYPOINT run it\n"
        'CMD ["a", "b"]\nEXPOSE 80 53/udp\nLABEL x=y\nVOLUME /data\nSTOPSIGNAL SIGINT\nMAINTAINER someone\n'
        "HEALTHCHECK --interval=5s --timeout=1m30s --start-period=500ms --retries=7 CMD check me\n"
    )
    assert image.env["C"] == "11"
    assert image.env["B"] == image.env["PATH"]
    assert image.workdir == "/srv/app"
    assert image.user == "me"
    assert image.entrypoint == ("/bin/sh", "-c", "run it")
    assert image.command == ("a", "b")
    assert image.healthcheck == Healthcheck("check me", 5.0, 90.0, 0.5, 5.0, 7)
    assert (image.base, image.fidelity) == ("scratch", "exact")


async def test_entrypoint_clears_the_command_of_the_base(build, registry, store):
    await store.layer("base", _nothing)
    config = ImageConfig(command=("inherited",), env={"PATH": "/bin"})
    registry.save(ImageRecord("base:latest", ("base",), config, "test", "now", 0))
    assert (await build("FROM base\nENTRYPOINT x")).command == ()
    assert (await build("FROM base\nUSER x")).command == ("inherited",)
    assert (await build("FROM base\nCMD y\nENTRYPOINT x")).command == ("/bin/sh", "-c", "y")


async def _nothing(folder):
    pass


async def test_the_shell_is_used_for_commands_after_it(build, player):
    image = await build('FROM scratch\nSHELL ["/bin/bash", "-ec"]\nRUN a\nRUN ["b"]\nCMD c')
    assert [step.command for step in player.steps] == [("/bin/bash", "-ec", "a"), ("b",)]
    assert image.command == ("/bin/bash", "-ec", "c")


async def test_a_command_sees_environment_arguments_user_and_folder(build, player):
    await build("ARG G=global\nFROM scratch\nARG G\nARG H=h$G\nARG A=arg\nENV A=env\nUSER 1:2\nWORKDIR /w\nRUN x")
    (step,) = player.steps
    assert step.env | {"PATH": ""} == {"G": "global", "H": "hglobal", "A": "env", "PATH": ""}
    assert (step.user, step.workdir, step.network) == ("1:2", "/w", NetworkPolicy("public"))


async def test_arguments_of_the_caller_win_over_defaults(build, player):
    await build("ARG A=1\nFROM scratch\nARG A\nARG B=2\nRUN x", build_args={"A": "x", "B": "y"})
    assert (player.steps[0].env["A"], player.steps[0].env["B"]) == ("x", "y")


async def test_an_argument_that_nobody_declares_is_wrong_usage(build):
    with pytest.raises(UsageError, match="ZZ"):
        await build("FROM scratch\nARG A", build_args={"ZZ": "1"})


async def test_arguments_before_from_are_out_of_scope_until_declared_again(build, player):
    await build("ARG A=1\nFROM scratch\nRUN x")
    assert "A" not in player.steps[0].env


async def test_platform_arguments_are_known(build, player):
    await build("FROM --platform=$BUILDPLATFORM scratch\nARG TARGETOS\nRUN x")
    assert player.steps[0].env["TARGETOS"] == "linux"


async def test_run_without_network_is_honoured(build, player):
    await build("FROM scratch\nRUN --network=none x")
    assert player.steps[0].network.mode == "none"


@pytest.mark.parametrize(
    ("text", "command", "script"),
    [
        ("RUN <<EOF\na\nb\nEOF", ("/bin/sh", "-c", "a\nb\n"), None),
        ("RUN <<-EOF\n\ta\n\tEOF", ("/bin/sh", "-c", "a\n"), None),
        ("RUN cat <<EOF > /x\na\nEOF", ("/bin/sh", "-c", "cat <<EOF > /x\na\nEOF"), None),
        ("RUN <<EOF\n#!/usr/bin/env python3\nprint()\nEOF", ("EOF",), b"#!/usr/bin/env python3\nprint()\n"),
    ],
)
async def test_heredocs_of_run_become_scripts(build, player, text, command, script):
    await build(f"FROM scratch\n{text}\n")
    assert (player.steps[0].command, player.steps[0].script) == (command, script)


# Copying


async def test_files_folders_and_patterns_land_where_docker_puts_them(build, context):
    write(context, {"a.txt": "a", "b.txt": "b", "d/x": "x", "d/e/y": "y"})
    image = await build(
        "FROM scratch\nWORKDIR /w\nCOPY a.txt .\nCOPY a.txt renamed\nCOPY a.txt into/\nCOPY *.txt all/\n"
        'COPY d tree\nCOPY d/ /abs/\nCOPY ["a.txt", "b.txt", "/two/"]\nCOPY d/e/y existing-file\nCOPY . /everything/\n'
    )
    files = {f"/{name}" for name, entry in tree(image).walk("/") if entry.is_file}
    everything = {f"/everything/{name}" for name in ("a.txt", "b.txt", "d/x", "d/e/y", "Dockerfile")}
    assert files == everything | {
        "/w/a.txt", "/w/renamed", "/w/into/a.txt", "/w/all/a.txt", "/w/all/b.txt", "/w/tree/x", "/w/tree/e/y",
        "/abs/x", "/abs/e/y", "/two/a.txt", "/two/b.txt", "/w/existing-file",
    }  # fmt: skip


async def test_a_file_copied_to_an_existing_folder_lands_in_it(build, context):
    write(context, {"a": "a"})
    image = await build("FROM scratch\nWORKDIR /w\nCOPY a /w")
    assert tree(image).read_text("/w/a") == "a"


async def test_links_are_kept_and_permissions_too(build, context):
    write(context, {"d/script": "x"})
    (context / "d/script").chmod(0o750)
    (context / "d/link").symlink_to("/etc/passwd")
    image = await build("FROM scratch\nCOPY d /d")
    assert tree(image).lookup("/d/link").source.readlink() == Path("/etc/passwd")
    assert mode(image, "/d/script") == 0o750


async def test_a_source_that_is_a_link_is_followed_inside_the_context_only(build, context, tmp_path):
    (tmp_path / "secret").write_text("secret")
    write(context, {"real": "real"})
    (context / "good").symlink_to("real")
    (context / "bad").symlink_to("../secret")
    image = await build("FROM scratch\nCOPY good /x")
    assert tree(image).read_text("/x") == "real"
    for source in ("bad", "../secret", "/../secret"):
        with pytest.raises(EnvironmentFailure, match="build context"):
            await build(f"FROM scratch\nCOPY {source} /y")


async def test_owner_and_mode_flags_are_honoured(build, context):
    write(context, {"passwd": "me:x:1234:55::/:\n", "group": "them:x:77:\n", "d/f": "x"})
    image = await build(
        "FROM scratch\nARG MODE=700\nCOPY passwd group /etc/\nCOPY --chown=me:them --chmod=$MODE d /a\n"
        "COPY --chown=me d /b\nCOPY --chown=9 d /c\nCOPY d /r"
    )
    assert mode(image, "/a/f") == 0o700
    if os.geteuid() == 0:
        assert [owner(image, f"/{x}/f") for x in "abcr"] == [(1234, 77), (1234, 55), (9, 9), (0, 0)]


async def test_parents_keep_the_owner_and_permissions_they_have_below(build, context):
    write(context, {"f": "x", "d/.keep": ""})
    (context / "d").chmod(0o711)
    image = await build("FROM scratch\nCOPY --chmod=711 d /top/d\nCOPY f /top/d/f\nRUN x\nCOPY f /ran/f")
    assert mode(image, "/top/d") == 0o755
    assert tree(image).read_text("/top/d/f") == "x"
    assert tree(image).names("/ran")[-1] == "f"


async def test_copying_through_a_link_of_the_image_stays_in_the_image(build, context, tmp_path):
    write(context, {"root/usr/lib/x": "1", "f": "new"})
    (context / "root/lib").symlink_to("usr/lib")
    (context / "root/out").symlink_to(tmp_path)
    image = await build("FROM scratch\nCOPY root /\nCOPY f /lib/f\nCOPY f /out/f")
    assert tree(image).read_text("/usr/lib/f") == "new"
    assert not (tmp_path / "f").exists()


async def test_heredoc_files_are_written_with_variables(build):
    image = await build('FROM scratch\nENV X=1\nCOPY <<a <<"b" /d/\n$X "q"\na\n$X\nb\nCOPY <<c /named\ntext\nc\n')
    assert tree(image).read_text("/d/a") == '1 "q"\n'
    assert tree(image).read_text("/d/b") == "$X\n"
    assert tree(image).read_text("/named") == "text\n"


async def test_ignored_and_excluded_files_are_not_copied(build, context):
    write(
        context, {"a": "a", "b.log": "b", "d/c.log": "c", "d/keep.log": "k", ".dockerignore": "**/*.log\n!d/keep.log\n"}
    )
    image = await build("FROM scratch\nCOPY . /all/\nCOPY --exclude=a . /some/")
    assert tree(image).names("/all") == [".dockerignore", "Dockerfile", "a", "d"]
    assert tree(image).names("/all/d") == ["keep.log"]
    assert "a" not in tree(image).names("/some")
    with pytest.raises(EnvironmentFailure, match=r"b\.log"):
        await build("FROM scratch\nCOPY b.log /x")


async def test_add_unpacks_local_archives_and_copy_does_not(build, context, tar):
    (context / "a.tar.gz").write_bytes(tar(("in/side", "x"), compress="gz").getvalue())
    image = await build("FROM scratch\nADD a.tar.gz /add\nCOPY a.tar.gz /copy/\nADD Dockerfile /plain")
    assert tree(image).read_text("/add/in/side") == "x"
    assert tree(image).names("/copy") == ["a.tar.gz"]
    assert tree(image).find("/plain").is_file


async def test_a_hostile_archive_is_refused_by_add(build, context, tar):
    (context / "a.tar").write_bytes(tar(("../evil", "x")).getvalue())
    with pytest.raises(EnvironmentFailure, match="line 2") as caught:
        await build("FROM scratch\nADD a.tar /x")
    assert caught.value.code == "archive-unsafe"


# Stages


async def test_stages_are_built_when_needed_and_copied_from(build, context, player):
    write(context, {"f": "f"})
    image = await build(
        "FROM scratch AS One\nCOPY f /from-one\nFROM scratch AS unused\nRUN never\nFROM one AS two\nCOPY f /from-two\n"
        "FROM scratch\nCOPY --from=two /from-* /got/\nCOPY --from=0 /from-one /by-number\n"
    )
    assert tree(image).names("/got") == ["from-one", "from-two"]
    assert tree(image).read_text("/by-number") == "f"
    assert player.steps == []


async def test_a_target_ends_the_build_there(build):
    image = await build("FROM scratch AS a\nENV X=a\nFROM a\nENV X=b", target="a")
    assert image.env["X"] == "a"


@root_only
async def test_copies_from_a_stage_keep_their_owners(build, context):
    write(context, {"f": "f"})
    image = await build("FROM scratch AS a\nCOPY --chown=7:8 f /f\nFROM scratch\nCOPY --from=a /f /g")
    assert owner(image, "/g") == (7, 8)


async def test_copy_from_another_image_reads_that_image(build, context):
    write(context, {"f": "f"})
    with pytest.raises(EnvironmentFailure, match="busybox:1") as caught:
        await build("FROM scratch\nCOPY --from=busybox:1 /bin/sh /sh")
    assert (caught.value.code, caught.value.line) == ("image-missing", 2)


# Cache keys

BASE = "FROM scratch\nENV E=1\nCOPY f /f\nRUN a\nUSER u\nRUN b\n"


async def runs(build, player, text, **options):
    player.steps.clear()
    await build(text, **options)
    return ["".join(step.command[2:]) for step in player.steps]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda text: text, []),
        (lambda text: "# a comment\n\n" + text.replace("RUN a", "RUN   a  "), []),
        (lambda text: text + "CMD x\nLABEL l=1\nEXPOSE 80\nHEALTHCHECK CMD y\nENTRYPOINT z\n", []),
        (lambda text: text.replace("COPY", "LABEL x=y\nCOPY"), []),
        (lambda text: text.replace("E=1", "E=2"), ["a", "b"]),
        (lambda text: text.replace("RUN a", "RUN c"), ["c", "b"]),
        (lambda text: text.replace("RUN a", "ARG Z=1\nRUN a"), ["a", "b"]),
        (lambda text: text.replace("RUN a", "WORKDIR /new\nRUN a"), ["a", "b"]),
        (lambda text: text.replace("RUN a", 'SHELL ["/bin/bash", "-c"]\nRUN a'), ["a", "b"]),
        (lambda text: text.replace("USER u", "USER v"), ["b"]),
        (lambda text: text.replace("RUN b", "RUN --network=none b"), ["b"]),
        (lambda text: text.replace("/f\n", "/g\n"), ["a", "b"]),
        (lambda text: text.replace("COPY", "COPY --chmod=600"), ["a", "b"]),
    ],
)
async def test_only_what_goes_into_a_layer_makes_it_anew(build, player, context, change, again):
    write(context, {"f": "f"})
    assert await runs(build, player, BASE) == ["a", "b"]
    assert await runs(build, player, change(BASE)) == again


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda c: os.utime(c / "f", (1, 1)), []),
        (lambda c: (c / "other").write_text("not copied"), []),
        (lambda c: (c / "f").write_text("f"), []),
        (lambda c: (c / "f").write_text("g"), ["a", "b"]),
        (lambda c: (c / "f").chmod(0o755), ["a", "b"]),
        (lambda c: ((c / "f").unlink(), (c / "f").mkdir()), ["a", "b"]),
    ],
)
async def test_a_copied_file_counts_by_content_and_permissions(build, player, context, change, again):
    write(context, {"f": "f"})
    assert await runs(build, player, BASE) == ["a", "b"]
    change(context)
    assert await runs(build, player, BASE) == again


async def test_an_ignored_file_does_not_count(build, player, context):
    write(context, {"f": "1", "x.log": "1", ".dockerignore": "*.log"})
    text = "FROM scratch\nCOPY . /all\nRUN a"
    assert await runs(build, player, text) == ["a"]
    write(context, {"x.log": "2"})
    assert await runs(build, player, text) == []
    write(context, {"f": "2"})
    assert await runs(build, player, text) == ["a"]


async def test_a_file_that_changes_its_name_counts(build, player, context):
    write(context, {"d/a": "1"})
    text = "FROM scratch\nCOPY d /d\nRUN a"
    assert await runs(build, player, text) == ["a"]
    (context / "d/a").rename(context / "d/b")
    assert await runs(build, player, text) == ["a"]


async def test_the_base_counts(build, player, registry, store):
    for key in ("one", "two"):
        await store.layer(key, _nothing)
    for key in ("one", "two"):
        registry.save(ImageRecord("base:latest", (key,), ImageConfig(), "test", "now", 0))
        assert await runs(build, player, "FROM base\nRUN a") == ["a"]
    assert await runs(build, player, "FROM docker.io/library/base\nRUN a") == []


async def test_many_builds_at_once_build_every_layer_once(registry, player, context):
    (context / "Dockerfile").write_text("FROM scratch\nRUN a\nRUN b\nRUN c\n")
    images = []

    async def one():
        images.append(await DockerfileBuilder(registry, player).build(context))

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(one)
    assert len(player.steps) == 3
    assert len({image.digest for image in images}) == 1


async def test_a_command_that_changes_nothing_adds_no_layer(registry, context):
    async def quiet(image, step, layer, on_output):
        return ExecResult(0, b"", b"", 0.0)

    (context / "Dockerfile").write_text("FROM scratch\nRUN a\nRUN b\n")
    image = await DockerfileBuilder(registry, quiet).build(context)
    assert len(image.layers) == 1


# Failures


async def test_a_failed_command_says_instruction_line_and_last_lines(build, player, store):
    player.exit_code = 100
    with pytest.raises(EnvironmentFailure) as caught:
        await build("FROM scratch\n\n\nRUN false \\\n  || exit 100\n")
    error = caught.value
    assert (error.code, error.file, error.line, error.category) == ("build-failed", "Dockerfile", 4, "environment")
    assert "RUN false || exit 100" in str(error)
    assert "with code 100" in str(error)
    assert "a line of output" in str(error)
    assert list((store.root / "tmp").iterdir()) == []
    player.exit_code = 0
    await build("FROM scratch\n\n\nRUN false \\\n  || exit 100\n")


async def test_a_build_over_its_time_ends_and_names_where(registry, context, store):
    async def slow(image, step, layer, on_output):
        await anyio.sleep_forever()

    (context / "Dockerfile").write_text("FROM scratch\nENV A=1\nRUN sleep\n")
    with pytest.raises(EnvironmentFailure, match=r"line 3: RUN sleep") as caught:
        await DockerfileBuilder(registry, slow).build(context, BuildOptions(timeout_sec=1))
    assert caught.value.code == "build-timeout"
    assert list((store.root / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "kind", "code", "line"),
    [
        ("FROM nobody/has:it", EnvironmentFailure, "image-missing", 1),
        ("FROM scratch\nONBUILD RUN x", UnsupportedError, "unsupported-instruction", 2),
        ("FROM scratch\nRUN --mount=type=cache,target=/x y", UnsupportedError, "unsupported-instruction", 2),
        ("FROM scratch\nRUN --network=host y", UnsupportedError, "unsupported-instruction", 2),
        ("FROM scratch\nADD https://example.org/x /x", UnsupportedError, "unsupported-instruction", 2),
        ("FROM scratch\nADD git@example.org:x.git /x", UnsupportedError, "unsupported-instruction", 2),
        ("FROM scratch\nCOPY --chmod=u+x Dockerfile /x", UnsupportedError, "unsupported-instruction", 2),
        ("FROM --platform=linux/riscv64 scratch", UnsupportedError, "unsupported-instruction", 1),
        ("RUN x\nFROM scratch", EnvironmentFailure, "dockerfile-invalid", 1),
        ("ARG x=1", EnvironmentFailure, "dockerfile-invalid", 1),
        ("FROM a b", EnvironmentFailure, "dockerfile-invalid", 1),
        ("FROM scratch AS a\nFROM scratch AS A", EnvironmentFailure, "dockerfile-invalid", 2),
        ("FROM scratch\nCOPY missing /x", EnvironmentFailure, "copy-failed", 2),
        ("FROM scratch\nCOPY onlyone", EnvironmentFailure, "dockerfile-invalid", 2),
        ("FROM scratch\nCOPY a b c", EnvironmentFailure, "dockerfile-invalid", 2),
        ("FROM scratch\nCOPY --chown=nobody-here Dockerfile /x", EnvironmentFailure, "copy-failed", 2),
        ("FROM scratch\nCOPY Dockerfile /x\nCOPY Dockerfile /x/y", EnvironmentFailure, "copy-failed", 3),
        ("FROM scratch\nCOPY Dockerfile /x/\nCOPY <<x /\n\nx\n", EnvironmentFailure, "copy-failed", 3),
        ("FROM scratch AS a\nCOPY --from=a /x /y", EnvironmentFailure, "dockerfile-invalid", 2),
        (
            "FROM scratch AS a\nCOPY --from=b /x /y\nFROM scratch AS b\nFROM a",
            EnvironmentFailure,
            "dockerfile-invalid",
            2,
        ),
        ("FROM scratch\nENV x", EnvironmentFailure, "dockerfile-invalid", 2),
        ("FROM scratch\nENV x=${y:?must be set}", EnvironmentFailure, "dockerfile-invalid", 2),
        ("FROM scratch\nSHELL bash", EnvironmentFailure, "dockerfile-invalid", 2),
        ("FROM scratch\nHEALTHCHECK curl", EnvironmentFailure, "dockerfile-invalid", 2),
        ("FROM scratch\nHEALTHCHECK --interval=soon CMD x", EnvironmentFailure, "dockerfile-invalid", 2),
        ("FROM scratch\nARG 1x=2", EnvironmentFailure, "dockerfile-invalid", 2),
    ],
)
async def test_what_cannot_be_built_is_refused_with_code_and_line(build, text, kind, code, line):
    with pytest.raises(kind) as caught:
        await build(text)
    error: BenchflowError = caught.value
    assert (error.code, error.line, error.file) == (code, line, "Dockerfile")
    assert str(line) in str(error)


async def test_a_missing_base_names_the_commands_that_help(build):
    with pytest.raises(EnvironmentFailure) as caught:
        await build("FROM docker.io/library/python:3.11-slim")
    assert "bench images add python:3.11-slim" in str(caught.value)
    assert "--base-image host" in str(caught.value)


async def test_a_missing_dockerfile_is_said(registry, player, context):
    with pytest.raises(EnvironmentFailure) as caught:
        await DockerfileBuilder(registry, player).build(context)
    assert caught.value.code == "dockerfile-missing"


async def test_a_substitute_is_used_for_unknown_bases_only_and_recorded(build, registry, store):
    await store.layer("own", _nothing)
    registry.save(ImageRecord("mine:1", ("own",), ImageConfig(), "test", "now", 0))
    substituted = await build("FROM unknown:2\nENV A=1", base_image="mine:1")
    assert (substituted.base, substituted.fidelity) == ("mine:1", "substituted")
    exact = await build("FROM mine:1\nENV A=1", base_image="host")
    assert (exact.base, exact.fidelity) == ("mine:1", "exact")
    on_host = await build("FROM unknown:2\nENV A=1", base_image="host")
    assert (on_host.base, on_host.fidelity, on_host.layers) == ("host", "substituted", ())


async def test_a_base_with_triggers_is_refused(build, registry, store):
    await store.layer("t", _nothing)
    registry.save(ImageRecord("t:latest", ("t",), ImageConfig(triggers=("RUN x",)), "test", "now", 0))
    with pytest.raises(UnsupportedError, match="ONBUILD"):
        await build("FROM t")


async def test_folders_too_deep_to_copy_are_refused_with_their_line(build, context):
    folder = os.open(context, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 100, dir_fd=folder)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    with pytest.raises(EnvironmentFailure, match="too long") as caught:
        await build("FROM scratch\nCOPY . /x")
    assert (caught.value.code, caught.value.line) == ("copy-failed", 2)
    remove_tree(context / ("d" * 100))


async def test_special_files_in_the_context_are_refused(build, context):
    os.mkfifo(context / "pipe")
    with pytest.raises(EnvironmentFailure, match="pipe"):
        await build("FROM scratch\nCOPY . /x")
