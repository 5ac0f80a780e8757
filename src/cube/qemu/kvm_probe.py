"""Whether KVM runs code on the processor: a guest of one page counts down from 100,000 and halts.

A device `/dev/kvm` proves little. Inside some virtual machines the kernel emulates each instruction of a guest, and no
operating system starts in reasonable time. This file is run as a program, with the standard library only; exit code 0
is a yes.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import time
from typing import Final

_CREATE_VM: Final = 0xAE01
_VCPU_SIZE: Final = 0xAE04
_CREATE_VCPU: Final = 0xAE41
_SET_MEMORY: Final = 0x4020AE46
_RUN: Final = 0xAE80
_SET_REGISTERS: Final = 0x4090AE82
_GET_SEGMENTS: Final = 0x8138AE83
_SET_SEGMENTS: Final = 0x4138AE84
_EXIT_HLT: Final = 5

_PROGRAM: Final = bytes.fromhex("66b9a0860100 6649 75fc f4")
"""mov ecx, 100000; again: dec ecx; jnz again; hlt"""
_PLACE: Final = 0x1000
_LIMIT_SEC: Final = 0.02
"""Of processor time: a processor needs less than 0.001, an emulation more than 0.05."""


def main() -> int:
    kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    machine = fcntl.ioctl(kvm, _CREATE_VM, 0)
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[: len(_PROGRAM)] = _PROGRAM
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(machine, _SET_MEMORY, struct.pack("<IIQQQ", 0, 0, _PLACE, mmap.PAGESIZE, address))
    vcpu = fcntl.ioctl(machine, _CREATE_VCPU, 0)
    state = mmap.mmap(vcpu, fcntl.ioctl(kvm, _VCPU_SIZE, 0))
    segments = bytearray(312)
    fcntl.ioctl(vcpu, _GET_SEGMENTS, segments)
    struct.pack_into("<QIH", segments, 0, 0, 0xFFFF, 0)  # the code segment: base, limit, selector
    fcntl.ioctl(vcpu, _SET_SEGMENTS, bytes(segments))
    registers = [*[0] * 16, _PLACE, 2]  # the last are the place of the next instruction, and the flags
    fcntl.ioctl(vcpu, _SET_REGISTERS, struct.pack("<18Q", *registers))
    before = time.process_time()
    fcntl.ioctl(vcpu, _RUN, 0)
    quick = time.process_time() - before < _LIMIT_SEC
    return 0 if quick and struct.unpack_from("<I", state, 8)[0] == _EXIT_HLT else 1


if __name__ == "__main__":
    sys.exit(main())
