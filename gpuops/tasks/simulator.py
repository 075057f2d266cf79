"""Simulator: a task that keeps a simulated vCenter running, so that a playbook has something to be tried on."""

from __future__ import annotations

from pathlib import Path

from gpuops.tasks.answer import Answer


def sim_vcenter(
    ready_file: str,
    *,
    started: bool,
    scenario: str = "lab",
    state_file: str | None = None,
    port: int = 0,
    clock: str = "virtual",
    seed: int = 0,
    apply: bool,
) -> Answer:
    """Starts one, or stops it. One that runs already is left as it is, whatever its scenario. Raises UsageError."""
    from gpuops.sim.wire import serving

    path = Path(ready_file).expanduser().absolute()
    running = serving.serving(path)
    changed = started is (running is None)
    if changed and apply:
        if running is not None:
            serving.stop(path, running)
            running = None
        else:
            state = ["--state", str(Path(state_file).expanduser().absolute())] if state_file else []
            options = ["--scenario", scenario, "--port", str(port), "--clock", clock, "--seed", str(seed), *state]
            running = serving.start(path, options)
    return Answer(
        {
            "changed": changed,
            "hostname": f"sim@{path}" if started else None,
            "url": running.url if running is not None and started else None,
        }
    )
