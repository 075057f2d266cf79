"""The request `RotateMark`: set or clear the owner's mark, or the opt-out, of a policy on its desktops.

Both are custom attributes that people set on VMs; `rotate night` only reads them. An attribute with another value
belongs to another owner: gpuops neither overwrites nor clears it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.rotation import Policy, Pool
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Choice, Plan, Rejection, Wave, refuse
from gpuops.plan.core.steps import SetAttribute

ANY_VALUE: Final = "true"
"""The value that is set where the policy accepts any."""
_IN_NO_POOL: Final = "gpuops idle --policy FILE lists the desktops of its pools"


@dataclass(frozen=True, slots=True)
class RotateMark:
    """Set or clear one mark of the policy on its desktops: those named, those of a pool, or those in a folder."""

    run_kind: ClassVar[str] = "rotatemark"

    policy: Policy
    opt_out: bool = False
    """Whether the mark is the opt-out; otherwise it is the owner's mark."""
    vm: tuple[str, ...] = ()
    pool: str | None = None
    folder: str | None = None
    value: str | None = None
    """The attribute's value where the policy accepts any."""
    clear: bool = False

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        return ()

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the plan that sets or clears one attribute of each selected desktop.

        Raises UsageError if no desktop is selected, for an unknown pool, and for a value that the policy does not
        accept; VmNotFound and VmAmbiguous for the names in `vm`.
        """
        self._check()
        desktops, refusals = self._desktops(inventory)
        steps: list[SetAttribute] = []
        unchanged: list[Choice] = []
        for pool, vm in desktops:
            mark = self.policy.opt_out if self.opt_out else pool.owner
            refusal = _refuse_mark(pool, mark)
            if mark is None or mark.attribute is None or refusal is not None:
                refusals += [refusal] if refusal is not None else []
                continue
            accepted = self._value_for(mark)
            reason = self._reason_to_leave(vm, mark, mark.attribute)
            if reason is None:
                steps.append(SetAttribute(vm.ref, mark.attribute, "" if self.clear else accepted))
            elif self._is_another_value(vm, mark, mark.attribute) and vm.ref in self._named_refs(inventory):
                refusals.append(Rejection(vm.name, reason, hint="clear it in the vSphere Client if it is wrong"))
            else:
                unchanged.append(Choice(vm.name, chosen=False, reason=reason))
        if refusals:
            return refuse(*refusals, withheld=tuple(steps))
        title = f"{'clear' if self.clear else 'set'} the {'opt-out' if self.opt_out else 'mark of owners'}"
        return Plan(
            waves=(Wave(title, tuple(steps)),) if steps else (),
            because=tuple(_summarize_reasons(unchanged)),
            choices=tuple(unchanged),
        )

    def _check(self) -> None:
        if not (self.vm or self.pool is not None or self.folder is not None):
            raise UsageError("no desktops are selected", hint="add --vm NAME, --pool NAME or --folder FOLDER")
        names = [pool.name for pool in self.policy.pools]
        if self.pool is not None and self.pool not in names:
            raise UsageError(f"there is no pool {self.pool!r}", hint=f"pools of the policy: {', '.join(names)}")
        if self.value is not None and not self.value.strip():
            raise UsageError("--value is empty", hint="--undo clears the attribute")

    def _desktops(self, inventory: Inventory) -> tuple[list[tuple[Pool, Vm]], list[Rejection]]:
        """Return the selected desktops with their pools, sorted by name, and a refusal for each named VM in no pool.

        A desktop is selected if it fits each of `vm`, `pool` and `folder` that is given. Raises UsageError if none is
        selected, VmNotFound, VmAmbiguous.
        """
        named = self._named_refs(inventory)
        pooled = {
            vm.ref: (pool, vm)
            for vm in inventory.vms.values()
            if not vm.template and (pool := self.policy.pool_of(vm)) is not None
        }
        refusals = [
            Rejection(inventory.vms[ref].name, f"is in no pool of policy {self.policy.name}", hint=_IN_NO_POOL)
            for ref in named
            if ref not in pooled
        ]
        selector = None if self.folder is None else Selector(folder=self.folder)
        chosen = [
            (pool, vm)
            for ref, (pool, vm) in pooled.items()
            if (not self.vm or ref in named)
            and self.pool in (None, pool.name)
            and (selector is None or selector.selects(vm))
        ]
        selected = {vm.ref for _, vm in chosen}
        if chosen:
            refusals += [
                Rejection(
                    inventory.vms[ref].name,
                    "is not in that pool" if self.pool not in (None, pooled[ref][0].name) else "is not in that folder",
                    hint="remove --pool and --folder, or this --vm",
                )
                for ref in named
                if ref in pooled and ref not in selected
            ]
        if not chosen and not refusals:
            places = [f"of pool {self.pool}"] if self.pool is not None else []
            places += [f"in folder {self.folder}"] if self.folder is not None else []
            raise UsageError(f"policy {self.policy.name} has no desktop {' '.join(places)}", hint=_IN_NO_POOL)
        return sorted(chosen, key=lambda desktop: (desktop[1].name, desktop[1].ref)), refusals

    def _named_refs(self, inventory: Inventory) -> frozenset[str]:
        return frozenset(inventory.find_vm(name).ref for name in self.vm)

    def _value_for(self, mark: Mark) -> str:
        """Return the value to set. Raises UsageError if the policy accepts only another one."""
        if mark.value is not None and self.value not in (None, mark.value):
            raise UsageError(
                f"--value {self.value!r}: the policy asks for {mark}",
                hint=f"remove --value, or use --value {mark.value}",
            )
        return mark.value or self.value or ANY_VALUE

    def _reason_to_leave(self, vm: Vm, mark: Mark, attribute: str) -> str | None:
        present = vm.attributes.get(attribute, "")
        if self._is_another_value(vm, mark, attribute):
            return f"attribute {attribute} = {present} is left alone"
        if self.clear:
            return None if present else f"{mark} is not set"
        return f"{mark} is set already" if present else None

    def _is_another_value(self, vm: Vm, mark: Mark, attribute: str) -> bool:
        """Return whether the attribute has another value than the one that this request sets or clears."""
        present, expected = vm.attributes.get(attribute, ""), mark.value or (self.value if self.clear else None)
        return bool(present) and expected is not None and present != expected


def _refuse_mark(pool: Pool, mark: Mark | None) -> Rejection | None:
    """Return the refusal of a mark that gpuops cannot set, or None."""
    if mark is None:
        hint = "its desktops need no mark; --opt-out keeps a desktop out of nights"
        return Rejection(f"pool {pool.name}", "has `owner: none`", hint=hint)
    if mark.tag is not None:
        where = "in the vSphere Client (Tags & Custom Attributes, Assign Tag)"
        hint = f"assign the tag {mark.tag} to the VMs {where}, or use an attribute in the policy"
        return Rejection(f"pool {pool.name}", f"its mark is the {mark}, and gpuops only sets attributes", hint=hint)
    return None


def _summarize_reasons(unchanged: Collection[Choice]) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for choice in unchanged:
        names.setdefault(choice.reason, []).append(choice.subject)
    for reason, vms in names.items():
        yield f"{vms[0] if len(vms) == 1 else f'{len(vms)} desktops'}: {reason}"
