"""Ending a training run early and cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator

STEPS_BETWEEN_AGREEMENTS = 10


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the program as usual."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, on_signal)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def all_stop(accelerator: Accelerator, stop: threading.Event, step: int) -> bool:
    """Whether to stop, with one answer in all processes: if one left, the others would wait."""
    if accelerator.num_processes == 1:
        return stop.is_set()
    if step % STEPS_BETWEEN_AGREEMENTS:
        return False
    flag = torch.tensor(float(stop.is_set()), device=accelerator.device)
    return bool(accelerator.gather(flag).any())  # type: ignore[union-attr]  (a tensor, for a tensor)
