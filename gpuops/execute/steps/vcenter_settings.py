"""Executes settings of the vCenter itself: custom attributes and roles. Rotations do not wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from gpuops.errors import GpuopsError, Refused
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.steps.step_executor import StepExecutor
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import RoleState, RoleWish
from gpuops.plan.core.plan import Outcome
from gpuops.plan.core.steps import DefineAttribute, SetRole, VcenterSetting


@runtime_checkable
class RolesPort(Protocol):
    """A vCenter whose roles can be read and written."""

    def roles(self, wishes: Sequence[RoleWish]) -> tuple[RoleState, ...]:
        """Return each requested role with vCenter's role of the same name."""
        ...

    def granted(self, inventory: Inventory) -> tuple[Mapping[str, frozenset[str]], str]:
        """Return object -> all privileges of this login (unreadable objects are missing), and the root folder's id."""
        ...

    def write_role(self, wish: RoleWish, op_id: str) -> None:
        """Set vCenter's role of this name to the requested one. Raises OutcomeUnknown, NoPermission."""
        ...


def roles_port(vcenter: Vcenter) -> RolesPort:
    """Return the vCenter as a port for roles. Raises Refused for a saved inventory, which has no roles."""
    if not isinstance(vcenter, RolesPort):
        raise Refused("a saved inventory has no roles", hint="use --vcenter ADDRESS in place of --inventory")
    return vcenter


class VcenterSettingExecutor(StepExecutor[VcenterSetting]):
    """Makes settings of vCenter in one run, one after another. Each call has ended when vCenter answers it."""

    error: GpuopsError | None = None
    """vCenter's error for the last request, with its hint; None if there was none."""
    _is_shown = False
    """Whether vCenter showed the setting that was read last."""

    def set(self, step: VcenterSetting) -> Outcome[VcenterSetting]:
        """Make the setting and return the outcome. Raises NotConnected (the intent stays open) and StateDamaged."""
        self.read_back(step)
        outcome = self.begin(step)
        assert isinstance(outcome, Outcome), "a setting has no task"
        return outcome

    def read_back(self, step: VcenterSetting) -> None:
        """Read the setting."""
        if isinstance(step, DefineAttribute):
            self._is_shown = step.name in self.vcenter.defined_attributes()
        else:
            [state] = roles_port(self.vcenter).roles([_role(step)])
            self._is_shown = state.right

    def is_done(self, step: VcenterSetting) -> bool:
        """Return whether vCenter showed the setting when it was last read, which `read_back` has just done."""
        return self._is_shown

    def objection(self, step: VcenterSetting) -> str | None:
        """Return None: the caller has compared the setting with vCenter's."""
        return None

    def last_objection(self, step: VcenterSetting, judged: Inventory) -> str | None:
        """Return None, as `objection`."""
        return None

    def send(self, step: VcenterSetting, op_id: str) -> None:
        """Make the setting."""
        self.error = None
        try:
            if isinstance(step, DefineAttribute):
                self.vcenter.define_attribute(step.name, op_id)
            else:
                roles_port(self.vcenter).write_role(_role(step), op_id)
        except GpuopsError as error:
            self.error = error
            raise

    def find_task(self, step: VcenterSetting, since: datetime) -> None:
        """Return None: a setting has no task."""

    def may_be_repeated(self, step: VcenterSetting, sent: Inventory) -> bool:
        """Return whether a late arrival of the first request does no harm.

        vCenter refuses a second attribute of the same name. A role could have been changed by an admin meanwhile.
        """
        return isinstance(step, DefineAttribute)


def _role(step: SetRole) -> RoleWish:
    return RoleWish(step.name, where="", privileges=frozenset(step.privileges))
