"""The account of the verifier's user is as built, and so is root's; all others are the agent's to change."""

from __future__ import annotations

import pytest

from benchflow.verifier.surviving.own_account import with_own

BUILT = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n"


@pytest.mark.parametrize(
    "line",
    [
        "root:x:0:0::/root:/usr/zz",
        "root:x:0:0::/tmp:/bin/sh",
        "zz:x:0:0::/:/usr/zz",
        "root:x:7:7::/root:/bin/sh",
        "root",
    ],
)
def test_the_shell_home_and_number_of_root_are_as_built(line):
    assert with_own(f"{line}\n", BUILT, {"root"}) == "root:x:0:0::/root:/bin/sh\n"


def test_accounts_of_others_are_the_work():
    changed = "root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/srv/bob:/bin/zsh\nnew:x:1001:1001::/:/bin/sh\n"
    assert with_own(changed, BUILT, {"root"}) == changed


def test_the_user_of_the_verifier_is_as_built_and_stays():
    found = with_own("bob:x:1000:1000::/home/bob:/usr/zz\n", BUILT, {"root", "bob"})
    assert found == "root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n"


def test_an_environment_without_accounts_keeps_those_of_the_agent():
    assert with_own("new:x:0:0::/:/bin/sh\n", "", {"root"}) == "new:x:0:0::/:/bin/sh\n"
