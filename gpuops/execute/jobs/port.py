"""What VMs that are made for jobs need of a vCenter beside what any run needs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gpuops.errors import Refused
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.task import TaskRef


@runtime_checkable
class JobVmsPort(Protocol):
    """A vCenter in which VMs are removed."""

    def remove_vm(self, vm: str, name: str, notes: str, op_id: str, *, only_off: bool = False) -> TaskRef | None:
        """The task that removes a VM; None = it is there no more.

        Raises Refused for a VM of another name, without these notes or, with `only_off`, that is not off;
        OutcomeUnknown when the reply was lost.
        """
        ...


def job_vms_port(vcenter: Vcenter) -> JobVmsPort:
    """The same vCenter, as one in which VMs are removed. Raises Refused for a saved inventory."""
    if not isinstance(vcenter, JobVmsPort):
        raise Refused("a saved inventory makes no VMs", hint="use --vcenter")
    return vcenter
