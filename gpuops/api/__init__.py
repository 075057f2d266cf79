"""The functions of gpuops for programs: connect to a vCenter, run a request, rotate. `cli` and `tasks` call them alone.

    with connect(where) as site:
        report = run(Attach(vm="ml-07", profile="a100-3-20c"), site, apply=False)

`apply=False` (--dry-run, Ansible's check mode) stops before anything is carried out. `consent` is called with the
report so far just before anything is changed; what it raises ends the run with nothing changed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gpuops.api.connection import connect, connect_checked, login_test, offline
from gpuops.api.first_contact import broker_show
from gpuops.api.host_checks import doctor, mig_show, mode_show, readiness, roles, scheduler_show
from gpuops.api.vms import capacity, clone, defrag, foresee, guest_check, idle, place, run
from gpuops.execute.site import Consent, Site, catalog_of
from gpuops.execute.site.host_shell import HostShell

if TYPE_CHECKING:
    from gpuops.api.noticed import (
        change,
        change_abort,
        change_resume,
        defrag_by_policy,
        defrag_execute,
        rotate_clear_marker,
        rotate_day,
        rotate_night,
        rotate_restore,
        rotate_resume,
    )
    from gpuops.catalog.catalog_files import assumptions
    from gpuops.execute.change.abandon import abandon as change_abandon
    from gpuops.execute.change.rolling_change import configure
    from gpuops.execute.change.rolling_change import status as change_status
    from gpuops.execute.journal.audit import verify as rotate_audit_verify
    from gpuops.execute.past.every_vcenter import overdue_vcenters
    from gpuops.execute.past.past_runs import history, past_night
    from gpuops.execute.rotation.installed_timers import timers as rotate_timers
    from gpuops.execute.rotation.next_night import preview as rotate_plan
    from gpuops.execute.rotation.next_night import queue_look
    from gpuops.execute.rotation.next_night import skip_next as rotate_skip_next
    from gpuops.execute.rotation.night_setup import set_up as rotate_init
    from gpuops.execute.rotation.open_nights import abandon_vm as rotate_abandon
    from gpuops.execute.rotation.open_nights import adopt as rotate_adopt
    from gpuops.execute.rotation.rotation_lock import unlock as rotate_unlock
    from gpuops.execute.rotation.status import status as rotate_status
    from gpuops.execute.rotation.watch import watch_for_ever as rotate_watch
    from gpuops.execute.rotation.watch import watch_once as rotate_watch_look

__all__ = [
    "Consent",
    "HostShell",
    "Site",
    "assumptions",
    "broker_show",
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
    "defrag_by_policy",
    "defrag_execute",
    "doctor",
    "foresee",
    "guest_check",
    "history",
    "idle",
    "login_test",
    "mig_show",
    "mode_show",
    "offline",
    "overdue_vcenters",
    "past_night",
    "place",
    "queue_look",
    "readiness",
    "roles",
    "rotate_abandon",
    "rotate_adopt",
    "rotate_audit_verify",
    "rotate_clear_marker",
    "rotate_day",
    "rotate_init",
    "rotate_night",
    "rotate_plan",
    "rotate_restore",
    "rotate_resume",
    "rotate_skip_next",
    "rotate_status",
    "rotate_timers",
    "rotate_unlock",
    "rotate_watch",
    "rotate_watch_look",
    "run",
    "scheduler_show",
]

_AT_FIRST_USE: Final = {
    "assumptions": "gpuops.catalog.catalog_files.assumptions",
    "change": "gpuops.api.noticed.change",
    "change_abandon": "gpuops.execute.change.abandon.abandon",
    "change_abort": "gpuops.api.noticed.change_abort",
    "change_resume": "gpuops.api.noticed.change_resume",
    "change_status": "gpuops.execute.change.rolling_change.status",
    "configure": "gpuops.execute.change.rolling_change.configure",
    "defrag_by_policy": "gpuops.api.noticed.defrag_by_policy",
    "defrag_execute": "gpuops.api.noticed.defrag_execute",
    "history": "gpuops.execute.past.past_runs.history",
    "overdue_vcenters": "gpuops.execute.past.every_vcenter.overdue_vcenters",
    "past_night": "gpuops.execute.past.past_runs.past_night",
    "queue_look": "gpuops.execute.rotation.next_night.queue_look",
    "rotate_abandon": "gpuops.execute.rotation.open_nights.abandon_vm",
    "rotate_adopt": "gpuops.execute.rotation.open_nights.adopt",
    "rotate_audit_verify": "gpuops.execute.journal.audit.verify",
    "rotate_day": "gpuops.api.noticed.rotate_day",
    "rotate_init": "gpuops.execute.rotation.night_setup.set_up",
    "rotate_night": "gpuops.api.noticed.rotate_night",
    "rotate_plan": "gpuops.execute.rotation.next_night.preview",
    "rotate_clear_marker": "gpuops.api.noticed.rotate_clear_marker",
    "rotate_restore": "gpuops.api.noticed.rotate_restore",
    "rotate_resume": "gpuops.api.noticed.rotate_resume",
    "rotate_skip_next": "gpuops.execute.rotation.next_night.skip_next",
    "rotate_status": "gpuops.execute.rotation.status.status",
    "rotate_timers": "gpuops.execute.rotation.installed_timers.timers",
    "rotate_unlock": "gpuops.execute.rotation.rotation_lock.unlock",
    "rotate_watch": "gpuops.execute.rotation.watch.watch_for_ever",
    "rotate_watch_look": "gpuops.execute.rotation.watch.watch_once",
}
"""Functions that are loaded when they are called: those of `execute` as they are, and the runs with their notices."""

if not TYPE_CHECKING:  # a type checker reads the imports above, and would believe any name here

    def __getattr__(name: str) -> Any:
        if name not in _AT_FIRST_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, function = _AT_FIRST_USE[name].rpartition(".")
        return getattr(import_module(module), function)
