"""Who hears Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens.interrupts import deaf_children


def is_blocked(pid: int, number: int) -> bool:
    """By the mask of the main thread, a bit per signal from 1 (proc(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    return bool(mask >> (number - 1) & 1)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for masks in /proc")
def test_only_processes_started_in_the_block_are_deaf() -> None:
    with deaf_children():
        deaf = sleeper()
    heeding = sleeper()
    try:
        assert is_blocked(deaf.pid, signal.SIGINT)
        assert not is_blocked(deaf.pid, signal.SIGTERM)
        assert not is_blocked(heeding.pid, signal.SIGINT)
        assert not is_blocked(os.getpid(), signal.SIGINT)
    finally:
        for process in (deaf, heeding):
            process.kill()
            process.wait()


def test_an_interrupt_in_the_block_is_not_lost() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), deaf_children():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
