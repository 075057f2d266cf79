"""What the journal says of past nights and changes, without a name: verdicts, what went wrong, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.history import Incident, PastChange, PastEvents, PastNight, PastRun, PastVm
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.bundle.pseudonyms import NameKind, Pseudonyms
from gpuops.report.bundle.words import COMMANDS, STEPS
from gpuops.report.bundle.world_vms import moment

_BECAME: Final = ("failed", "outcome unknown", "cut off", "given up")


class PastWriter:
    """Writes the past of one vCenter."""

    def __init__(self, inventory: Inventory, catalog: Catalog, names: Pseudonyms) -> None:
        self._catalog = catalog
        self._names = names
        self._hosts = frozenset(host.name for host in inventory.hosts.values())

    def document(self, found: PastEvents) -> dict[str, Any]:
        """Nights and changes, newest first."""
        return {
            "nights": [self._night(night) for night in found.nights],
            "changes": [self._change(change) for change in found.changes],
            "left_off": found.left_off,
        }

    def _night(self, night: PastNight) -> dict[str, Any]:
        return {
            "night": self._names.of(NameKind.RUN, night.id),
            "begins": moment(night.begins),
            "back_by": moment(night.back_by),
            "policy": None if night.policy is None else self._names.of(NameKind.POLICY, night.policy),
            "outcome": night.outcome.value,
            "by_markers": night.by_markers,
            "runs": [self._run(run) for run in night.runs],
            "vms": [self._vm(vm) for vm in night.vms],
            "incidents": self._incidents(night.incidents),
        }

    def _change(self, change: PastChange) -> dict[str, Any]:
        return {
            "verb": self._command(change.verb),
            "outcome": change.outcome.value,
            "run": self._run(change.run),
            "subjects": [self._subject(name) for name in change.subjects],
            "incidents": self._incidents(change.incidents),
        }

    def _run(self, run: PastRun) -> dict[str, Any]:
        return {
            "run": self._names.of(NameKind.RUN, run.id),
            "kind": self._command(run.kind),
            "begins": moment(run.begins),
            "ends": moment(run.ends),
            "cut_off": run.cut_off,
        }

    def _vm(self, vm: PastVm) -> dict[str, Any]:
        return {
            "moid": self._names.ref(vm.ref),
            "vm": self._names.of(NameKind.VM, vm.name),
            "role": vm.role.value,
            "profiles": [self._profile(name) for name in vm.profiles],
            "taken": vm.taken,
            "back": vm.back,
            "given_up": vm.given_up,
            "steps": [
                {
                    "step": self._step(step.what),
                    "begins": moment(step.begins),
                    "ends": moment(step.ends),
                    "done": step.done,
                }
                for step in vm.steps
            ],
        }

    def _incidents(self, incidents: Iterable[Incident]) -> list[Mapping[str, Any]]:
        return [
            {
                "at": moment(incident.at),
                "about": self._subject(incident.about),
                "step": next((word for word in STEPS if incident.what.startswith(word)), None),
                "became": next((word for word in _BECAME if incident.what.endswith(word)), None),
                "reason": self._names.of(NameKind.REASON, incident.reason) if incident.reason else None,
            }
            for incident in incidents
        ]

    def _subject(self, name: str) -> str:
        """A VM, a host, or the kind of a run."""
        if name in COMMANDS:
            return name
        return self._names.of(NameKind.HOST if name in self._hosts else NameKind.VM, name)

    def _command(self, verb: str) -> str:
        return verb if verb in COMMANDS else self._names.of(NameKind.TEXT, verb)

    def _step(self, what: str) -> str:
        return what if what in STEPS else self._names.of(NameKind.TEXT, what)

    def _profile(self, name: str) -> str:
        known = self._catalog.profile(name)
        return self._names.of(NameKind.PROFILE, name) if known is None else known.name
