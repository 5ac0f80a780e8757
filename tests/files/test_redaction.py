"""Secrets are taken out of text, data and streams, wherever chunks happen to end."""

from hypothesis import given, settings
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


def test_more_values_make_a_new_redactor():
    first = Redactor(["alpha"])
    assert first.with_values(["beta"]).text("alpha beta") == f"{MARK} {MARK}"
    assert first.text("alpha beta") == f"{MARK} beta"


@settings(max_examples=60)
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
