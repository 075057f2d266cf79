"""Requests files are read as they are meant, or refused in one line that names the file, the place and the reason."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpuops.config.decoding import keys_of
from gpuops.config.requests_file import RequestEntry, load_requests, request_of
from gpuops.errors import PolicyError, UsageError
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.workloads.workload import Workload, memory_mib

TEMPLATE = Path(__file__).parents[2] / "templates" / "requests.yaml"
A = "{name: a, profile: a40-8q, vcpu: 4, memory: 16GiB}"


def test_the_template_is_valid_and_shows_every_key() -> None:
    workloads = {workload.name: workload for workload in load_requests(TEMPLATE)}
    assert workloads["train-a"] == Workload(
        "train-a", 16, 128 * 1024, "a100-3-20c", 2, numa=NumaPolicy.REQUIRED, priority=10
    )
    assert workloads["render"] == Workload(
        "render", 16, 96 * 1024, gpus=1, model="l40s", cluster="lab-cluster", host="esx-*"
    )
    assert (workloads["pair-1"].affinity, workloads["web-1"].anti_affinity, workloads["batch-2"].spread) == (
        "pair",
        "web",
        "batch",
    )
    text = TEMPLATE.read_text(encoding="utf-8")
    assert [key for key in keys_of(RequestEntry) if f"{key}:" not in text] == []


def test_csv_has_the_same_keys_and_an_empty_cell_is_a_key_not_given(tmp_path: Path) -> None:
    path = tmp_path / "requests.CSV"
    path.write_text(
        "\ufeffname, profile ,gpus,vcpu,memory,numa,priority\r\n"
        '"a,1",a40-8q,,4,16 GB,,\r\n'
        "\r\n"
        "b,,2,8,1TiB,required,-3\r\n",
        encoding="utf-8",
    )
    assert load_requests(path) == (
        Workload("a,1", 4, 16 * 1024, "a40-8q"),
        Workload("b", 8, 1024 * 1024, gpus=2, numa=NumaPolicy.REQUIRED, priority=-3),
    )


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    path.write_text("version: 1", encoding="utf-8")
    with pytest.raises(PolicyError, match=r"is neither a \.yaml nor a \.csv file"):
        load_requests(path)
    with pytest.raises(PolicyError, match=f"cannot be read: {os.strerror(errno.ENOENT)}"):
        load_requests(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "mib"),
    [("64GiB", 65536), ("64 gb", 65536), ("64G", 65536), ("512MiB", 512), ("1.5TiB", 1572864), (" 1m ", 1)],
)
def test_sizes_of_memory(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "64", "GiB", "-1GiB", "0GiB", "1.5MiB", "1e3GiB", "64KiB", "64 GiB x"])
def test_no_sizes_of_memory(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size of memory"):
        memory_mib(text)


def test_what_the_command_line_lacks_is_named_as_options() -> None:
    with pytest.raises(UsageError, match="place needs --vcpu and --memory, or --file"):
        request_of({"profile": "a40-8q"})
    with pytest.raises(
        UsageError,
        match=r"^give one of profile \(vGPUs\), gpus \(whole GPUs\), device \(GPUs by address\) and device_group$",
    ):
        request_of({"vcpu": 1, "memory": "1GiB"})
    assert request_of({"gpus": 2, "vcpu": 1, "memory": "1GiB"}) == Workload("request", 1, 1024, gpus=2)
