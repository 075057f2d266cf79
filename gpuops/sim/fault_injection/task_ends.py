"""Ends tasks in unusual ways: a question of the VM delays one, or a GPU is given back late."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.state.vm_state import Power, Question

if TYPE_CHECKING:
    from gpuops.sim.core.object_store import ObjectStore
    from gpuops.sim.core.task import Task

OUT_OF_SPACE: Final = Question(
    "msg.hbacommon.outofspace",
    "There is no more space for virtual disk {}. You might be able to continue this session by freeing disk space on "
    "the relevant volume, and clicking Retry. Click Cancel to terminate this session.",
    (("0", "Retry"), ("1", "Cancel")),
)
"""The question of a full datastore, as ESXi asks it (VMware knowledge base on msg.hbacommon.outofspace)."""

ANSWER_LOOK: Final = timedelta(seconds=5)
"""How often a task of vCenter checks whether its VM's question was answered."""


def waits_for_answer(store: ObjectStore, entity: Any) -> bool:
    """Whether a VM waits for an answer; the first call for it makes it ask. False for any other object."""
    if entity.wsdl_name != "VirtualMachine":
        return False
    if entity.moid in store.asked:
        return entity.state.question is not None
    store.asked.add(entity.moid)
    text = OUT_OF_SPACE.text.format(f"{entity.name}.vmdk")
    entity.state.question = Question(OUT_OF_SPACE.id, text, OUT_OF_SPACE.choices)
    entity.touch("runtime", "summary")
    return True


class AwaitingAnswer:
    """A task that waits for the answer to its VM's question, and ends at the first check after it, as in vCenter.

    It is called at the answer and does not poll: a night would have seven thousand polls.
    """

    def __init__(self, store: ObjectStore, vm: Any, go_on: Callable[[], None]) -> None:
        self._store = store
        self._go_on = go_on
        self._asked_at = store.clock.now()
        store.registry.watch(vm.moid, self)

    def object_touched(self, managed_object: Any, paths: Collection[str]) -> None:
        if managed_object.state.question is not None:
            return
        self._store.registry.unwatch(managed_object.moid, self)
        clock = self._store.clock
        until_look = ANSWER_LOOK - (clock.now() - self._asked_at) % ANSWER_LOOK
        # No wait of a client jumps to this look.
        clock.schedule(until_look.total_seconds(), self._go_on, background=True)

    def object_removed(self, managed_object: Any) -> None:
        """Its question can no longer be answered."""


def lingering(task: Task, complete: Callable[[], None], lingers_s: float) -> Callable[[], None]:
    """The end of a task after which the GPU still counts as taken for a while."""
    if not lingers_s or task.entity.wsdl_name != "VirtualMachine":
        return complete
    vm: Any = task.entity

    def end() -> None:
        host, seats = vm.host(), vm.state.seats
        complete()
        if vm.state.power is not Power.ON and seats:
            host.lingering = (*host.lingering, *seats)
            host.load_changed()
            host.world.clock.schedule(lingers_s, lambda: _given_back(host, seats))

    return end


def _given_back(host: Any, seats: tuple[Any, ...]) -> None:
    host.lingering = tuple(seat for seat in host.lingering if seat not in seats)
    host.load_changed()
