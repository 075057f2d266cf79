"""What `gpuops top` shows: rows equal the inventory, unknown is no zero, keys move the view, no line is too wide."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.gpu_counters import measured_use, numbers_by_gpu
from gpuops.api import catalog_of
from gpuops.extras.observe.current_use import newest
from gpuops.extras.web.top import SortKey, Top, TopLevel, filter_and_sort, heading_lines
from gpuops.extras.web.top_table import bar, screen_lines, top_document, top_text
from gpuops.extras.web.top_view import TopView, view_after_key, visible_rows
from gpuops.model.devices.gpu import GpuHealth, GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.measurements.measurement import CurrentUse, MeasuredUse
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice, Vm
from gpuops.plan.hosts.change.rolling_plan import ChangeStatus, PartProgress
from gpuops.plan.rotation.night_status import RotationStatus
from gpuops.report.layout import display_width, plain
from gpuops.report.monitoring.fleet_view import fleet

NOW = datetime(2026, 11, 2, 18, tzinfo=UTC)
HOSTILE = '"><img src=x onerror=alert(1)>\x1b[2J\u202eevil 🎮'


def a40(bus: int, *vms: str) -> PhysicalGpu:
    return PhysicalGpu(
        PciAddress(0, bus, 0, 0),
        "NVIDIA A40",
        0x10DE,
        0x2235,
        memory_mib=49_152,
        graphics_type=GraphicsType.SHARED_DIRECT,
        configured_graphics_type=GraphicsType.SHARED_DIRECT,
        vgpu_mode=VgpuMode.SAME_SIZE,
        vms=vms,
    )


def vm(number: int, host: str, name: str = "") -> Vm:
    return Vm(
        f"vm-{number}",
        name or f"desk-{number}",
        host=host,
        power=PowerState.ON,
        cpu_usage_mhz=100 * number,
        console_connections=number % 2,
        devices=(VgpuDevice(4000, "nvidia_a40-8q"),),
    )


HOSTS = {
    "host-1": Host("host-1", "esx-01", connected=True, gpus=(a40(0x3B, "vm-1", "vm-2"), a40(0x5E))),
    "host-2": Host("host-2", "esx-02", connected=True, in_maintenance=True, gpus=(a40(0x3B, "vm-3"),)),
    "host-3": Host("host-3", "esx-03", connected=True),
}
VMS = {each.ref: each for each in (vm(1, "host-1"), vm(2, "host-1"), vm(3, "host-2", HOSTILE))}
INVENTORY = Inventory("uuid", "8.0.3.0", NOW, hosts=HOSTS, vms=VMS)
USE = CurrentUse(
    NOW,
    {("host-1", PciAddress(0, 0x3B, 0, 0)): MeasuredUse(40.0, 16_384, 60, 150)},
    {"vm-1": MeasuredUse(30.0, 8192)},
)
QUIET = RotationStatus("uuid", None, None, None, False, "gpuops.night", None, None, (), {})


def top(inventory: Inventory = INVENTORY, use: CurrentUse = USE, change: ChangeStatus | None = None) -> Top:
    return Top(fleet(inventory, catalog_of(inventory)), use, QUIET, change or ChangeStatus(), {})


def test_a_sick_gpu_shows_in_its_row_and_in_that_of_its_host() -> None:
    first, second = HOSTS["host-1"].gpus
    health = GpuHealth(is_lost=True, is_row_remap_pending=True)
    sick = top(INVENTORY.with_hosts([replace(HOSTS["host-1"], gpus=(first, replace(second, health=health)))]))
    hosts = {row.name: (row.state, row.warns) for row in sick.rows(TopLevel.HOSTS)}
    assert hosts["esx-01"] == ("GPU lost, GPU row remap pending", True)
    assert [(row.state, row.warns) for row in sick.rows(TopLevel.GPUS) if row.host == "esx-01"] == [
        ("vGPU, same size", False),
        ("vGPU, same size, lost, row remap pending", True),
    ]


def test_hosts_gpus_and_vms_are_those_of_the_inventory() -> None:
    hosts = {row.name: row for row in top().rows(TopLevel.HOSTS)}
    assert set(hosts) == {"esx-01", "esx-02"}, "a host without GPUs is not shown"
    assert (hosts["esx-01"].gpus, hosts["esx-01"].gpus_held, hosts["esx-01"].vms) == (2, 1, ("desk-1", "desk-2"))
    assert hosts["esx-02"].state == "maintenance" and hosts["esx-02"].warns
    gpus = [(row.host, row.name, row.vms) for row in top().rows(TopLevel.GPUS)]
    assert gpus == [
        ("esx-01", "0000:3b:00.0", ("desk-1", "desk-2")),
        ("esx-01", "0000:5e:00.0", ()),
        ("esx-02", "0000:3b:00.0", (HOSTILE,)),
    ]
    assert {row.name: (row.detail, row.cpu_mhz) for row in top().rows(TopLevel.VMS)}["desk-2"] == ("nvidia_a40-8q", 200)


def test_what_is_not_known_is_no_zero() -> None:
    first, second = top().rows(TopLevel.HOSTS)
    assert first.use.utilization_percent == 40.0, "the mean of the GPUs that are measured"
    assert first.use.memory_used_mib is None, "the sum of a part would look like the whole"
    assert second.use.utilization_percent is None
    assert first.sessions == 1 and second.sessions == 1
    text = plain(top_text(top(), TopLevel.GPUS, top().rows(TopLevel.GPUS)))
    assert [line.split()[4] for line in text.splitlines()[2:]] == ["40", "?", "?"]
    document = top_document(top(), TopLevel.GPUS, top().rows(TopLevel.GPUS))
    assert [row.utilization_percent for row in document.rows] == [40.0, None, None]
    assert "40 % used on average (1 GPU measured)" in plain(heading_lines(top()))


def test_unknown_figures_are_last_whatever_is_sorted_by() -> None:
    for key in (SortKey.USE, SortKey.MEMORY):
        assert next(row.name for row in filter_and_sort(top().rows(TopLevel.VMS), key)) == "desk-1"
    assert [row.name for row in filter_and_sort(top().rows(TopLevel.VMS), SortKey.SESSIONS)][-1] == "desk-2"
    assert [row.host for row in filter_and_sort(top().rows(TopLevel.GPUS), SortKey.VMS)] == [
        "esx-01",
        "esx-02",
        "esx-01",
    ]
    assert [row.name for row in filter_and_sort(top().rows(TopLevel.GPUS), SortKey.NAME, "DESK-2")] == ["0000:3b:00.0"]


def test_a_change_that_nobody_is_at_names_the_command() -> None:
    parts = (PartProgress("host-1", "esx-01", "done", ()), PartProgress("host-2", "esx-02", "to do", ()))
    cut_off = ChangeStatus("scheduler set", NOW, "", parts)
    text = plain(heading_lines(top(change=cut_off)))
    assert "scheduler set: 1 of 2 hosts done; no process works on it, next: gpuops change status" in text


def test_enter_goes_into_a_host_and_a_gpu_and_escape_comes_back() -> None:
    view: TopView | None = TopView(sort=SortKey.NAME)
    levels = []
    for key in ("enter", "enter", "down", "enter", "escape", "escape", "escape"):
        assert view is not None
        view = view_after_key(view, key, top(), 10)
        assert view is not None
        levels.append((view.level, len(visible_rows(top(), view))))
    gpus, vms, hosts = (TopLevel.GPUS, 2), (TopLevel.VMS, 2), (TopLevel.HOSTS, 2)
    assert levels == [gpus, vms, vms, vms, gpus, hosts, hosts]


def test_the_vms_of_a_gpu_are_those_that_are_on_it_now() -> None:
    view = view_after_key(TopView(TopLevel.GPUS, SortKey.NAME), "enter", top(), 10)
    assert view is not None and view.inside is not None
    moved = replace(HOSTS["host-1"], gpus=(a40(0x3B, "vm-2"), a40(0x5E, "vm-1")))
    later = top(replace(INVENTORY, hosts={**HOSTS, "host-1": moved}))
    assert [row.name for row in visible_rows(later, view)] == ["desk-2"]


def test_letters_of_a_filter_are_no_keys() -> None:
    view: TopView | None = TopView(TopLevel.VMS)
    for key in ("/", "q", "back", "d", "e", "s", "k", "-", "2", "enter"):
        assert view is not None
        view = view_after_key(view, key, top(), 10)
    assert view is not None
    assert (view.containing, view.typing) == ("desk-2", False)
    assert [row.name for row in visible_rows(top(), view)] == ["desk-2"]
    back = view_after_key(view, "escape", top(), 10)
    assert back is not None and back.containing == ""
    assert view_after_key(back, "q", top(), 10) is None


def test_the_selected_row_stays_selected_when_figures_change() -> None:
    view = view_after_key(TopView(TopLevel.VMS, SortKey.NAME), "down", top(), 10)
    assert view is not None and view.selected == "vm-2"
    busy = replace(USE, vms={"vm-2": MeasuredUse(90.0, 1)})
    by_use = replace(view, sort=SortKey.USE)
    assert by_use.selected_number(visible_rows(top(use=busy), by_use)) == 0
    without_vm = top(replace(INVENTORY, vms={ref: seen_vm for ref, seen_vm in VMS.items() if ref != "vm-2"}))
    assert view.selected_number(visible_rows(without_vm, view)) == 1


@given(
    st.integers(10, 200),
    st.integers(4, 40),
    st.lists(
        st.sampled_from([*"hgvs/qx2-", "up", "down", "page-up", "page-down", "home", "end", "enter", "back", "escape"]),
        max_size=12,
    ),
)
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(width: int, height: int, keys: list[str]) -> None:
    view = TopView()
    for key in keys:
        view = view_after_key(view, key, top(), max(1, height - 5)) or view
    lines = list(screen_lines(top(), view, width, height, "vCenter is away"))
    texts = ["".join(text for text, _ in line) for line in lines]
    assert len(lines) <= max(height, 6)
    assert all(unicodedata.category(character) not in ("Cc", "Cf") for text in texts for character in text)
    narrowest = 60  # what stays of the columns needs so much
    assert width < narrowest or all(display_width(text) <= width for text in texts), texts


@pytest.mark.parametrize(
    ("percent", "expected"), [(None, ""), (0.0, "········"), (50.0, "████····"), (130.0, "████████")]
)
def test_a_bar_is_as_long_as_the_use(percent: float | None, expected: str) -> None:
    row = replace(top().rows(TopLevel.GPUS)[0], use=MeasuredUse(percent))
    assert bar(row) == expected


def test_the_newest_sample_that_is_there_counts() -> None:
    samples = {
        "gpu.utilization.average@0000:3b:00.0": np.array([500, 1250, -1], dtype=np.int64),
        "gpu.mem.used.average@0000:3b:00.0": np.array([-1, -1, -1], dtype=np.int64),
        "gpu.utilization.average": np.array([1, 1, 1], dtype=np.int64),
    }
    host = replace(HOSTS["host-1"], gpus=HOSTS["host-1"].gpus[:1])
    [(address, numbers)] = numbers_by_gpu(samples, host).items()
    assert (str(address), measured_use(newest(numbers))) == ("0000:3b:00.0", MeasuredUse(12.5, None, None, None))
