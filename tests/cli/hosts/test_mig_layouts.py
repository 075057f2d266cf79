"""`gpuops host mig check` as typed: named layouts of a file judged against a GPU model, without a vCenter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Golden = Callable[[str, str], None]
Gpuops = Callable[..., Result]
TEMPLATE = Path(__file__).parents[3] / "templates" / "mig-layout.yaml"


def check(gpuops: Gpuops, file: Path, model: str, *words: str, code: int = 0) -> Any:
    result = gpuops("host", "mig", "check", "--file", str(file), "--model", model, *words, "--output", "json")
    assert (result.exit_code, result.stderr) == (code, "")
    document = json.loads(result.stdout)
    assert document["exit_code"] == code
    return document


def layout(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "layout.yaml"
    path.write_text(f"version: v1\n{text}", encoding="utf-8")
    return path


def instances(tmp_path: Path, counts: str) -> Path:
    return layout(tmp_path, f"mig-configs: {{a: [{{devices: all, mig-enabled: true, mig-devices: {{{counts}}}}}]}}")


def vgpus(tmp_path: Path, counts: str) -> Path:
    return layout(tmp_path, f"vgpu-configs: {{a: [{{devices: all, vgpu-devices: {{{counts}}}}}]}}")


def verdict(document: Any) -> tuple[str, str]:
    (part,) = document["layouts"][0]["parts"]
    return part["verdict"], part["because"]


def free(document: Any) -> dict[str, tuple[int, int]]:
    (part,) = document["layouts"][0]["parts"]
    return {profile["name"]: (profile["at_least"], profile["at_most"]) for profile in part["free"]}


def test_the_template_on_an_a100(gpuops: Gpuops, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TEMPLATE.parents[1])
    result = gpuops("host", "mig", "check", "--file", "templates/mig-layout.yaml", "--model", "a100")
    assert (result.exit_code, result.stderr) == (0, "")
    golden("mig-check.txt", result.stdout)
    layouts = check(gpuops, TEMPLATE, "a100")["layouts"]
    assert [(layout["name"], layout["verdict"]) for layout in layouts] == [
        ("all-1g.5gb", "fits"),
        ("balanced", "fits"),
        ("half", "fits"),
    ]
    assert [part["verdict"] for part in layouts[1]["parts"]] == ["fits", "other model"]


def test_one_layout_by_name(gpuops: Gpuops) -> None:
    assert [layout["name"] for layout in check(gpuops, TEMPLATE, "h100", "--layout", "balanced")["layouts"]] == [
        "balanced"
    ]
    result = gpuops("host", "mig", "check", "--file", str(TEMPLATE), "--model", "h100", "--layout", "balance")
    assert result.exit_code == 2
    assert "has no layout 'balance'; did you mean balanced?" in result.stderr


def test_room_depends_on_where_instances_lie(gpuops: Gpuops, tmp_path: Path) -> None:
    """Beside 3g at slice 0 there are three single slices, beside 3g at slice 4 four."""
    room = free(check(gpuops, instances(tmp_path, '"3g.40gb": 1'), "h100"))
    assert (room["1g.10gb"], room["1g.10gb+me"], room["4g.40gb"]) == ((3, 4), (1, 1), (0, 1))
    assert "7g.80gb" not in room


def test_instances_owning_the_media_engines(gpuops: Gpuops, tmp_path: Path) -> None:
    assert "1g.10gb+me" not in free(check(gpuops, instances(tmp_path, '"1g.10gb+me": 1'), "h100"))
    wrong = check(gpuops, instances(tmp_path, '"1g.10gb+me": 2'), "h100", code=3)
    assert verdict(wrong) == ("does not fit", "no place for a 1g.10gb+me next to 1 x 1g.10gb+me")


@pytest.mark.parametrize(
    ("model", "counts", "because"),
    [
        ("h100", '"3g.40gb": 1, "2g.20gb": 3', "no place for a 2g.20gb next to 1 x 3g.40gb and 2 x 2g.20gb"),
        ("h100", '"3g.41gb": 1', "has no GPU instance 3g.41gb; it has: 1g.10gb, 1g.10gb+me, 1g.20gb"),
        ("h100", '"1c.3g.40gb": 1', "is a compute instance, a part of a GPU instance"),
        ("rtx-pro-6000", '"1g.24gb": 4', "no vGPU runs in a GPU instance 1g.24gb; vGPUs of NVIDIA RTX PRO 6000"),
        ("a40", '"1g.5gb": 1', "NVIDIA A40 has no MIG mode"),
    ],
)
def test_why_instances_do_not_fit(gpuops: Gpuops, tmp_path: Path, model: str, counts: str, because: str) -> None:
    word, reason = verdict(check(gpuops, instances(tmp_path, counts), model, code=3))
    assert word == "does not fit"
    assert because in reason


def test_vgpus_of_one_size_are_in_same_size_mode(gpuops: Gpuops, tmp_path: Path) -> None:
    document = check(gpuops, vgpus(tmp_path, '"A40-8Q": 5'), "a40")
    assert document["layouts"][0]["parts"][0]["vgpu_mode"] == "sameSize"
    assert free(document)["nvidia_a40-8a"] == (1, 1)
    assert "nvidia_a40-4q" not in free(document)


def test_vgpus_of_several_sizes_are_in_mixed_size_mode(gpuops: Gpuops, tmp_path: Path) -> None:
    document = check(gpuops, vgpus(tmp_path, '"A40-24Q": 1, "nvidia_a40-8c": 2'), "a40")
    assert document["layouts"][0]["parts"][0]["vgpu_mode"] == "mixedSize"
    wrong = check(gpuops, vgpus(tmp_path, '"A40-24Q": 1, "A40-8C": 3'), "a40", code=3)
    assert verdict(wrong) == (
        "does not fit",
        "no place for a nvidia_a40-8c next to 1 x nvidia_a40-24q and 2 x nvidia_a40-8c",
    )


def test_mig_backed_vgpus(gpuops: Gpuops, tmp_path: Path) -> None:
    room = free(check(gpuops, vgpus(tmp_path, '"A100-3-20C": 1, "A100-2-10C": 1'), "a100"))
    assert room["grid_a100-1-5c"] == (1, 2)
    shared = free(check(gpuops, vgpus(tmp_path, '"DC-1-12Q": 3'), "rtx-pro-6000"))
    assert shared["nvidia_rtx_pro_6000_blackwell_dc-1-12q"] == (5, 5)


@pytest.mark.parametrize(
    ("model", "counts", "code", "word", "because"),
    [
        ("a40", '"A100-8C": 1', 3, "does not fit", "NVIDIA A40 has no vGPU type A100-8C; near: nvidia_a40-8c"),
        ("a100", '"A100-8C": 1, "A100-1-5C": 1', 3, "does not fit", "time-sliced and MIG-backed vGPUs never run"),
        ("p40", '"P40-12Q": 1, "P40-8Q": 1', 3, "does not fit", "Tesla P40 has no mixed-size mode"),
        ("rtx-pro-6000", '"DC-1-12Q": 1, "DC-1-12C": 1, "DC-1-24Q": 3', 3, "unknown", "share a GPU instance is not"),
        ("h20", '"H20-48C": 1, "H20-24C": 1', 3, "unknown", "start is not known"),
    ],
)
def test_why_vgpus_do_not_fit(
    gpuops: Gpuops, tmp_path: Path, model: str, counts: str, code: int, word: str, because: str
) -> None:
    printed_verdict, reason = verdict(check(gpuops, vgpus(tmp_path, counts), model, code=code))
    assert (printed_verdict, because in reason) == (word, True), reason


def test_a_layout_for_other_models_alone_is_refused(gpuops: Gpuops, tmp_path: Path) -> None:
    file = layout(
        tmp_path,
        'mig-configs: {a: [{device-filter: "0x233110DE", devices: all, mig-enabled: false}]}',
    )
    assert check(gpuops, file, "a100", code=3)["layouts"][0]["verdict"] == "other model"
    assert check(gpuops, file, "h100")["layouts"][0]["verdict"] == "fits"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mig-configs: {a: [{devices: all, mig-enabled: !!bool x}]}", "line 2, column 47: the tag"),
        ("mig-configs: {a: [{devices: all, mig-enabled: true}]}", "`mig-devices` is missing"),
        ("mig-configs: {a: [{devices: first, mig-enabled: false}]}", "mig-configs.a.0.devices: should be `all`, or a"),
        ("mig-configs: {a: [{devices: null, mig-enabled: false}]}", "mig-configs.a.0.devices: should be `all`, or a"),
        ("mig-configs: {}", "mig-configs: should have at least one entry"),
        ("mig-configs:", "`mig-configs` is empty: it should have at least one layout"),
        ("vgpu-configs:", "`vgpu-configs` is empty: it should have at least one layout"),
        ("mig-configs: {a: []}", "mig-configs.a: should not be an empty list"),
        ("vgpu-configs: {a: ['T4-8Q']}", "vgpu-configs.a.0: should have keys of its own"),
        ("vgpu-configs: {a: [{device-filter: T4, devices: all, vgpu-devices: {}}]}", "device id and a vendor id"),
        ("other: 1", "unknown key"),
        ("mig-configs: {a: [{devices: all, mig-enabled: false}]}\nvgpu-configs: {}", "vgpu-configs: "),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(gpuops: Gpuops, tmp_path: Path, text: str, message: str) -> None:
    file = layout(tmp_path, text)
    result = gpuops("host", "mig", "check", "--file", str(file), "--model", "a100")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) <= 2
