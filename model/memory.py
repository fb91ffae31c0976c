"""How a process of ours holds its memory."""

from __future__ import annotations

import ctypes
import sys

_M_MMAP_THRESHOLD = -3  # of malloc.h


def give_memory_back_at_once() -> None:
    """glibc learns to keep what large tensors free, up to as much again as a command ever uses.

    For commands only: a library has no say in how its caller's process holds memory.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 4 * 2**20)
