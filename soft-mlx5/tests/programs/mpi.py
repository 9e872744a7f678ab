#!/usr/bin/env python3
"""An MPI program: two ranks exchange messages that are large enough to be read from registered memory, each twice from
the same memory. It calls MPICH by its ABI, so that no headers are needed."""

import ctypes
import sys

BYTES = 1 << 20
COMM_WORLD = 0x44000000
BYTE = 0x4C00010D
STATUS_IGNORE = ctypes.c_void_p(1)

mpi = ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL)


def call(name, *arguments):
    error = getattr(mpi, name)(*arguments)
    if error:
        sys.exit(f"{name}: error {error}")


def number(name):
    value = ctypes.c_int()
    call(name, COMM_WORLD, ctypes.byref(value))
    return value.value


call("MPI_Init", None, None)
rank, ranks = number("MPI_Comm_rank"), number("MPI_Comm_size")
if ranks != 2:
    sys.exit(f"{ranks} ranks, not 2")
out, into = (ctypes.create_string_buffer(BYTES) for _ in range(2))
for tag in range(20):
    ctypes.memset(out, 16 * rank + tag % 16, BYTES)
    peer = 1 - rank
    call("MPI_Sendrecv", out, BYTES, BYTE, peer, tag, into, BYTES, BYTE, peer, tag, COMM_WORLD, STATUS_IGNORE)
    if into.raw != bytes([16 * peer + tag % 16]) * BYTES:
        sys.exit(f"rank {rank}: message {tag} is wrong")
call("MPI_Finalize")
print(f"rank {rank}: 20 messages of {BYTES} bytes")
