"""Secrets are taken out of text, data and streams, wherever chunks happen to end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.files.redaction import MARK, Redactor


def test_text_and_data_lose_every_value():
    redactor = Redactor(["hunter22", "hunter2222"])
    assert redactor.text("a hunter2222 b hunter22") == f"a {MARK} b {MARK}"
    assert redactor.data({"hunter22": ["x", ("hunter22!", 5, None)]}) == {MARK: ["x", [f"{MARK}!", 5, None]]}


def test_values_too_short_to_be_secrets_are_left_alone():
    assert Redactor(["", "1", "abc"]).text("1 abc") == "1 abc"


def test_a_value_is_found_in_its_json_spelling_too():
    assert 'k"ey' not in Redactor(['se"cret']).text('{"k": "se\\"cret"}')
    assert Redactor(['se"cret']).text('{"k": "se\\"cret"}') == f'{{"k": "{MARK}"}}'


def test_bytes_lose_every_value():
    redactor = Redactor(["hunter22", "hunter2222"])
    assert redactor.raw(b"\xff hunter2222 \0hunter22") == f"\xff {MARK} \0{MARK}".encode("latin-1")


def test_a_value_that_is_no_utf_8_is_found_in_bytes():
    secret = b"se\xffcret"
    assert Redactor([secret.decode("utf-8", "surrogateescape")]).raw(b"<" + secret + b">") == f"<{MARK}>".encode()


def test_without_values_everything_stays_as_it_is():
    stream = Redactor().stream()
    assert Redactor().raw(b"abc") == b"abc"
    assert Redactor().data({"a": "b"}) == {"a": "b"}
    assert stream.feed(b"abc") + stream.finish() == b"abc"
    assert stream.found is False


def test_more_values_make_a_new_redactor():
    first = Redactor(["alpha"])
    assert first.with_values(["beta"]).text("alpha beta") == f"{MARK} {MARK}"
    assert first.text("alpha beta") == f"{MARK} beta"


@given(
    st.lists(st.sampled_from([b"secret", b"secre", b"t", b"s", b" ", b"another-key", b"xyz"]), max_size=12),
    st.lists(st.integers(0, 12), max_size=6),
)
def test_a_stream_is_redacted_as_the_whole_would_be(pieces, cuts):
    redactor = Redactor(["secret", "secrets", "another-key"])
    whole = b"".join(pieces)
    stream, out, position = redactor.stream(), b"", 0
    for cut in cuts:
        out += stream.feed(whole[position : position + cut])
        position += cut
    out += stream.feed(whole[position:]) + stream.finish()
    assert out == redactor.text(whole.decode()).encode()


@pytest.mark.parametrize("size", range(1, 9))
def test_the_longest_value_counts_wherever_a_chunk_ends(size):
    text = b"a secret, secrets, and sec"
    stream = Redactor(["secret", "secrets"]).stream()
    out = b"".join(stream.feed(text[start : start + size]) for start in range(0, len(text), size))
    assert out + stream.finish() == f"a {MARK}, {MARK}, and sec".encode()


def test_a_stream_holds_back_only_what_could_become_a_secret():
    stream = Redactor(["secret"]).stream()
    assert stream.feed(b"0123456789") == b"01234"
    assert stream.finish() == b"56789"
    assert stream.finish() == b""


@pytest.mark.parametrize("chunks", [[b"a secret here"], [b"sec", b"ret"], [b"secret"]])
def test_a_stream_reports_that_it_held_a_secret(chunks):
    stream = Redactor(["secret"]).stream()
    assert stream.found is False
    for chunk in chunks:
        stream.feed(chunk)
    stream.finish()
    assert stream.found is True
