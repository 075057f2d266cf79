"""A task that starts or stops a simulated vCenter to try playbooks on. The module `sim_vcenter` calls it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpuops.config.vcenter.sources import sim_clock
from gpuops.sim.wire import sim_client
from gpuops.tasks.perform import TaskResult


def sim_vcenter(
    ready_file: str, state: str, state_file: str | None, clock: str | None, *, apply: bool, **options: Any
) -> TaskResult:
    """Start or stop a simulated vCenter. One that runs already is not changed, even if its scenario is another one.

    `options` are those of `gpuops sim serve`; without `clock` its default or the environment decides.
    Raises UsageError.
    """
    path, should_run = Path(ready_file).expanduser().absolute(), state == "started"
    server = sim_client.running_server(path)
    changed = should_run is (server is None)  # it must be started and does not run, or be stopped and runs
    if changed and apply:
        if server is not None:
            sim_client.stop(path, server)
            server = None  # so that the result has no URL
        else:
            options["state"] = str(Path(state_file).expanduser().absolute()) if state_file else None
            options["clock"] = clock or sim_clock(os.environ)
            option_words = [[f"--{name}", str(setting)] for name, setting in options.items() if setting is not None]
            server = sim_client.start(path, [word for words in option_words for word in words])
    url = server.url if server is not None and should_run else None
    return TaskResult({"changed": changed, "hostname": f"sim@{path}" if should_run else None, "url": url})
