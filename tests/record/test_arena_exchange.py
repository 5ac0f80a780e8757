"""What was said in an arena, by pages: everything once and in order of time, whatever is in the files."""

import json
import os
import random

from benchflow.record import RolloutFolder
from benchflow.record.reading.arena_exchange import count_messages, exchange_page, message_at, read_talk
from made_jobs import add_exchange


def pages(folder, limit):
    """All pages, walked forwards."""
    place, found = (0, 1), []
    while place is not None:
        page = exchange_page(folder, *place, limit=limit)
        found.append(page)
        place = page.next
    return found


def told(entry):
    if entry.message is not None:
        return ("message", entry.message.seq)
    return ("call", entry.call.seq) if entry.call is not None else ("reward", entry.reward.ts)


def moment(entry):
    if entry.message is not None:
        return entry.message.time
    return entry.call.time if entry.call is not None else entry.reward.ts


def test_pages_of_any_size_show_everything_once_and_in_order_of_time(tmp_path):
    add_exchange(tmp_path)
    folder = RolloutFolder(tmp_path)
    [whole] = pages(folder, 100)
    assert (whole.total, len(whole.entries), whole.left_out) == (20, 20 + 2 + 9, 0)
    assert [moment(entry) for entry in whole.entries] == sorted(moment(entry) for entry in whole.entries)
    for limit in (1, 2, 3, 7):
        walked = pages(folder, limit)
        assert [told(entry) for page in walked for entry in page.entries] == [told(entry) for entry in whole.entries]
        assert walked[0].previous is None
        assert exchange_page(folder, *walked[1].previous, limit=limit) == walked[0]


def test_a_message_is_found_by_its_place_and_updates_are_not_talk(tmp_path):
    add_exchange(tmp_path)
    folder = RolloutFolder(tmp_path)
    entries = exchange_page(folder).entries
    assert all(message_at(folder, one.place[0]) == one.message for one in entries if one.message is not None)
    talk = read_talk(folder)
    assert talk.messages == {
        ("umpire", "buyer"): 4,
        ("buyer", "umpire"): 4,
        ("umpire", "seller"): 5,
        ("seller", "umpire"): 4,
    }
    assert (talk.peers, talk.whole) == (("umpire", "buyer", "seller"), True)


def test_damaged_lines_are_entries_that_say_so_and_a_torn_one_is_left_out(tmp_path):
    add_exchange(tmp_path)
    folder = RolloutFolder(tmp_path)
    lines = folder.a2a_messages.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"seq":4,"time":"never"}\n'
    folder.a2a_messages.write_bytes(b"".join(lines) + b'{"seq":21,"ti')
    folder.a2a_tool_calls.write_bytes(b"[]\n\xff\n" + folder.a2a_tool_calls.read_bytes())
    found = exchange_page(folder).entries
    nothing = [entry for entry in found if (entry.message, entry.call, entry.reward) == (None, None, None)]
    assert [entry.place[1] for entry in nothing] == [4]
    assert (count_messages(folder), len(found)) == (20, 31)


def test_times_that_are_none_and_files_that_are_none_break_nothing(tmp_path):
    folder = RolloutFolder(tmp_path)
    assert exchange_page(folder).entries == ()
    assert (read_talk(folder).messages, count_messages(folder)) == ({}, None)
    add_exchange(tmp_path)
    draw = random.Random(1)
    for path, key in ((folder.a2a_messages, "time"), (folder.rewards, "ts"), (folder.a2a_tool_calls, "time")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        times = ["", "0001-01-01T00:00:00", "9999-12-31T23:59:59Z", "2026-11-16T09:12:41Z", "later"]
        path.write_text(
            "".join(json.dumps({**row, key: draw.choice(times)}, separators=(",", ":")) + "\n" for row in rows)
        )
    assert len(exchange_page(folder).entries) == 31
    for limit in (1, 6):
        assert sum(entry.message is not None for page in pages(folder, limit) for entry in page.entries) == 20


def test_links_and_pipes_are_not_followed(tmp_path):
    folder = RolloutFolder(tmp_path / "rollout")
    folder.a2a.mkdir(parents=True)
    add_exchange(tmp_path / "other")
    folder.a2a_messages.symlink_to(RolloutFolder(tmp_path / "other").a2a_messages)
    os.mkfifo(folder.a2a_tool_calls)
    assert exchange_page(folder).entries == ()
