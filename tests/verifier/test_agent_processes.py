"""Who could have ended a service: users are compared by their ids, services of a compose file by who can reach them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.sandbox.protocol import FailedService
from benchflow.verifier.agent_processes import end_agent, judge_ended

pytestmark = pytest.mark.anyio
PASSWD = "root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\nweb:x:1000:1000::/:/bin/sh\nworker:x:1000:1000::/:/bin/sh\n"


class Accounts:
    """A sandbox with accounts, which remembers whose processes were ended."""

    def __init__(self, passwd):
        self._passwd = passwd
        self.ended = []

    async def read_file(self, path):
        if self._passwd is None:
            raise SandboxFailure("gone", code="no-such-file")
        return self._passwd.encode()

    async def exec(self, command, *, user, **options):
        self.ended.append(user)


@pytest.mark.parametrize(
    ("agent", "service", "apart"),
    [
        ("web", "other", False),  # a name without an id could be anybody's
        ("web", "worker", False),
        ("1000", "worker:web", False),
        ("toor", "worker", False),
        ("web", "root", True),
        ("agent", "33", True),
    ],
)
async def test_users_with_one_id_are_one_user_whatever_they_are_called(agent, service, apart):
    box = Accounts(PASSWD)
    note = await end_agent(box, [agent], SimpleNamespace(users=frozenset({service})))
    assert (note is None, bool(box.ended)) == (apart, apart)


async def test_without_accounts_numbers_are_compared():
    box = Accounts(None)
    assert await end_agent(box, ["33"], SimpleNamespace(users=frozenset({"34"}))) is None
    assert await end_agent(box, ["33"], SimpleNamespace(users=frozenset({"33:1"}))) is not None


@pytest.mark.parametrize("keeps", [False, True])
def test_a_service_that_the_agent_could_reach_is_noted_and_one_it_could_not_is_trouble(keeps):
    scope = SimpleNamespace(isolation=SimpleNamespace(keeps_processes=keeps))
    reached = FailedService("db", "The service 'db' exited with code 1. Its last lines:\nsecret", True)
    (note,) = judge_ended([reached], scope)
    assert (note.code, "secret" in note.message) == ("service-ended", False)
    alone = [FailedService("worker", "The service 'worker' exited with code 1.", False)]
    if keeps:
        assert [note.code for note in judge_ended(alone, scope)] == ["service-ended"]
        return
    with pytest.raises(EnvironmentFailure, match="worker") as caught:
        judge_ended(alone, scope)
    assert caught.value.code == "service-failed"
