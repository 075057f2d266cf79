"""A VM for Ansible shows what gpuops reads and changes, and no secret of its guest."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice, Vm
from gpuops.report.vms.vm_view import differences, vm_state
from tests.plan.snapshots import without_vm

VM = Vm(
    "vm-1",
    "ml-01",
    power=PowerState.OFF,
    devices=(),
    extra_config={"guestinfo.userdata": "secret", "pciPassthru.use64bitMMIO": "TRUE", "gpuops.baseline": ""},
    attributes={"gpuops.role": "ml", "gpuops.rotation": ""},
)
BEFORE = Inventory("vc", "8.0.3.0", datetime(2026, 11, 2, tzinfo=UTC), vms={VM.ref: VM, "vm-2": Vm("vm-2", "other")})


def test_settings_that_are_not_ours_are_left_out() -> None:
    state = vm_state(VM, BEFORE)
    assert state["settings"] == {"pciPassthru.use64bitMMIO": "TRUE"}
    assert state["attributes"] == {"gpuops.role": "ml"}
    assert "secret" not in str(state)


def test_unknown_is_not_none_nor_zero() -> None:
    state = vm_state(Vm("vm-2", "other"), BEFORE)
    unknown = ("power", "devices", "profiles", "settings", "all_memory_reserved", "memory_mib", "host")
    assert [state[key] for key in unknown] == [None] * len(unknown)


def test_only_what_differs_is_told() -> None:
    after = BEFORE.with_vm(replace(VM, devices=(VgpuDevice(13000, "grid_a100-3-20c"),)))
    (difference,) = differences(["vm-1", "vm-2", "vm-1"], BEFORE, after)
    assert difference["before_header"] == "ml-01"
    assert difference["before"] == {"devices": [], "profiles": []}
    assert difference["after"] == {"devices": ["vGPU grid_a100-3-20c"], "profiles": ["grid_a100-3-20c"]}


def test_the_key_under_which_vcenter_lists_a_device_is_nobodys_to_foresee() -> None:
    at_first_key, at_second_key = (
        BEFORE.with_vm(replace(VM, devices=(VgpuDevice(key, "grid_a100-3-20c"),))) for key in (13000, 13001)
    )
    assert differences(["vm-1"], at_first_key, at_second_key) == []


def test_a_vm_that_is_gone_has_nothing_after() -> None:
    (difference,) = differences(["vm-1"], BEFORE, without_vm("vm-1", BEFORE))
    assert set(difference["after"].values()) == {None}
