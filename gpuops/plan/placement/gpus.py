"""GPU filters: whether a vGPU finds a slot on a GPU, and in which order a host tries its GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from gpuops.advise.occupancy import GpuState, may_run
from gpuops.advise.room import room_for
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import AssignmentPolicy, GraphicsType, PhysicalGpu, VgpuMode
from gpuops.model.host import Host
from gpuops.model.vm import Vm
from gpuops.plan.placement.wanted import WantsVgpu
from gpuops.plan.plan import Rejection


def slot_on(state: GpuState, demand: WantsVgpu, vm: Vm, host: Host, catalog: Catalog) -> Rejection | str:
    """A doubt about the slot ("" = certain), or why the GPU has none beside what runs and what the VM took itself."""
    subject = f"{host.name} {state.gpu.address}"
    refused = serves_no_vgpus(state.gpu, subject)
    if refused is not None:
        return refused
    slots = room_for(state, demand.profile, catalog)
    if may_run(state.gpu, demand.profile, catalog) is False:
        return Rejection(subject, slots.because)
    if not slots.possible:
        names = [f"{name} itself" if name == vm.name else name for name in state.vm_names]
        held = f"; held by {', '.join(names)}" if names else ""
        return Rejection(subject, f"{slots.because}{held}", 1, 0, "slot")
    if state.unclear:
        return Rejection(subject, f"what runs on it is not known: {state.unclear}")
    return "" if slots.at_least else f"{subject}: {slots.because}"


def serves_no_vgpus(gpu: PhysicalGpu, subject: str) -> Rejection | None:
    """Why a GPU is in the wrong mode for any vGPU.

    Sources: vSphere API, HostGraphicsInfo.graphicsType; NVIDIA vGPU docs: a change of the type takes effect when Xorg
    or the host restarts.
    """
    if gpu.passthrough is not None and gpu.passthrough.active:
        return Rejection(subject, "is given to DirectPath I/O", hint="attach it whole: --device")
    if gpu.graphics_type is GraphicsType.SHARED_DIRECT:
        return None
    wanted, now = GraphicsType.SHARED_DIRECT.value, gpu.graphics_type
    if gpu.configured_graphics_type is GraphicsType.SHARED_DIRECT:
        hint = "the change is configured: restart Xorg on the host, or the host"
        return Rejection(subject, "graphics type in force", wanted, now.value if now else "unknown", hint=hint)
    if now is None:
        return Rejection(subject, "its graphics type cannot be read")
    return Rejection(subject, "graphics type", wanted, now.value, hint="set it to Shared Direct on the host")


def in_order_of_choice(states: Iterable[GpuState], host: Host, catalog: Catalog) -> list[GpuState]:
    """The GPUs in the order in which the host is expected to try them; ties go to the lowest address.

    In same-size mode by the host's policy: `performance` the GPU with the fewest VMs, `consolidation` the one with the
    most (vSphere API, HostGraphicsConfig.sharedPassthruAssignmentPolicy); in mixed-size mode the least used; in MIG
    mode as they come (NVIDIA AI Enterprise docs; the policy is ignored there).
    """

    def key(state: GpuState) -> tuple[int, int]:
        match state.gpu.vgpu_mode:
            case VgpuMode.MULTI_INSTANCE:
                return (2, 0)
            case VgpuMode.MIXED_SIZE:
                return (1, used_mib(state, catalog))
            case _ if host.assignment_policy is AssignmentPolicy.CONSOLIDATION:
                return (0, -len(state.vm_names))
            case _:
                return (0, len(state.vm_names))

    return sorted(states, key=lambda state: (*key(state), state.gpu.address))


def used_mib(state: GpuState, catalog: Catalog) -> int:
    """Frame buffer that the vGPUs on the GPU hold, as far as the catalogue knows them."""
    profiles = (catalog.profile(tenant.profile) for tenant in state.tenants)
    return sum(profile.framebuffer_mib for profile in profiles if profile is not None)
