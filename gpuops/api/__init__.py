"""The functions of gpuops for programs: connect to a vCenter, run a request, rotate. `cli` and `tasks` call them alone.

    with connect(where) as site:
        report = run(Attach(vm="ml-07", profile="a100-3-20c"), site, apply=False)

`apply=False` (--dry-run, Ansible's check mode) stops before anything is carried out. `consent` is called with the
report so far just before anything is changed; what it raises ends the run with nothing changed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gpuops.api.broker import broker_show
from gpuops.api.connection import connect, connect_checked, offline
from gpuops.api.guests import guest_check
from gpuops.api.hosts import doctor, mig_show, mode_show, readiness, roles, scheduler_show
from gpuops.api.login import login_test
from gpuops.api.vms import capacity, capacity_forecast, clone, defrag, foresee, idle, idle_replay, place, run, size
from gpuops.execute.site import Consent, Site, catalog_of
from gpuops.execute.site.host_shell import HostShell

if TYPE_CHECKING:
    from gpuops.api.noticed import (
        change,
        change_abort,
        change_resume,
        defrag_execute,
        notify_flush,
        notify_test,
        rotate_clear_marker,
        rotate_day,
        rotate_night,
        rotate_restore,
        rotate_resume,
    )
    from gpuops.catalog.assumptions import assumptions
    from gpuops.execute.change.abandon import abandon as change_abandon
    from gpuops.execute.change.host_settings import configure
    from gpuops.execute.change.rolling_change import status as change_status
    from gpuops.execute.journal.audit import verify as rotate_audit_verify
    from gpuops.execute.past.history import history, past_night
    from gpuops.execute.past.overdue_vcenters import overdue_vcenters
    from gpuops.execute.rotation.abandon_vm import abandon_vm as rotate_abandon
    from gpuops.execute.rotation.adopt import adopt as rotate_adopt
    from gpuops.execute.rotation.installed_timers import timers as rotate_timers
    from gpuops.execute.rotation.next_night import preview as rotate_plan
    from gpuops.execute.rotation.next_night import skip_next as rotate_skip_next
    from gpuops.execute.rotation.queue_look import queue_look
    from gpuops.execute.rotation.setup import set_up as rotate_init
    from gpuops.execute.rotation.status import status as rotate_status
    from gpuops.execute.rotation.unlock import unlock as rotate_unlock
    from gpuops.execute.rotation.watch import watch_for_ever as rotate_watch
    from gpuops.execute.rotation.watch import watch_once as rotate_watch_look
    from gpuops.extras.clusters.creating import create as cluster_create
    from gpuops.extras.clusters.removing import delete as cluster_delete
    from gpuops.extras.clusters.showing import show as cluster_show
    from gpuops.extras.lending.running import create as pool_create
    from gpuops.extras.lending.running import give_back as pool_return
    from gpuops.extras.lending.running import lend as pool_lend
    from gpuops.extras.lending.running import reclaim as pool_reclaim
    from gpuops.extras.lending.running import show as pool_show
    from gpuops.extras.observe.current_use import current_use
    from gpuops.extras.observe.observing import observe, observe_for_ever
    from gpuops.extras.observe.store_reads import stored as stored_measurements
    from gpuops.extras.sizing.what_if.comparing import what_if
    from gpuops.extras.web.reporting import fleet_report

__all__ = [
    "Consent",
    "HostShell",
    "Site",
    "assumptions",
    "broker_show",
    "capacity",
    "capacity_forecast",
    "catalog_of",
    "change",
    "change_abandon",
    "change_abort",
    "change_resume",
    "change_status",
    "clone",
    "cluster_create",
    "cluster_delete",
    "cluster_show",
    "configure",
    "connect",
    "connect_checked",
    "current_use",
    "defrag",
    "defrag_execute",
    "doctor",
    "fleet_report",
    "foresee",
    "guest_check",
    "history",
    "idle",
    "idle_replay",
    "login_test",
    "mig_show",
    "mode_show",
    "notify_flush",
    "notify_test",
    "observe",
    "observe_for_ever",
    "offline",
    "overdue_vcenters",
    "past_night",
    "place",
    "pool_create",
    "pool_lend",
    "pool_reclaim",
    "pool_return",
    "pool_show",
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
    "size",
    "stored_measurements",
    "what_if",
]

_AT_FIRST_USE: Final = {
    "assumptions": "catalog.assumptions.assumptions",
    "change": "api.noticed.change",
    "change_abandon": "execute.change.abandon.abandon",
    "change_abort": "api.noticed.change_abort",
    "change_resume": "api.noticed.change_resume",
    "change_status": "execute.change.rolling_change.status",
    "cluster_create": "execute.cluster.creating.create",
    "cluster_delete": "execute.cluster.removing.delete",
    "cluster_show": "execute.cluster.showing.show",
    "configure": "execute.change.host_settings.configure",
    "current_use": "execute.measurements.current_use.current_use",
    "defrag_execute": "api.noticed.defrag_execute",
    "fleet_report": "api.reporting.fleet_report",
    "history": "execute.past.history.history",
    "notify_flush": "api.noticed.notify_flush",
    "notify_test": "api.noticed.notify_test",
    "observe": "execute.measurements.observing.observe",
    "observe_for_ever": "execute.measurements.observing.observe_for_ever",
    "overdue_vcenters": "execute.past.overdue_vcenters.overdue_vcenters",
    "past_night": "execute.past.history.past_night",
    "pool_create": "execute.pool.running.create",
    "pool_lend": "execute.pool.running.lend",
    "pool_reclaim": "execute.pool.running.reclaim",
    "pool_return": "execute.pool.running.give_back",
    "pool_show": "execute.pool.running.show",
    "queue_look": "execute.rotation.queue_look.queue_look",
    "rotate_abandon": "execute.rotation.abandon_vm.abandon_vm",
    "rotate_adopt": "execute.rotation.adopt.adopt",
    "rotate_audit_verify": "execute.journal.audit.verify",
    "rotate_day": "api.noticed.rotate_day",
    "rotate_init": "execute.rotation.setup.set_up",
    "rotate_night": "api.noticed.rotate_night",
    "rotate_plan": "execute.rotation.next_night.preview",
    "rotate_clear_marker": "api.noticed.rotate_clear_marker",
    "rotate_restore": "api.noticed.rotate_restore",
    "rotate_resume": "api.noticed.rotate_resume",
    "rotate_skip_next": "execute.rotation.next_night.skip_next",
    "rotate_status": "execute.rotation.status.status",
    "rotate_timers": "execute.rotation.installed_timers.timers",
    "rotate_unlock": "execute.rotation.unlock.unlock",
    "rotate_watch": "execute.rotation.watch.watch_for_ever",
    "rotate_watch_look": "execute.rotation.watch.watch_once",
    "stored_measurements": "execute.measurements.store_reads.stored",
    "what_if": "api.comparing.what_if",
}
"""Functions that are loaded when they are called: those of `execute` as they are, and the runs with their notices."""

if not TYPE_CHECKING:  # a type checker reads the imports above, and would believe any name here

    def __getattr__(name: str) -> Any:
        if name not in _AT_FIRST_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, function = _AT_FIRST_USE[name].rpartition(".")
        return getattr(import_module(f"gpuops.{module}"), function)
