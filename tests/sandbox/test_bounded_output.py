"""The bound on kept output."""

from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.bounded_output import BoundedOutput

CHUNKS = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=40)), max_size=30)


@given(CHUNKS, st.integers(0, 200))
def test_nothing_is_lost_up_to_the_limit_and_beginning_and_end_stay_beyond_it(chunks, limit):
    output = BoundedOutput(limit)
    whole = {"stdout": b"", "stderr": b""}
    for stream, data in chunks:
        output.add(stream, data)
        whole[stream] += data
    total = sum(map(len, whole.values()))
    kept = {stream: output.kept(stream) for stream in whole}
    assert sum(map(len, kept.values())) + output.dropped == total
    assert sum(map(len, kept.values())) <= limit
    if total <= limit:
        assert kept == whole
    for stream, data in whole.items():
        head = min(limit // 4, len(data))
        assert kept[stream][:head] == data[:head]
        tail = len(kept[stream]) - head
        assert tail == 0 or data.endswith(kept[stream][-tail:])
