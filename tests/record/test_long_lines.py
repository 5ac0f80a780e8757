"""Lines of large files, from any line forwards and back."""

import io
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from benchflow.record.reading import long_lines
from benchflow.record.reading.long_lines import lines_back, lines_from, whole_end

LINES = st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"") + b"\n"), max_size=20)


@given(LINES, st.binary(max_size=9).map(lambda text: text.replace(b"\n", b"")), st.integers(1, 9), st.integers(1, 30))
def test_the_way_back_meets_the_same_lines(lines, torn, block, back):
    stream = io.BytesIO(b"".join(lines) + torn)
    with patch.object(long_lines, "_BLOCK", block):
        starts = [line.offset for line in lines_from(stream, 0)]
        end = whole_end(stream)
        assert end == sum(map(len, lines))
        for number, offset in enumerate([*starts, end]):
            walked = min(number, back)
            assert lines_back(stream, offset, back, most=1 << 20) == ([*starts, end][number - walked], walked)


def test_the_way_back_reads_no_more_than_it_may():
    stream = io.BytesIO(b"a\n" + b"x" * 300_000 + b"\nb\n")
    assert lines_back(stream, 300_005, 2, most=1 << 16) == (300_003, 1)
    assert lines_back(stream, 300_003, 1, most=1 << 16) == (300_003, 0)
