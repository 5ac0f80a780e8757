"""Which addresses a sandbox did not reach, from the log of its gateway."""

from __future__ import annotations

from types import SimpleNamespace

from benchflow.sandbox.network import attempt_log
from benchflow.sandbox.network.attempt_log import AuditLog, unreached


def hosts(log: AuditLog) -> list[tuple[str, int | None]]:
    return [(item.host, item.port) for item in unreached(log.attempts)]


def test_what_is_refused_unresolved_or_down_is_not_reached() -> None:
    log = AuditLog()
    log.record("dns", "evil.test", None, "refused")
    log.record("connect", "pypi.test", 443, "failed", "pypi.test cannot be resolved")
    log.record("proxy", "index.test", 80, "allowed")
    log.record("proxy", "index.test", 80, "failed", "answered with status 503")
    assert hosts(log) == [("evil.test", None), ("pypi.test", 443), ("index.test", 80)]
    assert unreached(log.attempts)[2].reason == "answered with status 503"


def test_an_address_that_answered_in_the_end_was_reached() -> None:
    log = AuditLog()
    log.record("connect", "pypi.test", 443, "failed", "no answer in time")
    log.record("connect", "pypi.test", 443, "allowed")
    assert hosts(log) == []


def test_names_of_the_own_machine_and_refused_numbers_are_no_downloads() -> None:
    log = AuditLog()
    log.record("dns", "sandbox", None, "refused")
    log.record("http", "169.254.169.254", 80, "refused", "link-local")
    log.record("http", "", None, "refused", "malformed")
    assert hosts(log) == []


def test_an_address_that_never_answers_is_not_reached(monkeypatch) -> None:
    log, now = AuditLog(), 100.0
    monkeypatch.setattr(attempt_log, "time", SimpleNamespace(monotonic=lambda: now))  # not that of servers in threads
    for connection, host in ((1, "given.up"), (2, "still.waited.for"), (3, "slow.but.there"), (4, "said.goodbye")):
        log.record("connect", host, 443, "allowed")
        log.asked(connection, host, 443)
    log.given_up(4)
    now = 130.0
    log.given_up(1)
    log.answered(3)
    assert sorted(log.silent) == [("given.up", 443), ("still.waited.for", 443)]
    assert {item.host: item.reason for item in unreached(log.attempts, log.silent)} == {
        "given.up": "no answer",
        "still.waited.for": "no answer",
    }
    log.asked(5, "given.up", 443)
    log.answered(5)
    assert log.silent == {("still.waited.for", 443)}
