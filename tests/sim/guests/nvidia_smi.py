"""What nvidia-smi answers on a simulated host, in the formats of its manual: MIG mode, and the vGPUs that run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.host_state import GpuFault

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.state.host_state import HostGpu

MISSING: Final = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
_READINGS: Final = (
    "pci.bus_id,utilization.gpu,clocks.current.sm,temperature.gpu,ecc.errors.uncorrected.volatile.total,"
    "pcie.link.gen.current,pcie.link.width.current,enforced.power.limit,clocks_event_reasons.active"
)
LOST: Final = (
    "Unable to determine the device handle for GPU{}: {}: GPU is lost.  Reboot the system to recover this GPU\n"
)
CORRUPT: Final = "WARNING: infoROM is corrupted at gpu {}\n"
_HEAD: Final = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
_COLUMNS: Final = "pci.bus_id,mig.mode.current,mig.mode.pending,ecc.mode.current,ecc.mode.pending"


def answer(host: HostEntity, command: str) -> tuple[str, int]:
    """(what it writes, how it ends)."""
    text, status = _answer(host, shlex.split(command))
    if status or not host.state.driver_version:
        return text, status
    # as published outputs have these sentences; exit statuses: nvidia-smi manual, RETURN VALUE
    faulty = [(number, gpu) for number, gpu in enumerate(host.state.gpus) if gpu.listed and gpu.faults]
    if "smi-lost-gpu" in host.world.deviations:
        faulty = [(number, gpu) for number, gpu in faulty if GpuFault.LOST not in gpu.faults]
    lost = "".join(LOST.format(number, gpu.pci_id.upper()) for number, gpu in faulty if GpuFault.LOST in gpu.faults)
    corrupt = "".join(CORRUPT.format(gpu.pci_id.upper()) for _, gpu in faulty if GpuFault.CORRUPT_INFOROM in gpu.faults)
    return f"{lost}{text}{corrupt}", 15 if lost else 14 if corrupt else 0


def _answer(host: HostEntity, words: list[str]) -> tuple[str, int]:
    if words[:1] != ["nvidia-smi"]:
        return f"sh: {words[0] if words else ''}: not found\n", 127
    if not host.state.driver_version or not host.state.gpus:
        return f"{MISSING}\n", 9
    if words[1:] == [f"--query-gpu={_COLUMNS}", "--format=csv,noheader"]:
        return "".join(f"{_row(gpu)}\n" for gpu in _answering(host)), 0
    if words[1:] == ["--query-gpu=index,pci.bus_id", "--format=csv,noheader"]:
        return "".join(f"{number}, {_address(gpu)}\n" for number, gpu in enumerate(_answering(host))), 0
    if words[1:] == [f"--query-gpu={_READINGS}", "--format=csv,noheader,nounits"]:
        return "".join(f"{_reading(gpu, number)}\n" for number, gpu in enumerate(_answering(host))), 0
    if words[1:] == ["-q", "-x"]:
        return f"{_HEAD}<nvidia_smi_log>{''.join(map(_details, _answering(host)))}</nvidia_smi_log>\n", 0
    if words[1:] == ["vgpu", "-q"]:
        return "".join(map(_format_vgpus(host), _answering(host))), 0
    if words[1:] == ["mig", "-lgi"]:
        return _instances(host)
    if len(words) == 5 and (words[1], words[3]) == ("-i", "-mig") and words[4] in ("0", "1"):
        return _switch_mig(host, words[2], on=words[4] == "1")
    return f'Invalid combination of input arguments. Please run "nvidia-smi -h" for help. {" ".join(words[1:])}\n', 1


def _answering(host: HostEntity) -> list[HostGpu]:
    """The GPUs that the driver has, but for those that are lost."""
    absent = {GpuFault.LOST}
    if "smi-corrupt-inforom" in host.world.deviations:
        absent.add(GpuFault.CORRUPT_INFOROM)
    return [gpu for gpu in host.state.gpus if gpu.listed and not absent & gpu.faults]


def _details(gpu: HostGpu) -> str:
    """As R580 prints them (an H100 with R580.159.04)."""
    action = "Reset" if GpuFault.RECOVERY_RESET in gpu.faults else "None"
    remap = "Yes" if GpuFault.ROW_REMAP_PENDING in gpu.faults else "No"
    return (
        f'<gpu id="{_address(gpu)}"><gpu_recovery_action>{action}</gpu_recovery_action>'
        f"<pci><pci_bus_id>{_address(gpu)}</pci_bus_id></pci>"
        f"<remapped_rows><remapped_row_pending>{remap}</remapped_row_pending></remapped_rows></gpu>"
    )


def _address(gpu: HostGpu) -> str:
    return f"0000{gpu.pci_id}".upper()


def _format_vgpus(host: HostEntity) -> Callable[[HostGpu], str]:
    """A GPU and its vGPUs as `vgpu -q` writes them; the id of a GPU instance is its start and three."""
    names = {vm.moid: vm.name for vm in host.vms()}

    def lines(gpu: HostGpu) -> str:
        seats = [seat for seat in host.seats() if seat.pci_id == gpu.pci_id]
        text = f"GPU {_address(gpu)}\n    Active vGPUs                          : {len(seats)}\n"
        for number, seat in enumerate(seats):
            mixed = gpu.mode is GpuMode.MIXED_SIZE
            instance = f"{(seat.start or 0) + 3}" if gpu.mode is GpuMode.MULTI_INSTANCE else "N/A"
            facts = {
                "VM UUID": "00000000-0000-0000-0000-000000000000",
                "VM Name": names[seat.vm],
                "vGPU Name": seat.type.name.replace("_", " ").upper(),
                "License Status": "Licensed (Expiry: 2027-1-5 12:0:0 GMT)" if number % 2 == 0 else "Unlicensed",
                "GPU Instance ID": instance,
                "Placement ID": str(seat.start) if mixed else "N/A",
            }
            text += f"    vGPU ID                               : {3251634213 + number}\n"
            text += "".join(f"        {key:<34}: {value}\n" for key, value in facts.items())
            used = "N/A" if gpu.mode is GpuMode.MULTI_INSTANCE else f"{12 + number} %"
            text += f"        Utilization\n            {'Gpu':<30}: {used}\n            {'Encoder':<30}: {used}\n"
        return text

    return lines


def _instances(host: HostEntity) -> tuple[str, int]:
    rows = []
    for number, gpu in enumerate(_answering(host)):
        instances_by_start = {seat.start or 0: seat.type.instance for seat in host.seats() if seat.pci_id == gpu.pci_id}
        for start, instance in sorted(instances_by_start.items()):
            if instance is not None:
                place = f"{start}:{instance.size}"
                rows.append(f"|   {number}  MIG {instance.name:<15} 19       {start + 3:>2}          {place:<8}|\n")
    if not rows:
        return "No GPU instances found: Not Found\n", 6
    rule = "+-------------------------------------------------------+\n"
    return f"{rule}| GPU instances:                                        |\n{rule}{''.join(rows)}{rule}", 0


def _reading(gpu: HostGpu, number: int) -> str:
    ecc = "0" if gpu.ecc else "[N/A]"
    return f"{_address(gpu)}, {30 + number}, {1410 - number}, {41 + number}, {ecc}, 4, 16, 300.00, 0x0000000000000004"


def _row(gpu: HostGpu) -> str:
    address = _address(gpu)
    if GpuFault.REQUIRES_RESET in gpu.faults:
        return f"{address}, [GPU requires reset], [GPU requires reset], Enabled, Enabled"
    if GpuFault.UNKNOWN_ERROR in gpu.faults:
        return ", ".join((address, *["[Unknown Error]"] * 4))
    ecc = ", ".join("Enabled" if on else "Disabled" for on in (gpu.ecc, gpu.next_ecc))
    if not gpu.board.types_in(GpuMode.MULTI_INSTANCE):
        return f"{address}, [N/A], [N/A], {ecc}"
    return f"{address}, {_word(gpu.mode)}, {_word(gpu.next_mode or gpu.mode)}, {ecc}"


def _word(mode: GpuMode) -> str:
    return "Enabled" if mode is GpuMode.MULTI_INSTANCE else "Disabled"


def _switch_mig(host: HostEntity, address: str, *, on: bool) -> tuple[str, int]:
    gpu = host.state.gpu(address)
    if gpu is None:
        return "No devices were found\n", 6
    name = f"0000{gpu.pci_id}".upper()
    if not gpu.board.types_in(GpuMode.MULTI_INSTANCE):
        return f"Unable to {'enable' if on else 'disable'} MIG Mode for GPU {name}: Not Supported\n", 3
    if any(seat.pci_id == gpu.pci_id for seat in host.seats()):
        return f"Unable to {'enable' if on else 'disable'} MIG Mode for GPU {name}: In use by another client\n", 19
    mode = GpuMode.MULTI_INSTANCE if on else GpuMode.SAME_SIZE
    if gpu.board.careful_instances:  # from Hopper on in force at once (NVIDIA MIG User Guide)
        gpu.mode, gpu.next_mode = mode, None
        host.graphics_changed()
        return f"{'Enabled' if on else 'Disabled'} MIG Mode for GPU {name}\nAll done.\n", 0
    gpu.next_mode = mode
    warning = f"Warning: MIG mode is in pending {'enable' if on else 'disable'} state for GPU {name}:Reset Required\n"
    return f"{warning}{'Enabled' if on else 'Disabled'} MIG Mode for GPU {name}\nAll done.\n", 0
