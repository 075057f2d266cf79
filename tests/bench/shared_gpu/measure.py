"""Measures how processes slow each other down that share one GPU, by how busy each keeps it alone.

    python3 measure.py PROGRAM RESULT.json [SECONDS]

`PROGRAM` is `process.cu`, built. It is started once for each of 24 processes; then so many of them work at the same
time for a few seconds, for each point. No MPS, no MIG: the driver gives time slices to the processes, as the vGPU
scheduler does under best effort to vGPUs. Needs Python alone. `SECONDS` is what all of it may take: points are in the
order of their weight, and those that no longer fit are left out, and named.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROCESSES = 24
BUSY = (0.1, 0.3, 0.5, 0.7, 0.9)
WARM_S, WINDOW_S = 0.5, 2.5
COLUMNS = ("cycles", "planned_s", "planned_burst_s", "took_s", "burst_took_s")
ASK = "name,driver_version,memory.total"
WATCH = "utilization.gpu,clocks.sm,power.draw,temperature.gpu"


@dataclass(frozen=True)
class Point:
    """So many processes, each busy so much alone. Times in milliseconds."""

    part: str
    busy: tuple[float, ...]
    """Of each process."""
    burst_ms: float = 10.0
    shape: str = "exponential"
    kernel_ms: float = 0.5
    kind: str = "compute"
    seed: int = 1
    window_s: float = WINDOW_S

    @property
    def warm_s(self) -> float:
        """Until as many wait for the GPU as later on."""
        return max(WARM_S, 1.5 * len(self.busy) * self.burst_ms / 1000)


def points() -> list[Point]:
    """All of them, the weightiest first."""
    all_points = [Point("main", (busy,) * n) for busy in BUSY for n in (1, 2, 4, 8, 16, 24)]
    for burst_ms, window_s in ((2.0, 2.0), (50.0, 4.0)):
        all_points += [
            Point("burst", (busy,) * n, burst_ms, window_s=window_s) for busy in (0.1, 0.5, 0.9) for n in (1, 2, 8, 24)
        ]
    all_points += [Point("regular", (busy,) * n, shape="regular") for busy in (0.3, 0.5, 0.7) for n in (1, 2, 4, 8, 24)]
    all_points += [Point("one kernel", (busy,) * n, kernel_ms=1e6) for busy in (0.5, 0.9) for n in (1, 2, 8, 24)]
    mixes = ((0.1, 0.9), (0.9,) + (0.1,) * 7, (0.1, 0.1, 0.3, 0.3, 0.5, 0.5, 0.7, 0.9), (0.7, 0.7) + (0.05,) * 10)
    all_points += [Point("mixed", mix, window_s=4.0) for mix in mixes]
    all_points += [Point("memory", (busy,) * n, kind="memory") for busy in (0.3, 0.7) for n in (1, 2, 8, 24)]
    all_points += [Point("quarter", (0.5,) * n, kind="quarter") for n in (1, 2, 8)]
    all_points += [Point("main", (busy,) * n, seed=2) for busy in BUSY for n in (1, 2, 4, 8, 16, 24)]
    return all_points


class Processes:
    """All that were started, each waiting for a line."""

    def __init__(self, program: str) -> None:
        pipe = subprocess.PIPE
        self._all = [subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True) for _ in range(PROCESSES)]
        for process in self._all:
            if self._answer(process) != "ready":
                raise SystemExit("a process did not get ready")

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended: {process.wait()}")
        return line.strip()

    @staticmethod
    def _ask(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def rate(self, kind: str) -> float:
        """Rounds of its kernel in a second, alone; the middle of five."""
        rates = []
        for _ in range(5):
            self._ask(self._all[0], f"rate {kind}")
            rates.append(float(self._answer(self._all[0])))
        return sorted(rates)[2]

    def run(self, point: Point, rate: float) -> list[list[float]]:
        """What each did in the window, by `COLUMNS`."""
        begin_s = time.clock_gettime(time.CLOCK_MONOTONIC) + 0.1
        used = self._all[: len(point.busy)]
        for number, (process, busy) in enumerate(zip(used, point.busy, strict=True)):
            burst_s = point.burst_ms / 1000
            think_s = burst_s * (1 - busy) / busy
            seed = point.seed * 1000 + number
            self._ask(
                process,
                f"run {begin_s:.6f} {point.warm_s} {point.window_s} {burst_s:.9f} {think_s:.9f} {point.shape} "
                f"{point.kernel_ms / 1000:.6f} {point.kind} {rate:.9g} {seed}",
            )
        return [[float(word) for word in self._answer(process).split()] for process in used]

    def end(self) -> None:
        for process in self._all:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


class Watch:
    """What nvidia-smi says of the GPU twice a second, where there is one."""

    def __init__(self) -> None:
        command = ["nvidia-smi", f"--query-gpu={WATCH}", "--format=csv,noheader,nounits", "-lms", "500"]
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            print("no nvidia-smi: the GPU is not watched", file=sys.stderr)
        self._read: list[tuple[float, list[float]]] = []
        if self._process is not None:
            threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._read.append((time.monotonic(), [float(word) for word in line.split(",")]))
            except ValueError:
                print(f"nvidia-smi: {line.strip()}", file=sys.stderr)

    def mean(self, begin_s: float, until_s: float) -> list[float]:
        readings = [values for at, values in self._read if begin_s <= at <= until_s]
        return [round(sum(column) / len(readings), 1) for column in zip(*readings, strict=True)] if readings else []

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def gpu() -> str:
    try:
        command = ["nvidia-smi", f"--query-gpu={ASK}", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        return "no GPU"


def main(program: str, result: str, seconds: float) -> None:
    began_s = time.monotonic()
    document: dict[str, Any] = {
        "gpu": gpu(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "watch": WATCH,
        "columns": COLUMNS,
        "points": [],
    }
    processes, watch = Processes(program), Watch()
    print(f"{document['gpu']}: {PROCESSES} processes ready after {time.monotonic() - began_s:.1f} s", flush=True)
    rates = {kind: processes.rate(kind) for kind in ("compute", "quarter", "memory")}
    document["rates"] = rates
    left_out = []
    alone: dict[tuple[object, ...], float] = {}
    for point in points():
        if time.monotonic() - began_s + point.warm_s + point.window_s + 2 > seconds:
            left_out.append(f"{point.part} {len(point.busy)} x {point.busy[0]}")
            continue
        from_s = time.monotonic() + 0.1 + point.warm_s
        did = processes.run(point, rates[point.kind])
        row = asdict(point) | {
            "warm_s": point.warm_s,
            "processes": did,
            "watched": watch.mean(from_s, from_s + point.window_s),
        }
        document["points"].append(row)
        _, planned_s, _, took_s, burst_took_s = (sum(column) for column in zip(*did, strict=True))
        times, busy = took_s / max(1e-9, planned_s), burst_took_s / max(1e-9, took_s)
        like = (point.busy[0], point.burst_ms, point.shape, point.kernel_ms, point.kind, point.seed)
        if len(did) == 1:
            alone[like] = times
        print(
            f"{point.part:10} {point.burst_ms:4.0f} ms seed {point.seed} {len(did):2} x {point.busy[0]:.2f}: "
            f"{times / alone.get(like, 1.0):6.2f} times; {busy:.3f} of the time in bursts; {row['watched']}",
            flush=True,
        )
        Path(result).write_text(json.dumps(document), encoding="utf-8")
    document["left_out"] = left_out
    Path(result).write_text(json.dumps(document), encoding="utf-8")
    watch.end()
    processes.end()
    print(f"{len(document['points'])} points in {time.monotonic() - began_s:.0f} s; left out: {left_out}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 1e9)
