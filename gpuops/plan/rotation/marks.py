"""The request `RotateMark`: set or clear the owner's mark, or the opt-out, of a policy on its desktops.

Both are custom attributes that people set on VMs; `rotate night` only reads them. An attribute with another value
belongs to another owner: gpuops neither overwrites nor clears it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.rotation_policy import Policy, Pool
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Choice, Plan, Wave, refuse
from gpuops.plan.core.rejection import Rejection
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
        self._check_options()
        desktops, refusals = self._desktops(inventory)
        steps: list[SetAttribute] = []
        unchanged: list[Choice] = []
        for pool, vm in desktops:
            mark = self.policy.opt_out if self.opt_out else pool.owner
            refusal = _refuse_mark(pool, mark)
            if mark is None or mark.attribute is None or refusal is not None:
                refusals += [refusal] if refusal is not None else []
                continue
            if mark.value is not None and self.value not in (None, mark.value):
                hint = f"remove --value, or use --value {mark.value}"
                raise UsageError(f"--value {self.value!r}: the policy asks for {mark}", hint=hint)
            current_value = vm.attributes.get(mark.attribute, "")
            if self._is_another_value(vm, mark, mark.attribute):
                # Someone else set it. That is an error only for a desktop that the user named.
                reason = f"attribute {mark.attribute} = {current_value} is left alone"
                if vm.ref in self._named_refs(inventory):
                    refusals.append(
                        Rejection(
                            vm.name,
                            reason,
                            hint=f"if that value is wrong, clear {mark.attribute} in the vSphere Client",
                        )
                    )
                else:
                    unchanged.append(Choice(vm.name, chosen=False, reason=reason))
            elif bool(current_value) is not self.clear:  # it is set, or cleared, already
                reason = f"{mark} is not set" if self.clear else f"{mark} is set already"
                unchanged.append(Choice(vm.name, chosen=False, reason=reason))
            else:
                new_value = "" if self.clear else mark.value or self.value or ANY_VALUE
                steps.append(SetAttribute(vm.ref, mark.attribute, new_value))
        if refusals:
            return refuse(*refusals, withheld=tuple(steps))
        title = f"{'clear' if self.clear else 'set'} the {'opt-out' if self.opt_out else 'mark of owners'}"
        names_by_reason: dict[str, list[str]] = {}
        for choice in unchanged:
            names_by_reason.setdefault(choice.reason, []).append(choice.subject)
        return Plan(
            waves=(Wave(title, tuple(steps)),) if steps else (),
            because=tuple(
                f"{names[0] if len(names) == 1 else f'{len(names)} desktops'}: {reason}"
                for reason, names in names_by_reason.items()
            ),
            choices=tuple(unchanged),
        )

    def _check_options(self) -> None:
        """Raise UsageError if the options select no desktops, name an unknown pool, or have an empty value."""
        if not (self.vm or self.pool is not None or self.folder is not None):
            raise UsageError("no desktops are selected", hint="add --vm NAME, --pool NAME or --folder FOLDER")
        names = [pool.name for pool in self.policy.pools]
        if self.pool is not None and self.pool not in names:
            raise UsageError(f"there is no pool {self.pool!r}", hint=f"pools of the policy: {', '.join(names)}")
        if self.value is not None and not self.value.strip():
            raise UsageError("--value is empty", hint="--undo clears the attribute")

    def _desktops(self, inventory: Inventory) -> tuple[list[tuple[Pool, Vm]], list[Rejection]]:
        """Return the selected desktops with their pools, sorted by name, and a refusal for each named VM that is not
        among them.

        A desktop is selected if it fits each of `vm`, `pool` and `folder` that is given. Raises UsageError if none is
        selected, VmNotFound, VmAmbiguous.
        """
        named = self._named_refs(inventory)
        selector = None if self.folder is None else Selector(folder=self.folder)
        pool_of: dict[str, Pool] = {}
        selected: list[tuple[Pool, Vm]] = []
        for vm in inventory.vms.values():
            pool = None if vm.template else self.policy.pool_of(vm)
            if pool is None:
                continue
            pool_of[vm.ref] = pool
            is_in_scope = self.pool in (None, pool.name) and (selector is None or selector.selects(vm))
            if is_in_scope and (not self.vm or vm.ref in named):
                selected.append((pool, vm))
        selected_refs = {vm.ref for _, vm in selected}
        in_no_pool = f"is in no pool of policy {self.policy.name}"
        refusals = [
            Rejection(inventory.vms[ref].name, in_no_pool, hint=_IN_NO_POOL) for ref in named if ref not in pool_of
        ]
        for ref in named if selected else ():
            if ref in pool_of and ref not in selected_refs:
                place = f"pool {self.pool}" if self.pool not in (None, pool_of[ref].name) else f"folder {self.folder}"
                hint = "remove --pool and --folder, or this --vm"
                refusals.append(Rejection(inventory.vms[ref].name, f"is not in {place}", hint=hint))
        if not selected and not refusals:
            places = [f"of pool {self.pool}"] if self.pool is not None else []
            places += [f"in folder {self.folder}"] if self.folder is not None else []
            raise UsageError(f"policy {self.policy.name} has no desktop {' '.join(places)}", hint=_IN_NO_POOL)
        return sorted(selected, key=lambda desktop: (desktop[1].name, desktop[1].ref)), refusals

    def _named_refs(self, inventory: Inventory) -> frozenset[str]:
        return frozenset(inventory.find_vm(name).ref for name in self.vm)

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
