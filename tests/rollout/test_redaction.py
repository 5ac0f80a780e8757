"""Which values are secret, and that no file of a rollout keeps them."""

import base64
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.files.redaction import looks_secret, make_redactor, redact_folder, secret_values


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "key_2"])
def test_names_that_look_secret(name):
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["HOME", "PATH", "SSH_AUTH_SOCK", "KEYBOARD", "MONKEY", "OPENAI_BASE_URL", "TOKENIZERS"]
)
def test_names_that_do_not(name):
    assert not looks_secret(name)


def test_declared_taken_and_secret_looking_values_are_secret_and_nothing_else():
    machine = {
        "API_KEY": "0123456789",
        "SHORT_KEY": "abc",
        "MINE": "four",
        "TAKEN": "taken-value",
        "OTHER": "ordinary-text",
    }
    assert secret_values(machine, declared=["MINE", "ABSENT"], taken=["TAKEN"]) == {"0123456789", "four", "taken-value"}


def test_a_guessed_secret_has_at_least_eight_characters_and_a_declared_one_four():
    machine = {"A_KEY": "12345678", "B_KEY": "1234567", "C": "8765432", "D": "87654321", "E": "wxyz", "F": "xyz"}
    found = secret_values(machine, declared=["E", "F"], taken=["C", "D", "ABSENT"])
    assert found == {"12345678", "87654321", "wxyz"}


SPELLINGS = {
    "in a path of a URL": ("pass/word one", "pass%2Fword%20one"),
    "in a form": ("pass/word one", "pass%2Fword+one"),
    "in base64": ("hunter22-hunter22-", "aHVudGVyMjItaHVudGVyMjIt"),
    "in base64 with padding": ("hunter22", "aHVudGVyMjI="),
    "in base64 that ends with a letter of the padding's kind": ("secret-8W", "c2VjcmV0LThX"),
    "in base64 for URLs": ("????>>>>", "Pz8_Pz4-Pj4"),
    "as bytes that are no UTF-8, in a URL": ("key\udcffkey", "key%FFkey"),
    "as bytes that are no UTF-8, in base64": ("key\udcffkey", base64.b64encode(b"key\xffkey").decode().rstrip("=")),
}


@pytest.mark.parametrize(("value", "spelling"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_taken_out_whole(value, spelling):
    redactor = make_redactor(["another-secret", value, "one-more-secret"])
    assert redactor.text(f"<{spelling.rstrip('=')}>") == "<[redacted]>"
    assert redactor.text("another-secret one-more-secret") == "[redacted] [redacted]"


@given(st.text(min_size=4, max_size=40, alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"])))
def test_a_secret_is_found_in_every_spelling(value):
    redactor = make_redactor([value])
    encoded = base64.b64encode(value.encode()).decode().rstrip("=")
    for text in (f"x{value}y", f"token={encoded}"):
        assert redactor.text(text) != text


def test_files_lose_secrets_whatever_they_are(tmp_path):
    secret = "hunter22-hunter22"
    redactor = make_redactor([secret])
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log.txt").write_bytes(b"\0" * (1 << 20) + secret.encode() + b"\xff" * 10)
    (tmp_path / "clean.bin").write_bytes(bytes(range(256)))
    (tmp_path / f"name-{secret}").write_text("x")
    (tmp_path / "link").symlink_to(f"/nowhere/{secret}")
    changed = redact_folder(redactor, tmp_path)
    assert set(changed) == {"deep/log.txt", "name-[redacted]", "link"}
    assert secret.encode() not in (tmp_path / "deep" / "log.txt").read_bytes()
    assert (tmp_path / "clean.bin").read_bytes() == bytes(range(256))
    assert not (tmp_path / "link").is_symlink()
    assert not list(tmp_path.rglob(".benchflow-*"))


def test_a_folder_that_is_named_after_a_secret_is_redacted_with_all_it_holds(tmp_path):
    (tmp_path / "hunter22-x" / "deep").mkdir(parents=True)
    (tmp_path / "hunter22-x" / "deep" / "log").write_text("hunter22")
    changed = redact_folder(make_redactor(["hunter22"]), tmp_path)
    assert set(changed) == {"hunter22-x/deep/log", "[redacted]-x"}
    assert (tmp_path / "[redacted]-x" / "deep" / "log").read_text() == "[redacted]"


def test_links_and_special_files_without_secrets_stay(tmp_path):
    (tmp_path / "link").symlink_to("elsewhere")
    os.mkfifo(tmp_path / "pipe")
    assert redact_folder(make_redactor(["hunter22"]), tmp_path) == []
    assert (tmp_path / "link").readlink() == Path("elsewhere")


def test_files_without_secrets_are_not_written_again(tmp_path):
    (tmp_path / "clean.txt").write_text("nothing of that kind")
    (tmp_path / "empty.txt").touch()
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    assert redact_folder(make_redactor(["hunter22-hunter22"]), tmp_path) == []
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("at", [0, (1 << 20) - 8, 1 << 20, (1 << 20) + 100])
def test_a_secret_is_found_wherever_it_stands_and_the_file_keeps_its_mode(tmp_path, at):
    file = tmp_path / "log"
    file.write_bytes(b"." * at + b"hunter22-hunter22")
    file.chmod(0o640)
    assert redact_folder(make_redactor(["hunter22-hunter22"]), tmp_path) == ["log"]
    assert file.read_bytes() == b"." * at + b"[redacted]"
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_not_there_is_no_problem(tmp_path):
    assert redact_folder(make_redactor(["secret-secret"]), tmp_path / "none") == []
