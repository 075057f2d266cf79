"""The tables of drivers: each pair has its document, each branch is listed once, and a wrong file is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from gpuops.catalog.catalog_files import load_drivers
from gpuops.errors import UsageError
from gpuops.model.guests.guest import GuestSystem, version_of

TABLES = load_drivers()


def test_every_entry_names_the_document_that_says_so() -> None:
    sources = [
        *(pair.source for pair in TABLES.pairs),
        *(window.source for window in TABLES.windows),
        *(cuda_row.source for cuda_row in TABLES.cuda),
    ]
    assert len(sources) > 10
    for source in sources:
        assert "docs.nvidia.com/" in source or "NVIDIA vGPU driver catalogue, version" in source


def test_a_host_takes_its_own_branch_and_no_newer_one_and_is_listed_once() -> None:
    assert len({pair.host for pair in TABLES.pairs}) == len(TABLES.pairs)
    for pairs in TABLES.pairs:
        assert pairs.guests[0] == pairs.host == max(pairs.guests)
        assert list(pairs.guests) == sorted(set(pairs.guests), reverse=True)
    assert TABLES.guests_of(550) is None


def test_numbers_of_windows_drivers_do_not_overlap() -> None:
    spans = sorted((window.first, window.last) for window in TABLES.windows)
    assert all(first <= last for first, last in spans)
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    assert TABLES.branch_of("528.24", GuestSystem.WINDOWS) == 525
    assert TABLES.branch_of("528.24", GuestSystem.LINUX) == 528
    assert TABLES.branch_of("R580", GuestSystem.LINUX) is None


@pytest.mark.parametrize(
    ("cuda", "linux", "windows"),
    [("12.4", "525", "525"), ("13", "580", "580"), ("11.8", "450.80.02", "452.39"), ("10.1", "418.39", "418.96")],
)
def test_what_cuda_needs(cuda: str, linux: str, windows: str) -> None:
    version = version_of(cuda)
    assert version is not None
    minimum = TABLES.cuda_minimum(version)
    assert minimum is not None
    assert (minimum.of(GuestSystem.LINUX), minimum.of(GuestSystem.WINDOWS)) == (version_of(linux), version_of(windows))


@pytest.mark.parametrize("cuda", ["9.2", "10", "10.3", "14.0"])
def test_what_no_page_tells_is_unknown(cuda: str) -> None:
    version = version_of(cuda)
    assert version is not None
    assert TABLES.cuda_minimum(version) is None


@pytest.mark.parametrize(
    "row",
    [
        "pairs: [{host: 580, guests: [580], no_others: false}]",
        "pairs: [{host: 580, guests: [580], no_others: false, source: x, more: 1}]",
        "cuda: [{major: 12, minor: null, linux: new, windows: '525', source: x}]",
        "others: []",
    ],
)
def test_a_file_that_cannot_be_read_as_meant_is_refused(row: str, tmp_path: Path) -> None:
    path = tmp_path / "drivers.yaml"
    path.write_text(row, encoding="utf-8")
    with pytest.raises(UsageError):
        load_drivers(path)
