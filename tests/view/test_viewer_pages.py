"""The viewer's answers, without a browser: who is refused, what bad input gets, what other tools wrote."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from benchflow.record import NodeNote, Notes
from benchflow.record.reading.long_lines import MAX_LINE
from benchflow.rollout.atif import export_atif
from benchflow.view import known_jobs
from benchflow.view.facets import Chooser, Query
from benchflow.view.job_index import ResultsFile
from benchflow.view.page_rendering import STATIC
from made_jobs import (
    HOSTILE,
    add_calls,
    add_exchange,
    add_nodes,
    add_rollout,
    arena_job,
    conversation,
    made_game,
    made_result,
    open_job,
    rich_job,
)

Client = Callable[[Path], TestClient]
SECRET = "not for the browser"


def test_only_reading_and_only_for_the_names_of_this_machine(jobs: Path, client: Client) -> None:
    viewer = client(jobs)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert viewer.request(method, "/").status_code == 405
    assert viewer.head("/").status_code == 200
    for host in ("127.0.0.1:8282", "localhost", "[::1]:80", "LOCALHOST:1"):
        assert viewer.get("/", headers={"host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8282", ""):
        assert viewer.get("/", headers={"host": host}).status_code == 421
    other_site = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}
    assert viewer.get("/static/viewer.js", headers=other_site).status_code == 403
    policy = viewer.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_files_are_downloads_unless_they_are_images_and_never_outside_the_rollout(jobs: Path, client: Client) -> None:
    folder = rich_job(jobs, "first") / "rollouts/parser__2__b"
    (jobs / "secret.txt").write_text(SECRET)
    (folder / "artifacts/link.txt").symlink_to(jobs / "secret.txt")
    (folder / "linked").symlink_to(jobs)
    os.mkfifo(folder / "artifacts/pipe")
    viewer = client(jobs)

    def get(path: str, view: str = "") -> tuple[int, str, str]:
        answer = viewer.get("/job/first/rollout/parser__2__b/file", params={"path": path, "view": view})
        assert SECRET not in answer.text
        return (
            answer.status_code,
            answer.headers["content-type"],
            answer.headers.get("content-disposition", "").partition(";")[0],
        )

    assert get("artifacts/shot.png", "1") == (200, "image/png", "inline")
    assert get("artifacts/page.svg") == (200, "application/octet-stream", "attachment")
    assert get("artifacts/page.svg", "1")[1:] == ("text/html; charset=utf-8", "")  # read as text
    outside = ("../../job.json", "/etc/passwd", "artifacts/../result.json", "artifacts/link.txt", "linked/secret.txt")
    for path in (*outside, "artifacts/pipe", "artifacts", "", "a\0b", "nothing"):
        assert get(path)[0] == 404, path
        assert get(path, "1")[0] == 404, path
    for path in ("/job/..", "/job/%2e%2e/", "/job/first/rollout/..", "/job/first/rollout/%2E%2E%2F%2E%2E"):
        assert SECRET not in viewer.get(path).text


def test_names_of_any_bytes_are_opened(jobs: Path, client: Client) -> None:
    odd = os.fsdecode(b'od\xff"<b>&?#%41 \xc3\xa9')
    store = open_job(jobs, "plain", 1)
    add_rollout(store, "a b__1__%41", made_result(f"task/{HOSTILE}"), said=conversation())
    store.close()
    store.folder.rename(jobs / odd)
    viewer = client(jobs)
    page = viewer.get("/")
    link = page.text.split('href="/job/', 1)[1].split('"', 1)[0]
    job = viewer.get(f"/job/{link}")
    assert job.status_code == 200
    assert HOSTILE not in job.text
    rollout = job.text.split("/rollout/", 1)[1].split('"', 1)[0]
    assert viewer.get(f"/job/{link}/rollout/{rollout}").status_code == 200


def test_torn_damaged_and_huge_trajectories_are_shown_as_far_as_they_go(jobs: Path, client: Client) -> None:
    store = open_job(jobs, "bad", 1)
    folder = add_rollout(store, "a__1__x", made_result("a"), said=conversation("Whole."))
    store.close()
    with (folder / "trajectory.jsonl").open("ab") as stream:
        stream.write(b"not json\n" + b'{"type": 3}\n' + b'{"seq":9,"time":"","type":"agent_message","text":"')
        stream.write(b"x" * (MAX_LINE + 10) + b'"}\n{"seq":10,"type":"agent_message","text":"half of it')
    with (jobs / "bad/results.jsonl").open("ab") as stream:
        stream.write(b"garbage\n{torn")
    viewer = client(jobs)
    page = viewer.get("/job/bad/rollout/a__1__x")
    assert page.status_code == 200
    assert "Whole." in page.text
    assert "is damaged" in page.text
    assert "was not read" in page.text
    assert "half of it" not in page.text
    assert "Line 2 of the results is damaged" in viewer.get("/job/bad").text


def test_model_calls_are_walked_by_pages_forwards_and_back(jobs: Path, client: Client) -> None:
    store = open_job(jobs, "many", 1)
    folder = add_rollout(store, "a__1__x", made_result("a"))
    add_calls(folder, 120)
    store.close()
    viewer = client(jobs)
    page = viewer.get("/job/many/rollout/a__1__x?tab=calls").text
    seen = [_calls_on(page)]
    assert "120 calls" in page
    while (later := _link(page, "data-later")) is not None:
        page = viewer.get(later).text
        seen.append(_calls_on(page))
    assert [(numbers[0], numbers[-1]) for numbers in seen] == [(1, 50), (51, 100), (101, 120)]
    page = viewer.get(_link(page, "data-earlier") or "").text
    assert _calls_on(page) == seen[1]
    assert _calls_on(viewer.get(_link(page, "data-earlier") or "").text) == seen[0]
    files = viewer.get("/job/many/rollout/a__1__x?tab=files").text
    assert "model_calls.jsonl" in files
    assert "model_calls/" not in files


def test_a_call_is_shown_with_its_own_parts_only_and_a_damaged_record_as_far_as_it_goes(
    jobs: Path, tmp_path: Path, client: Client
) -> None:
    store = open_job(jobs, "bad", 1)
    folder = add_rollout(store, "a__1__x", made_result("a"))
    add_calls(folder, 2)
    store.close()
    lines = (folder / "model_calls.jsonl").read_bytes().splitlines(keepends=True)
    first = json.loads(lines[0])
    system, answer = first["request"]["messages"][0]["$part"], first["answer"]["part"]
    with (folder / "model_calls.jsonl").open("ab") as stream:
        stream.write(b'garbage\n{"seq": 7}\n' + b"x" * (MAX_LINE + 10) + b'\n{"seq":9,"time":"torn')
    viewer = client(jobs)
    page = viewer.get("/job/bad/rollout/a__1__x?tab=calls").text
    assert [f"Line {number} of the record is damaged" in page for number in range(2, 7)] == [False, *[True] * 3, False]
    call = "/job/bad/rollout/a__1__x/call?at="
    request = viewer.get(f"{call}0-1&what=request").text
    assert "&#34;temperature&#34;: 0" in request
    assert "question 1 &lt;script&gt;" in request
    assert "rule rule" not in request
    assert "rule rule" in viewer.get(f"{call}0-1&part={system}").text
    assert "answer 1 &lt;script&gt;" in viewer.get(f"{call}0-1&what=answer").text
    second = len(lines[0])
    other = folder / "model_calls" / answer.removeprefix("sha256:")
    other.unlink()
    os.mkfifo(other)  # whoever reads it waits
    (folder / "model_calls" / system.removeprefix("sha256:")).write_bytes(b"another text")
    for wrong in (
        f"{second}-2&part={system}",
        "0-1&what=answer",
        f"0-1&part={system}",
        "0-1&part=../result.json",
        "1-1",
        "99999999-1",
        f"{second + len(lines[1])}-3",
    ):
        found = viewer.get(call + wrong)
        assert (found.status_code, "empty-title" in found.text) == (404, True), wrong


def test_a_long_request_shows_its_last_messages_and_links_to_earlier_ones(jobs: Path, client: Client) -> None:
    store = open_job(jobs, "long", 1)
    folder = add_rollout(store, "a__1__x", made_result("a"))
    add_calls(folder, 251, "")
    store.close()
    lines = (folder / "model_calls.jsonl").read_bytes().splitlines(keepends=True)
    at = sum(map(len, lines[:249]))
    viewer = client(jobs)
    page = viewer.get(f"/job/long/rollout/a__1__x/call?at={at}-250").text
    assert ("messages[250]" in page, "messages[151]" in page, "messages[150]" in page) == (True, True, False)
    earlier = re.search(r'<a href="([^"]*)">151 earlier items', page)
    assert earlier is not None
    page = viewer.get(unescape(earlier[1])).text
    assert ("messages[150]" in page, "messages[51]" in page, "messages[50]" in page) == (True, True, False)


def _calls_on(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'<tr id="c\d+"><td class="right num">(\d+)<', page)]


def _link(page: str, mark: str) -> str | None:
    found = re.search(rf'<a href="([^"]*)"[^>]* {mark}>', page)
    return unescape(found[1]) if found else None


def test_what_is_gone_or_wrong_gets_one_sentence(jobs: Path, client: Client) -> None:
    (jobs / "empty").mkdir()
    (jobs / "broken").mkdir()
    (jobs / "broken/job.json").write_text("{")
    rich_job(jobs, "first")
    viewer = client(jobs)
    assert "broken" in viewer.get("/").text
    assert "cannot be read" in viewer.get("/job/broken").text
    for path in (
        "/job/none",
        "/job/empty",
        "/job/first/rollout/none",
        "/job/first/task?name=none",
        "/job/first/package?task=parser",
        "/job/first/rollout/words__1__c/part?at=0-1&part=7",
        "/compare?job=first",
        "/nothing",
    ):
        answer = viewer.get(path)
        assert answer.status_code == 404, path
        assert "empty-title" in answer.text
    for path in (
        "/job/first?page=999999&sort=nothing&status=none&q=%00",
        "/job/first/rollout/parser__2__b?at=99-9&tab=x",
    ):
        assert viewer.get(path).status_code == 200
    nowhere = client(jobs / "empty").get("/")
    assert "bench eval run" in nowhere.text


def test_a_thousand_jobs_are_listed_by_pages(jobs: Path, client: Client) -> None:
    for number in range(1_000):
        folder = jobs / f"job-{number:04}"
        folder.mkdir()
        (folder / "job.json").write_text('{"schema": "benchcube.job.v1", "name": "x", "sources": [], "agent": "nop"}')
    page = client(jobs).get("/?page=20").text
    assert "1,000 jobs" in page
    assert page.count("data-row") == 50
    assert "version 0.1" in page


def test_jobs_of_harbor_and_trajectories_of_others_open_read_only(jobs: Path, tmp_path: Path, client: Client) -> None:
    ours = rich_job(jobs, "first") / "rollouts/parser__2__b"
    atif = tmp_path / "trajectory.json"
    atif.write_text(json.dumps(export_atif(ours)))
    trial = jobs / "2026-11-16__09-12-40" / "hello__abc1234"
    (trial / "agent").mkdir(parents=True)
    (trial / "agent/trajectory.json").write_text(atif.read_text())
    (trial / "verifier").mkdir()
    (trial / "verifier/test-stdout.txt").write_text("2 passed")
    times = {"started_at": "2026-11-16T09:12:40Z", "finished_at": "2026-11-16T09:13:10Z"}
    result = {
        "id": "1",
        "task_name": "acme/hello",
        "trial_name": trial.name,
        "task_checksum": "c",
        "agent_info": {"name": "claude-code", "version": "2", "model_info": {"name": "large"}},
        "agent_result": {"n_input_tokens": 10, "n_output_tokens": 5, "cost_usd": 0.5},
        "verifier_result": {"rewards": {"reward": 0.75}},
        "exception_info": None,
        "agent_execution": times,
        **times,
    }
    (trial / "result.json").write_text(json.dumps(result))
    failed = jobs / "2026-11-16__09-12-40" / "hello__def5678"
    failed.mkdir()
    exception = {"exception_type": "VerifierTimeoutError", "exception_message": "60 s"}
    (failed / "result.json").write_text(
        json.dumps({**result, "id": "2", "verifier_result": None, "exception_info": exception})
    )
    (trial.parent / "config.json").write_text(json.dumps({"agents": [{"name": "claude-code"}]}))
    (trial.parent / "result.json").write_text(json.dumps({"n_total_trials": 2, "stats": {}, **times}))
    before = sorted(str(path) for path in jobs.rglob("*"))
    for viewer in (client(jobs), client(trial.parent)):
        job = viewer.get(f"/job/{trial.parent.name}").text
        assert "written by Harbor" in job
        assert "0.75" in job
        assert "verifier · VerifierTimeoutError" in job
        rollout = viewer.get(f"/job/{trial.parent.name}/rollout/{trial.name}").text
        assert "I look first." in rollout
        assert "2 passed" in viewer.get(f"/job/{trial.parent.name}/rollout/{trial.name}?tab=verifier").text
    alone = client(atif)
    assert "I look first." in alone.get("/").text
    assert alone.get("/part?at=0-2&part=0").status_code == 200
    assert sorted(str(path) for path in jobs.rglob("*")) == before


def test_a_job_of_harbor_with_its_default_agent_names_it(jobs: Path, client: Client) -> None:
    job = jobs / "harbor"
    (job / "hello__abc1234").mkdir(parents=True)
    (job / "config.json").write_text(json.dumps({"job_name": "harbor", "datasets": [{"path": "/tasks"}]}))
    (job / "result.json").write_text(json.dumps({"n_total_trials": 1, "stats": {}}))
    trials = [{"task": {"name": "hello"}, "agent": {"name": "oracle", "kwargs": {}}}]
    (job / "lock.json").write_text(json.dumps({"schema_version": 3, "trials": trials}))
    trial = {"task_name": "hello", "agent_info": {"name": "oracle"}, "verifier_result": {"rewards": {"reward": 1.0}}}
    (job / "hello__abc1234/result.json").write_text(json.dumps(trial))
    assert "Agent <strong>oracle</strong>" in client(jobs).get("/job/harbor").text
    assert "Harbor keeps none." in client(jobs).get("/job/harbor/rollout/hello__abc1234?tab=changes").text


def test_a_job_that_takes_long_to_read_is_shown_at_once_and_again_when_it_is_read(
    jobs: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_job(jobs, "many", 500)
    for number in range(500):
        store.append(made_result(f"task-{number}", 1, 1.0), f"r__{number}__x")
    store.close()
    monkeypatch.setattr(known_jobs, "SOON_SEC", 0.0)
    monkeypatch.setattr(known_jobs, "PAINTED_SEC", 0.0)
    viewer = client(jobs)
    first = viewer.get("/job/many").text
    assert "The results are being read: " in first
    assert "bench eval resume" not in first
    deadline = time.monotonic() + 60
    while "are being read" in (page := viewer.get("/job/many").text) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "500 rollouts" in page
    assert "finished" in page
    version = re.search(r'data-version="([^"]+)"', page)
    assert version is not None
    assert viewer.get(f"/live/job/many?v={version[1]}").status_code == 204


def test_nodes_of_a_running_job_and_what_runs_there_are_shown_until_it_ends(jobs: Path, client: Client) -> None:
    store = open_job(jobs, "far", 3)
    note = Notes(node=NodeNote("fast", 12.0))
    add_rollout(store, "done", made_result("acme/done", notes=note))
    add_nodes(store, "<b>bold</b>")
    viewer = client(jobs)
    page = viewer.get("/job/far").text
    assert "<b>bold" not in page
    assert re.search(r"fast</td>.*state-ready.*33.6 GB.*Its clock is 3.5 s behind", page)
    assert re.search(r"gone</td>.*state-lost.*It does not answer", page)
    assert 'acme/far <span class="small">on fast</span>' in page, "there is no folder to link to yet"
    assert "1 rollout waiting for a node: node fast has 8 of 8 processors reserved" in page
    assert "fast · its clock was 12.0 s ahead" in viewer.get("/job/far/rollout/done?tab=details").text
    store.close()
    ended = viewer.get("/job/far").text
    assert "state-lost" not in ended
    assert "acme/far" not in ended


def test_facets_count_what_one_more_value_would_show(jobs: Path) -> None:
    store = open_job(jobs, "many", 60)
    for number in range(60):
        outcome = [1.0, 0.5, 0.0][number % 3]
        store.append(made_result(f"task-{number % 7}", number + 1, outcome), f"r__{number}__x")
    store.close()
    chooser = Chooser(ResultsFile(store.places.results).refresh())
    query = Query({"reward": ("full", "zero"), "task": ("task-3",)})
    chosen = chooser.choose(query)
    full = {row.rollout for row in chooser.known.rows if row.task.name == "task-3" and row.reward in (1.0, 0.0)}
    assert {row.rollout for row in chosen.rows} == full
    counts = {value.value: value.count for facet in chosen.facets if facet.name == "reward" for value in facet.values}
    for value, count in counts.items():
        assert count == len(chooser.choose(Query({"reward": (value,), "task": ("task-3",)})).rows)
    best = chooser.choose(Query(sort="reward", descending=True)).rows
    assert [row.reward for row in best] == sorted((row.reward for row in best), reverse=True)


def test_rows_follow_a_log_that_grows_is_repaired_or_replaced(jobs: Path) -> None:
    store = open_job(jobs, "log", 3)
    followed = ResultsFile(store.places.results)
    assert followed.refresh().rows == ()
    store.append(made_result("a"), "a__1__x")
    first = followed.refresh()
    assert followed.refresh() is first
    with store.places.results.open("ab") as stream:
        stream.write(b'{"torn')
    assert [row.rollout for row in followed.refresh().rows] == ["a__1__x"]
    store.close()
    lines = store.places.results.read_bytes().splitlines(keepends=True)
    store.places.results.unlink()
    store.places.results.write_bytes(lines[0].replace(b"a__1__x", b"b__1__y"))
    again = followed.refresh()
    assert [row.rollout for row in again.rows] == ["b__1__y"]
    assert again.version != first.version


def test_the_files_of_the_viewer_are_small() -> None:
    files = {path.name: path.stat().st_size for path in STATIC.iterdir()}
    assert sum(files.values()) <= 150_000
    assert len((STATIC / "viewer.js").read_text().splitlines()) < 300
    assert "htmx.LICENSE" in files


def test_the_messages_of_a_long_game_are_shown_by_pages_with_the_rewards_between_them(
    jobs: Path, client: Client
) -> None:
    store = open_job(jobs, "games", 1)
    result = made_game({"buyer": ("oracle", 0.9), "seller": ("nop", 0.1)})
    add_exchange(add_rollout(store, "long", result), rounds=40)
    store.close()
    viewer, address, seen, pages, rewards = client(jobs), "/job/games/rollout/long?tab=arena", [], 0, 0
    while address:
        text = viewer.get(address).text
        seen += [int(number) for number in re.findall(r'id="m([0-9]+)"', text)]
        rewards += text.count("<strong>Reward 0.")
        pages += 1
        found = re.search(r'href="([^"]*)"[^>]*data-later', text)
        address = unescape(found[1]) if found else ""
    assert (seen, pages, rewards) == (list(range(1, 165)), 4, 81)
    assert "data-earlier" in text


def test_a_game_opens_with_its_arena_and_its_other_parts_one_click_away(jobs: Path, client: Client) -> None:
    arena_job(jobs, "games")
    viewer, place = client(jobs), "/job/games/rollout/haggle__1__1"
    assert viewer.get(place).text == viewer.get(f"{place}?tab=arena").text
    assert f'{place}?tab=conversation"' in viewer.get(place).text


def test_a_page_of_a_rollout_that_is_no_game_has_no_arena(jobs: Path, client: Client) -> None:
    rich_job(jobs, "first")
    text = client(jobs).get("/job/first/rollout/parser__2__b?tab=arena").text
    assert "Arena" not in text
    assert client(jobs).get("/job/first/rollout/parser__2__b/message?at=0-1").status_code == 404


def test_records_of_games_that_were_tampered_with_are_shown_as_far_as_they_can_be(jobs: Path, client: Client) -> None:
    folder = arena_job(jobs, "games") / "rollouts/haggle__1__1"
    messages = folder / "a2a/messages.jsonl"
    lines = messages.read_text().splitlines(keepends=True)
    large = next(index for index, line in enumerate(lines) if '"part":"sha256:' in line)
    for part in (folder / "a2a/parts").iterdir():
        part.write_text('"something else"')
    messages.write_text("".join([*lines[:5], "[]\n", *lines[6:]]))
    viewer = client(jobs)
    assert "Line 6 of the messages is damaged" in viewer.get("/job/games/rollout/haggle__1__1?tab=arena").text
    offset = sum(len(line.encode()) for line in [*lines[:5], "[]\n", *lines[6:]][:large])
    answer = viewer.get("/job/games/rollout/haggle__1__1/message", params={"at": f"{offset}-{large + 1}"})
    assert (answer.status_code, "is damaged" in unescape(answer.text)) == (404, True)
    for at in ("", "99999999-1", "1-1", "x", "-1"):
        assert viewer.get("/job/games/rollout/haggle__1__1/message", params={"at": at, "part": "7"}).status_code == 404
