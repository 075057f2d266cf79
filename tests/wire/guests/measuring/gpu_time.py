"""A GPU whose time guests share on loopback, as its vGPU scheduler says; and the program in a guest that asks for it.

A guest asks for so many milliseconds, thinks, and asks again. Time is handed out in slices of 2 ms, by what really
passed. Best effort: a slice to each process that asks, in turn. Equal share: to each VM that runs, in turn, if it asks
or not. `python gpu_time.py PORT THINK_MS BURST_MS ROUNDS` is the program: bursts and thoughts are the quantiles of
exponential distributions, in an order of the guest's own, so that each guest has the same work in all.
"""

from __future__ import annotations

import math
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

SLICE_S: Final = 0.002


@dataclass
class GpuTime:
    """Serves until its block is left. `running`: names of the VMs on the GPU; `equal`: whether equal share rules."""

    running: Callable[[], Sequence[str]]
    equal: Callable[[], bool]
    asked: dict[str, float] = field(default_factory=dict)
    """By VM, how many seconds it still waits for."""

    def __enter__(self) -> Self:
        self._changed = threading.Condition()
        self._ended = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        for work in (self._take, self._hand_out):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._listener.close()
        with self._changed:
            self._changed.notify_all()

    def _take(self) -> None:
        while not self._ended:
            try:
                guest, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(guest,), daemon=True).start()

    def _serve(self, guest: socket.socket) -> None:
        with guest, guest.makefile("rw", encoding="ascii") as stream:
            for line in stream:
                name, _, seconds = line.strip().partition(" ")
                with self._changed:
                    self.asked[name] = float(seconds)
                    self._changed.notify_all()
                    while not self._ended and name in self.asked:
                        self._changed.wait()
                stream.write("done\n")
                stream.flush()

    def _hand_out(self) -> None:
        turn = 0
        while not self._ended:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self.asked)
                waiting = sorted(self.asked)
            if not waiting:
                continue
            candidates = sorted(self.running()) if self.equal() else waiting
            turn += 1
            name = candidates[turn % len(candidates)]
            began = time.perf_counter()
            time.sleep(min(SLICE_S, self.asked.get(name, SLICE_S)))
            with self._changed:
                if name in self.asked:
                    self.asked[name] -= time.perf_counter() - began
                    if self.asked[name] <= 0:
                        del self.asked[name]
                        self._changed.notify_all()


def _work(port: int, think_s: float, burst_s: float, rounds: int) -> None:
    name = os.environ["GPUOPS_GUEST_NAME"]
    order = random.Random(name)
    shares = [-math.log(1 - (number + 0.5) / rounds) for number in range(rounds)]
    thoughts, bursts = order.sample(shares, rounds), order.sample(shares, rounds)
    with socket.create_connection(("127.0.0.1", port)) as gpu, gpu.makefile("rw", encoding="ascii") as stream:
        for thought, burst in zip(thoughts, bursts, strict=True):
            time.sleep(thought * think_s)
            stream.write(f"{name} {burst * burst_s}\n")
            stream.flush()
            stream.readline()
    print(f"{rounds} rounds")


if __name__ == "__main__":
    _work(int(sys.argv[1]), float(sys.argv[2]) / 1000, float(sys.argv[3]) / 1000, int(sys.argv[4]))
