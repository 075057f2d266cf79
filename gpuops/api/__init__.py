"""The functions of gpuops for programs: connect to a vCenter, run a request, rotate. `cli` and `tasks` call them alone.

    with connect(where) as site:
        report = run(Attach(vm="ml-07", profile="a100-3-20c"), site, apply=False)

`apply=False` (--dry-run, Ansible's check mode) stops before anything is carried out. `consent` is called with the
report so far just before anything is changed; what it raises ends the run with nothing changed.
"""

from __future__ import annotations

from gpuops.api.connection import connect, connect_checked, offline
from gpuops.api.hosts import (
    change,
    change_abandon,
    change_abort,
    change_resume,
    change_status,
    configure,
    doctor,
    mig_show,
    roles,
    scheduler_show,
)
from gpuops.api.rotation import (
    rotate_abandon,
    rotate_audit_verify,
    rotate_day,
    rotate_init,
    rotate_night,
    rotate_plan,
    rotate_restore,
    rotate_resume,
    rotate_skip_next,
    rotate_status,
    rotate_unlock,
)
from gpuops.api.vms import capacity, clone, defrag, defrag_execute, foresee, place, run
from gpuops.execute.site import Consent, Site, catalog_of
from gpuops.execute.site.host_shell import HostShell

__all__ = [
    "Consent",
    "HostShell",
    "Site",
    "capacity",
    "catalog_of",
    "change",
    "change_abandon",
    "change_abort",
    "change_resume",
    "change_status",
    "clone",
    "configure",
    "connect",
    "connect_checked",
    "defrag",
    "defrag_execute",
    "doctor",
    "foresee",
    "mig_show",
    "offline",
    "place",
    "roles",
    "rotate_abandon",
    "rotate_audit_verify",
    "rotate_day",
    "rotate_init",
    "rotate_night",
    "rotate_plan",
    "rotate_restore",
    "rotate_resume",
    "rotate_skip_next",
    "rotate_status",
    "rotate_unlock",
    "run",
    "scheduler_show",
]
