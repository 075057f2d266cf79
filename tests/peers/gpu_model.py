"""The GPU inventory that vcsim is taught: four hosts, twelve VMs, declared as data.

Names are predictable, so tests can be read without looking here:

* `gpu-esx-01`, `gpu-esx-02`: two A100 40 GB each, in MIG mode; `ml-03` holds an instance, `ml-07` waits for one;
* `gpu-esx-03`: two A40 shared by four desktops by day, wanted whole by `ml-01` and `ml-02` by night;
* `gpu-esx-04`: one L40S (a suspended desktop).

PCI ids, names and frame buffers are NVIDIA's ("Virtual GPU Types for Supported GPUs"; the PCI id database).
"""

from __future__ import annotations

from dataclasses import dataclass

NVIDIA = 0x10DE


@dataclass(frozen=True, slots=True)
class Profile:
    """A vGPU profile a host offers."""

    name: str
    framebuffer_gib: int

    @property
    def sharing(self) -> str:
        """`mig` or `timeSliced`: a MIG-backed name has a slice count in the middle (`grid_a100-3-20c`)."""
        return "mig" if self.name.count("-") == 2 else "timeSliced"

    @property
    def profile_class(self) -> str:
        """`compute` for C-series, `quadro` for the others (there are no other classes in the API)."""
        return "compute" if self.name.rstrip("me").endswith("c") else "quadro"


def time_sliced(board: str, sizes_gib: tuple[int, ...], series: str) -> tuple[Profile, ...]:
    """The time-sliced profiles of a board, as NVIDIA names them: `nvidia_a40-8q`."""
    return tuple(Profile(f"{board}-{size}{letter}", size) for letter in series for size in sizes_gib)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU model."""

    name: str
    device_id: int
    subsystem_id: int
    framebuffer_gib: int
    profiles: tuple[Profile, ...]
    mig: bool = False

    @property
    def vendor_and_device(self) -> int:
        """`deviceVendorId` of the API: the device id above the vendor id."""
        return self.device_id << 16 | NVIDIA


A100 = Card(
    "GA100 [A100 PCIe 40GB]",
    0x20F1,
    0x145F,
    40,
    (
        Profile("grid_a100-1-5c", 5),
        Profile("grid_a100-1-5cme", 5),
        Profile("grid_a100-1-10c", 10),
        Profile("grid_a100-2-10c", 10),
        Profile("grid_a100-3-20c", 20),
        Profile("grid_a100-4-20c", 20),
        Profile("grid_a100-7-40c", 40),
    ),
    mig=True,
)
A40 = Card("GA102GL [A40]", 0x2235, 0x145A, 48, time_sliced("nvidia_a40", (48, 24, 16, 12, 8, 6, 4), "qc"))
L40S = Card("AD102GL [L40S]", 0x26B9, 0x1851, 48, time_sliced("nvidia_l40s", (48, 24, 16, 12, 8, 6, 4), "qc"))


@dataclass(frozen=True, slots=True)
class Slot:
    """A card in a host: its address and NUMA node."""

    card: Card
    bus: int
    numa_node: int

    @property
    def pci_id(self) -> str:
        """The address as vSphere writes it: `0000:3b:00.0`."""
        return f"0000:{self.bus:02x}:00.0"


@dataclass(frozen=True, slots=True)
class HostModel:
    """A host and its cards."""

    name: str
    slots: tuple[Slot, ...]

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """What the host offers."""
        return tuple(dict.fromkeys(profile for slot in self.slots for profile in slot.card.profiles))


HOSTS = (
    HostModel("gpu-esx-01", (Slot(A100, 0x3B, 0), Slot(A100, 0x5E, 1))),
    HostModel("gpu-esx-02", (Slot(A100, 0x3B, 0), Slot(A100, 0x5E, 1))),
    HostModel("gpu-esx-03", (Slot(A40, 0x3B, 0), Slot(A40, 0x5E, 1))),
    HostModel("gpu-esx-04", (Slot(L40S, 0x3B, 0),)),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A VM: where it is registered, what it wants, and which GPU serves it now."""

    name: str
    host: str
    power: str = "poweredOff"
    cpus: int = 8
    memory_mib: int = 32768
    guest: str = "ubuntu64Guest"
    vgpu: str | None = None
    """A VM with one reserves all its memory."""
    on_gpu: str | None = None


def desktop(name: str, profile: str, on_gpu: str | None, host: str = "gpu-esx-03") -> Machine:
    """A VDI desktop: running on a GPU, or suspended when it is on none."""
    power = "poweredOn" if on_gpu else "suspended"
    return Machine(name, host, power, 4, 8192, "windows11_64Guest", vgpu=profile, on_gpu=on_gpu)


MACHINES = (
    desktop("vdi-01", "nvidia_a40-8q", "0000:3b:00.0"),
    desktop("vdi-02", "nvidia_a40-8q", "0000:5e:00.0"),
    desktop("vdi-03", "nvidia_a40-8q", "0000:3b:00.0"),
    desktop("vdi-04", "nvidia_a40-8q", "0000:5e:00.0"),
    desktop("vdi-05", "nvidia_l40s-12q", None, host="gpu-esx-04"),
    Machine("ml-01", "gpu-esx-03", cpus=16, memory_mib=65536, vgpu="nvidia_a40-48c"),
    Machine("ml-02", "gpu-esx-03", cpus=16, memory_mib=65536, vgpu="nvidia_a40-48c"),
    Machine("ml-03", "gpu-esx-01", "poweredOn", vgpu="grid_a100-3-20c", on_gpu="0000:3b:00.0"),
    Machine("ml-07", "gpu-esx-01"),
    Machine("ml-08", "gpu-esx-04"),
    Machine("ml-09", "gpu-esx-04"),
    Machine("app-01", "gpu-esx-02", "poweredOn", 2, 4096),
)
