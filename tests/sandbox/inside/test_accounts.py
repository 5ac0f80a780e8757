"""Users as an environment's own files name them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow.sandbox.inside.accounts import Account, UnknownUser, find_account, is_root, with_account

PASSWD = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/var/www:/bin/false\nbroken\nodd:x:a:b::/:\n1005:x:7:7::/seven:\n"
GROUP = "root:x:0:\nstaff:x:50:web,other\nweb:x:34:\ndocker:x:99:someone,web\n"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("web", Account(33, 34, (50, 99), "web", "/var/www")),
        ("33", Account(33, 34, (50, 99), "web", "/var/www")),
        ("web:staff", Account(33, 50, (), "web", "/var/www")),
        ("web:1234", Account(33, 1234, (), "web", "/var/www")),
        ("4711", Account(4711, 0, (), "4711", "/")),
        ("4711:4712", Account(4711, 4712, (), "4711", "/")),
        ("1005", Account(7, 7, (), "1005", "/seven")),
        ("agent", Account(1000, 1000, (), "agent", "/home/agent")),
    ],
)
def test_an_account_is_found_by_name_or_number(user: str, expected: Account) -> None:
    assert find_account(user, PASSWD, GROUP) == expected


@pytest.mark.parametrize("user", ["ghost", "web:ghosts", "odd", "-1", "٣"])
def test_what_the_environment_does_not_know_is_an_error(user: str) -> None:
    with pytest.raises(UnknownUser):
        find_account(user, PASSWD, GROUP)


def test_root_exists_without_any_file() -> None:
    assert find_account("root", "", "") == Account(0, 0, (), "root", "/root")


@given(passwd=st.text(), group=st.text(), user=st.text(max_size=20))
def test_no_text_breaks_the_search(passwd: str, group: str, user: str) -> None:
    try:
        account = find_account(user, passwd, group)
    except UnknownUser:
        return
    assert account.uid >= 0


KNOWN = "agent:x:1234:1235::/home/agent:/bin/sh\n"


def test_the_agent_gets_a_number_that_nobody_has():
    assert with_account("agent", KNOWN, "") == (KNOWN, "")
    passwd, group = with_account(
        "agent", "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh", "staff:x:1001:"
    )
    assert passwd.splitlines()[1:] == ["node:x:1000:1000::/home/node:/bin/sh", "agent:x:1002:1002::/home/agent:/bin/sh"]
    assert group == "staff:x:1001:\nagent:x:1002:\n"


def test_an_environment_without_accounts_gets_root_and_the_agent():
    passwd, group = with_account("agent", *with_account("root", "", ""))
    assert passwd == "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"
    assert group == "root:x:0:\nagent:x:1000:\n"


def test_root_is_known_by_name_and_number():
    assert [user for user in ("root", "0", "0:0", "root:staff", "agent", "10", None) if is_root(user)] == [
        *("root", "0", "0:0", "root:staff"),
    ]


@pytest.mark.parametrize("user", ["root", "agent", ""])
def test_nobody_is_assumed_where_only_what_is_written_counts(user):
    with pytest.raises(UnknownUser):
        find_account(user, "", "", assumed=False)
