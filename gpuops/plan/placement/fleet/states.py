"""Numbers the states of GPUs, one for each difference that a rule may see, and keeps the rules' answers about each.

`index.py` numbers the GPUs of a snapshot. Every answer comes from the rules that judge one GPU of one host
(`gpu_filters.py`, `advise.capacity`), asked about a representative of the state: nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gpuops.advise.capacity import free_slots
from gpuops.advise.expected_start import with_expected
from gpuops.advise.occupancy import GpuState, Tenant, may_run
from gpuops.advise.room import Rooms
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import GraphicsType, PciAddress, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.placement.fleet.geometry import Table
from gpuops.plan.placement.gpu_filters import judge_slot, matches_type, slots_in_turn
from gpuops.plan.placement.wanted import WantsDynamic, WantsVgpu

_SOMEWHERE: Final = PciAddress(0, 0, 0, 0)
_HOST: Final = Host(ref="", name="")
_VM: Final = Vm(ref="", name="")

_Key = tuple[object, ...]


class GpuStates:
    """The states seen so far, and a table for every question asked about them."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._stand_ins: list[tuple[GpuState, bool] | None] = [None]
        self._numbers: dict[_Key, int] = {}
        self._tables: dict[_Key, Table] = {}
        self._rooms = Rooms(catalog)

    def __len__(self) -> int:
        """The number of states seen."""
        return len(self._stand_ins)

    def number(self, state: GpuState, held: bool) -> int:
        """The number of this state; `held` = a VM has the GPU as a whole."""
        gpu = state.gpu
        there = tuple(sorted(((tenant.profile, tenant.start) for tenant in state.tenants), key=str))
        told = state.gpu.vgpus is not None
        key = (gpu.admission_traits, gpu.passthrough, told, there, state.fewest, bool(state.unclear), held)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self._stand_ins)
            alike = replace(state, gpu=replace(gpu, address=_SOMEWHERE, numa_node=None))
            self._stand_ins.append((alike, held))
        return known

    def vgpu_surely(self, profile: str) -> Table:
        """1 where a vGPU of the profile finds a slot for certain."""
        demand = WantsVgpu(0, profile)
        return self._table(
            ("surely", profile), lambda state, _: judge_slot(state, demand, _VM, _HOST, self.catalog) == ""
        )

    def with_vgpu(self, profile: str) -> Table:
        """The state with one more vGPU of the profile."""

        def after(state: GpuState, held: bool) -> int:
            return self.number(with_expected(state, Tenant("", "", profile), self.catalog), held)

        return self._table(("with", profile), after)

    def made_for(self, profile: str) -> Table:
        """1 where the GPU serves vGPUs and may be of the profile's model."""

        def answer(state: GpuState, _: bool) -> bool:
            shared = state.gpu.graphics_type is GraphicsType.SHARED_DIRECT and not state.gpu.vgpu_obstacle
            return shared and may_run(state.gpu, profile, self.catalog) is not False

        return self._table(("made for", profile), answer)

    def whole_free(self, demand: WantsDynamic) -> Table:
        """1 where the GPU can be given whole for the demand."""

        def answer(state: GpuState, held: bool) -> bool:
            gpu = state.gpu
            return not held and matches_type(gpu, demand) and gpu.passthrough is not None and gpu.passthrough.active

        return self._table(("whole", demand.allowed, demand.label), answer)

    def given_whole(self) -> Table:
        """The state once a VM has the GPU as a whole."""
        return self._table(("given",), lambda state, _: self.number(state, True))

    def slots(self, profile: str) -> Table:
        """vGPUs of the profile that fit beside what runs, at least."""
        return self._table(("slots", profile), lambda state, _: self._slots(state, profile))

    def slots_in_turn(self, profile: str) -> Table:
        """vGPUs of the profile that a VM is given one after another, with doubtful ones."""
        return self._table(("in turn", profile), lambda state, _: slots_in_turn(state, profile, "", self.catalog)[1])

    def surely_free(self, profile: str) -> Table:
        """The same beside what must run there too, where not all that may run can."""

        def answer(state: GpuState, _: bool) -> int:
            found = self._rooms.on(state, (profile,)).get(profile)
            return 0 if found is None else found.at_least

        return self._table(("surely free", profile), answer)

    def any_whole(self) -> Table:
        """1 where the GPU can be given whole to whoever asks for such a one."""

        def answer(state: GpuState, held: bool) -> bool:
            return not held and state.gpu.passthrough is not None and state.gpu.passthrough.active

        return self._table(("any whole",), answer)

    def emptied(self) -> Table:
        """The state of the same GPU with nothing on it."""
        return self._table(("emptied",), lambda state, _: self.number(GpuState(replace(state.gpu, vms=())), False))

    def mode(self, state: int) -> VgpuMode | None:
        """How the GPU shares itself; None = unknown, or no GPU."""
        known = self._stand_ins[state]
        return None if known is None else known[0].gpu.vgpu_mode

    def of_board(self, state: int, board: str) -> bool:
        """Whether the GPU is of this model."""
        known = self._stand_ins[state]
        return known is not None and self._board(known[0]) == board

    def free_mib(self, state: int, board: Board) -> int:
        """Frame buffer of a GPU of this model that nobody holds; 0 on any other."""
        known = self._stand_ins[state]
        if known is None or known[1] or self._board(known[0]) != board.key:
            return 0
        held = (self.catalog.profile(tenant.profile) for tenant in known[0].tenants)
        return max(0, board.framebuffer_mib - sum(facts.framebuffer_mib for facts in held if facts is not None))

    def _board(self, state: GpuState) -> str | None:
        board = self.catalog.board_by_pci(state.gpu.vendor_id, state.gpu.device_id, state.gpu.subsystem_id)
        return None if board is None else board.key

    def _slots(self, state: GpuState, profile: str) -> int:
        return free_slots(state.gpu, state.holders, profile, self.catalog, state.starts).at_least

    def _table(self, key: _Key, answer: Callable[[GpuState, bool], int]) -> Table:
        if key not in self._tables:

            def of(number: int) -> int:
                known = self._stand_ins[number]
                # Where there is no GPU there is no room, nothing free and nothing to change.
                return 0 if known is None else int(answer(*known))

            self._tables[key] = Table(of)
        return self._tables[key]
