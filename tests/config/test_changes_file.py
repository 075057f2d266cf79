"""Changes of a fleet are read as they are meant, or refused in one line that names the file or the option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.config.changes_file import (
    ChangeSection,
    added_hosts,
    added_vms,
    changed_profiles,
    load_changes,
    lost_gpus,
    parse_changes,
)
from gpuops.config.decoding import keys_of
from gpuops.errors import UsageError
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.fleet_change import (
    AddHosts,
    AddVms,
    ApplyLayout,
    ChangeGpuMode,
    ChangeProfile,
    GpuServing,
    LoseGpu,
    LoseHost,
)

TEMPLATE = Path(__file__).parents[2] / "templates" / "what-if.yaml"
GPU = PciAddress.parse("0000:3b:00.0")


def test_the_template_is_valid_and_shows_every_key() -> None:
    assert load_changes(TEMPLATE) == (
        AddHosts(2, "l40s", 8, None, GpuServing.MIXED_SIZE),
        LoseHost("esx-01.lab"),
        ChangeGpuMode(GpuServing.MIXED_SIZE, "esx-02*", "a40"),
        ChangeProfile("vdi-*", "a40-4q"),
        AddVms(10, "a40-4q"),
    )
    words = TEMPLATE.read_text(encoding="utf-8")
    keys = {*keys_of(ChangeSection), *keys_of(AddHosts)}
    assert [key for key in sorted(keys) if f"{key}:" not in words] == []


def test_a_file_may_say_each_change() -> None:
    text = (
        'version: 1\nchanges: [{lose_gpu: {host: esx-1, gpu: "3B:00.0"}}, {add_hosts: {like: esx-1}}, '
        '{gpu_mode: {mode: mig, gpu: ["0000:3b:00.0"]}}]'
    )
    assert parse_changes(text, "c") == (
        LoseGpu("esx-1", GPU),
        AddHosts(1, like="esx-1"),
        ChangeGpuMode(GpuServing.MIG, gpu=(GPU,)),
    )


def test_a_layout_file_lies_next_to_the_file_of_changes(tmp_path: Path) -> None:
    layouts = "{version: v1, mig-configs: {thirds: [{devices: all, mig-enabled: true, mig-devices: {2g.10gb: 3}}]}}"
    (tmp_path / "layouts.yaml").write_text(layouts, encoding="utf-8")
    changes = tmp_path / "changes.yaml"
    entry = '{mig_layout: {layout: "layouts.yaml:thirds", host: "esx-0*", model: a100, gpu: ["3b:00.0"]}}'
    changes.write_text(f"version: 1\nchanges: [{entry}]\n", encoding="utf-8")
    (applied,) = load_changes(changes)
    assert isinstance(applied, ApplyLayout)
    assert (applied.layout.name, applied.host, applied.model, applied.gpu) == ("thirds", "esx-0*", "a100", (GPU,))
    changes.write_text(changes.read_text(encoding="utf-8").replace(":thirds", ":third"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"layouts\.yaml has no layout 'third'; did you mean thirds\?"):
        load_changes(changes)


def test_options_say_the_same() -> None:
    assert list(added_hosts(["2xL40S:8", "1xA40:4:mixedSize"], "esx-1")) == [
        AddHosts(2, "L40S", 8, "esx-1"),
        AddHosts(1, "A40", 4, "esx-1", GpuServing.MIXED_SIZE),
    ]
    assert list(added_hosts(["3"], "esx-1")) == [AddHosts(3, like="esx-1")]
    assert list(lost_gpus(["esx-1/3B:00.0"])) == [LoseGpu("esx-1", GPU)]
    assert list(changed_profiles(["vdi-*=a40-4q"])) == [ChangeProfile("vdi-*", "a40-4q")]
    assert list(added_vms(["50xa40-8q", "2xX-pool"])) == [AddVms(50, "a40-8q"), AddVms(2, "X-pool")]


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: list(added_hosts(["L40S"], None)), "--add-hosts 'L40S' cannot be read"),
        (lambda: list(added_hosts(["3"], None)), "--add-hosts '3' cannot be read"),
        (lambda: list(added_hosts(["0xL40S:8"], None)), "--add-hosts 0xL40S:8: count: "),
        (lambda: list(added_hosts(["1xL40S:99"], None)), "--add-hosts 1xL40S:99: gpus: "),
        (lambda: list(added_hosts(["1xL40S:8:mixed"], None)), "--add-hosts 1xL40S:8:mixed: mode: "),
        (lambda: list(added_hosts([], "esx-1")), "--like needs --add-hosts"),
        (lambda: list(lost_gpus(["0000:3b:00.0"])), "--lose-gpu '0000:3b:00.0' cannot be read"),
        (lambda: list(lost_gpus(["esx-1/3b"])), "'3b' is not a PCI address"),
        (lambda: list(changed_profiles(["a40-4q"])), "--change-profile 'a40-4q' cannot be read"),
        (lambda: list(added_vms(["many"])), "--add-vms 'many' cannot be read"),
        (lambda: list(added_vms(["99999xa40-8q"])), "--add-vms 99999xa40-8q: count: "),
    ],
)
def test_what_is_wrong_in_an_option_is_one_line(read: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read()
    assert refused.value.message.startswith(message)
    assert refused.value.hint
