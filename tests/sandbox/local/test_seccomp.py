"""The system-call filter, run by a small interpreter: what each processor's program answers to which call."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow.sandbox.local.inside import seccomp

MACHINES = ("x86_64", "aarch64")
ALLOW, KILL = 0x7FFF0000, 0x80000000


def answer(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """What the kernel would do with this call."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, seccomp.AUDIT_ARCH[machine], 0, *padded)
    position = accumulator = 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * position)
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x15:
            position += if_true if accumulator == value else if_false
        elif code == 0x45:
            position += if_true if accumulator & value else if_false
        elif code == 0x06:
            return int(value)
        else:
            raise AssertionError(f"unknown instruction {code:#x}")


def refusal(result: int) -> int | None:
    """The error number of a refusal; 0 for a pretended success, None for anything else."""
    return result & 0xFFFF if result & 0xFFFF0000 == 0x00050000 else None


@pytest.mark.parametrize("machine", MACHINES)
def test_every_denied_call_is_refused(machine: str) -> None:
    program = seccomp.build_filter(machine=machine)
    for name in seccomp.DENIED:
        if name in seccomp.NUMBERS[machine]:
            assert refusal(answer(program, machine, seccomp.NUMBERS[machine][name])) == errno.EPERM, name


@pytest.mark.parametrize("machine", MACHINES)
def test_processes_are_made_but_no_namespaces(machine: str) -> None:
    program = seccomp.build_filter(machine=machine)
    numbers = seccomp.NUMBERS[machine]
    assert answer(program, machine, numbers["clone"], 0x01200011) == ALLOW
    assert answer(program, machine, numbers["unshare"], 0x400) == ALLOW
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert refusal(answer(program, machine, numbers["clone"], flag | 17)) == errno.EPERM
        assert refusal(answer(program, machine, numbers["unshare"], flag)) == errno.EPERM
    assert refusal(answer(program, machine, numbers["clone3"])) == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("fake_root", [False, True])
@pytest.mark.parametrize("pin_cpus", [False, True])
@settings(max_examples=settings().max_examples // 3)
@given(family=st.integers(0, 64))
def test_only_isolated_socket_families_exist(machine: str, fake_root: bool, pin_cpus: bool, family: int) -> None:
    program = seccomp.build_filter(machine=machine, fake_root=fake_root, pin_cpus=pin_cpus)
    result = answer(program, machine, seccomp.NUMBERS[machine]["socket"], family)
    if family in (1, 2, 10, 16):
        assert result == ALLOW
    else:
        assert refusal(result) == errno.EAFNOSUPPORT


@pytest.mark.parametrize("machine", MACHINES)
def test_terminal_injection_is_refused_and_other_requests_pass(machine: str) -> None:
    program = seccomp.build_filter(machine=machine)
    number = seccomp.NUMBERS[machine]["ioctl"]
    assert [refusal(answer(program, machine, number, 0, code)) for code in (0x5412, 0x541C)] == [errno.EPERM] * 2
    assert answer(program, machine, number, 0, 0x5401) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_fake_root_only_pretends(machine: str) -> None:
    numbers = seccomp.NUMBERS[machine]
    real, fake = (seccomp.build_filter(machine=machine, fake_root=value) for value in (False, True))
    for name in ("fchownat", "setresuid", "setgroups", "capset"):
        assert answer(real, machine, numbers[name]) == ALLOW
        assert refusal(answer(fake, machine, numbers[name])) == 0
    assert refusal(answer(fake, machine, numbers["mknodat"], 0, 0, 0o020666)) == 0
    assert refusal(answer(fake, machine, numbers["mknodat"], 0, 0, 0o060666)) == 0
    assert answer(fake, machine, numbers["mknodat"], 0, 0, 0o010666) == ALLOW  # a FIFO is real


@pytest.mark.parametrize("machine", MACHINES)
def test_processors_can_be_pinned(machine: str) -> None:
    number = seccomp.NUMBERS[machine]["sched_setaffinity"]
    assert answer(seccomp.build_filter(machine=machine), machine, number) == ALLOW
    assert refusal(answer(seccomp.build_filter(machine=machine, pin_cpus=True), machine, number)) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_processor_end_the_process(machine: str) -> None:
    other = MACHINES[1 - MACHINES.index(machine)]
    assert answer(seccomp.build_filter(machine=machine), other, 0) == KILL


def test_the_second_set_of_numbers_of_x86_does_not_exist() -> None:
    program = seccomp.build_filter(machine="x86_64")
    assert refusal(answer(program, "x86_64", 0x40000000 | 41, 40)) == errno.ENOSYS
