"""A task that starts or stops a simulated vCenter to try playbooks on. The module `sim_vcenter` calls it."""

from __future__ import annotations

import os
from pathlib import Path

from gpuops.tasks.result import TaskResult


def sim_vcenter(
    ready_file: str,
    *,
    started: bool,
    scenario: str = "lab",
    state_file: str | None = None,
    port: int = 0,
    clock: str | None = None,
    seed: int = 0,
    apply: bool,
) -> TaskResult:
    """Starts one, or stops it. One that runs already is left as it is, whatever its scenario. Raises UsageError.

    Without `clock` the environment says what moves its time, as for the command line.
    """
    from gpuops.config.vcenter.sources import sim_clock
    from gpuops.sim.wire import server_process

    path = Path(ready_file).expanduser().absolute()
    running = server_process.running_server(path)
    changed = started is (running is None)
    if changed and apply:
        if running is not None:
            server_process.stop(path, running)
            running = None
        else:
            state = ["--state", str(Path(state_file).expanduser().absolute())] if state_file else []
            options = ["--scenario", scenario, "--port", str(port), "--seed", str(seed), *state]
            running = server_process.start(path, [*options, "--clock", clock or sim_clock(os.environ)])
    return TaskResult(
        {
            "changed": changed,
            "hostname": f"sim@{path}" if started else None,
            "url": running.url if running is not None and started else None,
        }
    )
