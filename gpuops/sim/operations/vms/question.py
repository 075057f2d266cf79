"""Answers to the questions of VMs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyVmomi import vim

from gpuops.sim.inventory import faults
from gpuops.sim.operations.recording import recorded
from gpuops.sim.operations.vms import power
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity

CANCEL = "1"
"""The choice that stops the VM, as in `msg.hbacommon.outofspace` (0 retries)."""


def answer(vm: VmEntity, call: Call, question_id: str, choice: str) -> None:
    """AnswerVM: the question goes away; the cancelling choice powers the VM off.

    Raises ConcurrentAccess when another question, or none, is pending.
    """
    question = vm.state.question
    if question is None or question.id != question_id:
        raise vim.fault.ConcurrentAccess(msg="The question is no longer pending.")
    if choice not in dict(question.choices):
        raise faults.wrong_argument("answerChoice")
    if choice == CANCEL and vm.state.power is Power.ON:
        power.stop(vm, call, clean=False)
        return
    with recorded(vm, call):
        vm.state.question = None
        vm.touch("runtime", "summary")
