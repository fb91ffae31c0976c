"""The most memory that a call holds, in this very process (Linux, glibc)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path


def peak_of(call: Callable[[], object]) -> float:
    """Megabytes that `call` held at most beyond what the process held before it."""
    gc.collect()
    # What was freed goes back first, or the call would use it again without being seen.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's mark of the peak starts anew
    before = _high_water_mark()
    call()
    return _high_water_mark() - before


def _high_water_mark() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
