"""Changes: tasks that give a VM GPUs or take them away. Check mode is the same plan, not done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gpuops.errors import UsageError
from gpuops.tasks.answer import Answer
from gpuops.tasks.connection import Said, open_site
from gpuops.tasks.outcome import answer_of, world_after

if TYPE_CHECKING:
    from gpuops.plan.attach import Attach
    from gpuops.plan.detach import Detach


def vm_gpu(said: Said, *, present: bool, options: Mapping[str, Any], apply: bool) -> Answer:
    """`options` are the fields of `Attach` and `Detach`, as the commands have them; None or False = not given.

    Raises UsageError for one that means nothing here, and whatever `gpuops attach` and `gpuops detach` raise.
    """
    from gpuops.plan.attach import Attach
    from gpuops.plan.detach import Detach

    verb = Attach if present else Detach
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in given.keys() - {field.name for field in fields(verb)}:
        other = "absent" if present else "present"
        raise UsageError(
            f"{name} means nothing with state={'present' if present else 'absent'}", hint=f"it goes with state={other}"
        )
    return _one_vm(verb(**given), verb.__name__.lower(), said, apply=apply)


def _one_vm(request: Attach | Detach, kind: str, said: Said, *, apply: bool) -> Answer:
    from gpuops.api import run
    from gpuops.report.vm_state import vm_state

    site, warnings = open_site(said)
    with site:
        report = run(request, site, apply=apply)
        after = world_after(report, site, warnings)
    answer = answer_of(report, kind, after, warnings)
    vm = report.before.find_vm(request.vm)
    answer.result["vm"] = vm_state(after.vms[vm.ref], after) if vm.ref in after.vms else None
    return answer
