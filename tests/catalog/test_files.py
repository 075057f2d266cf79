"""The catalogue's files, tables of drivers and assumptions: complete, read strictly, and each with its source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import yaml

import gpuops
import gpuops.catalog
from gpuops.catalog import load
from gpuops.catalog.catalog_files import BOARDS as BOARD_FILES
from gpuops.catalog.catalog_files import Fields, assumptions, load_drivers, read
from gpuops.errors import UsageError
from gpuops.model.assumption import Assumption, Confidence
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.guests.guest import GuestSystem, version_of
from gpuops.sim.scenario.build import build
from gpuops.sim.scenario.deviations import deviate

ROOT = Path(gpuops.catalog.__file__).parent
FILES = sorted([*ROOT.glob("gpus/*.yaml"), *ROOT.glob("mig/*.yaml"), ROOT / "index.yaml"])
CATALOG = load(everything=True)
NVIDIA = 0x10DE


def test_each_board_file_is_a_board_and_each_board_a_file() -> None:
    assert {path.stem for path in BOARD_FILES.glob("*.yaml")} == {board.key for board in CATALOG.boards}


def test_each_mig_family_is_used_by_a_board() -> None:
    assert {path.stem for path in ROOT.glob("mig/*.yaml")} == {
        board.mig.family for board in CATALOG.boards if board.mig
    }


@pytest.mark.parametrize("board", CATALOG.boards, ids=lambda board: board.key)
def test_a_board_is_reached_by_its_profiles_names_and_by_its_pci_ids(board: Board) -> None:
    for profile in board.profiles[:1]:
        assert [found_board.key for found_board in load(profiles=[profile.name]).boards] == [board.key]
        assert [found_board.key for found_board in load(profiles=[profile.name.upper()]).boards] == [board.key]
    for pci in board.pci_ids:
        subsystems: tuple[int | None, ...] = pci.subsystem_ids or (None,)
        for subsystem in subsystems:
            catalog = load(pci=[(pci.vendor_id, pci.device_id, subsystem)])
            assert catalog.board_by_pci(pci.vendor_id, pci.device_id, subsystem) == board
        if not pci.shared:
            assert CATALOG.board_by_pci(pci.vendor_id, pci.device_id) == board


def test_three_device_ids_are_told_apart_by_subsystem_only() -> None:
    devices = Counter(pci.device_id for board in CATALOG.boards for pci in board.pci_ids)
    twice = {device for device, count in devices.items() if count > 1}
    assert twice == {0x25B6, 0x1E30, 0x1E78}
    assert twice == {pci.device_id for board in CATALOG.boards for pci in board.pci_ids if pci.shared}
    for device in twice:
        assert CATALOG.board_by_pci(NVIDIA, device) is None
        assert len(load(pci=[(NVIDIA, device, None)]).boards) == 2
    boards = [CATALOG.board_by_pci(NVIDIA, *ids) for ids in ((0x25B6, 0x14A9), (0x1E30, 0x129E), (0x1E78, 0x13D9))]
    assert [board.key for board in boards if board] == ["a16", "rtx8000", "rtx6000p"]


def test_only_the_boards_asked_for_are_loaded() -> None:
    catalog = load(profiles=["grid_a100-3-20c", "nvidia_a40-8q", "grid_a100-40c"], pci=[(NVIDIA, 0x1EB8, None)])
    assert [board.key for board in catalog.boards] == ["t4", "a40", "a100"]


def test_an_older_hosts_brand_finds_the_board() -> None:
    assert [board.key for board in load(profiles=["grid_a40-8q"]).boards] == ["a40"]


def test_what_the_catalogue_lacks_is_left_out() -> None:
    unknown = load(profiles=["nvidia_a99-8q", "nonsense", ""], pci=[(NVIDIA, 0xFFFF, None), (0x1002, 0x2235, None)])
    assert unknown.boards == ()
    assert load().boards == ()


def test_the_same_boards_are_the_same_catalogue() -> None:
    assert load(profiles=["nvidia_a40-8q"]) is load(profiles=["nvidia_a40-48q", "nvidia_a40-8q"])
    assert load(everything=True) is load(everything=True)


def duplicate_keys(node: yaml.Node) -> Iterator[str]:
    if isinstance(node, yaml.MappingNode):
        counts = Counter(key.value for key, _ in node.value)
        yield from (key for key, count in counts.items() if count > 1)
        for _, value in node.value:
            yield from duplicate_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from duplicate_keys(value)


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_are_clean(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith("# "), "what it is comes first"
    assert text.endswith("\n")
    assert "\t" not in text
    assert max(map(len, text.splitlines())) <= 120
    # YAML lets a later key silently win over an earlier one.
    tree = yaml.compose(text, Loader=yaml.SafeLoader)
    assert tree is not None
    assert list(duplicate_keys(tree)) == []


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_survive_being_written_again(path: Path) -> None:
    raw = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)
    reread = yaml.load(yaml.safe_dump(raw, sort_keys=False), Loader=yaml.BaseLoader)
    assert reread == raw


def edit_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> str:
    """A copy of the A100's file with one edit, where the reader will look for it."""
    text = (BOARD_FILES / "a100.yaml").read_text("utf-8")
    assert old in text
    (tmp_path / "a100.yaml").write_text(text.replace(old, new, 1), "utf-8")
    monkeypatch.setattr("gpuops.catalog.catalog_files.BOARDS", tmp_path)
    return "a100"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("sriov: true\n", "", "'sriov' is missing"),
        ("sriov: true\n", "sriov: true\nwatts: 250\n", "unknown key 'watts'"),
        ("generation: Ampere", "generation: Ampre", "'generation' cannot be 'Ampre'"),
        ("framebuffer_mib: 40960", "framebuffer_mib: 40 GB", "'framebuffer_mib' cannot be '40 GB'"),
        ("sriov: true", "sriov: maybe", "'sriov' cannot be 'maybe'"),
        ("device: 20f1", "device: 20fx", "'device' cannot be '20fx'"),
        ("[145f]", "[145x]", "'subsystems' cannot be"),
        ("[145f]", "145f", "'subsystems' cannot be '145f'"),
        ("{40C: 473}", "{40Q: 473}", "time_sliced_series has no Q"),
        ("count: 1,  mixed", "cuont: 1,  mixed", "a100.yaml: 40C: 'count' is missing"),
        ("names_seen:", "exceptions:\n  99C: {count: 1}\nnames_seen:", "profiles that the board does not have: 99C"),
        ("name: NVIDIA", "name: [", "is not YAML"),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, complaint: str
) -> None:
    from gpuops.catalog.catalog_files import board

    key = edit_copy(tmp_path, monkeypatch, old, new)
    with pytest.raises(UsageError) as caught:
        board(key)
    assert complaint in caught.value.message
    assert "a100" in caught.value.message


def test_a_profile_without_a_name_is_in_no_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuops.catalog.catalog_files import board

    nameless_board = board(edit_copy(tmp_path, monkeypatch, "full_name: GRID A100", "full_name: null"))
    assert (nameless_board.profiles, nameless_board.esxi_prefix) == ((), None)
    assert {profile.short_name for profile in nameless_board.nameless} >= {"A100-40C", "A100-3-20C"}
    assert not any(profile.attachable for profile in nameless_board.nameless)
    assert Catalog((nameless_board,)).profile("") is None


def test_what_one_profile_has_of_its_own_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuops.catalog.catalog_files import board

    key = edit_copy(
        tmp_path, monkeypatch, "names_seen:", "exceptions:\n  8C: {count: 3, verified: derived}\nnames_seen:"
    )
    [changed] = [profile for profile in board(key).profiles if profile.short_name == "A100-8C"]
    assert (changed.max_per_gpu, changed.verified) == (3, "derived")
    assert changed.max_per_gpu_mixed == 4


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- one\n- two\n")
    with pytest.raises(UsageError, match=r"list\.yaml has no keys at its top level"):
        read(tmp_path / "list.yaml")


def test_rows_nobody_read_whole_are_noticed() -> None:
    fields = Fields({"rows": [{"a": "1", "b": "2"}]}, "here.yaml")
    with pytest.raises(UsageError, match=r"here\.yaml: rows\[0\]: unknown key 'b'"):
        for row in fields.rows("rows"):
            row.number("a")


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


PACKAGE: Final = Path(gpuops.__file__).parent
SURE: Final = (Confidence.RECORDED, Confidence.DOCUMENTED)


def marks(*folders: str) -> Iterator[str]:
    """The ids of all marks `assumption: ID` below these folders of the package."""
    for folder in folders:
        for path in (PACKAGE / folder).rglob("*"):
            if path.suffix in (".py", ".yaml") and path.name != "assumptions.yaml":
                yield from re.findall(r"assumption: ([a-z][a-z0-9-]*)", path.read_text(encoding="utf-8"))


def test_each_assumption_is_marked_in_the_product_and_in_the_simulator() -> None:
    folders = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("sim", "catalog")]
    assert set(marks(*folders)) == set(assumptions())
    assert set(marks("sim")) == set(assumptions())


@pytest.mark.parametrize("row", assumptions().values(), ids=assumptions())
def test_what_no_document_settles_has_a_deviation(row: Assumption) -> None:
    assert row.statement
    assert row.source
    assert row.deviation or row.confidence in SURE
    assert row.source != "none" or row.confidence is Confidence.MEMORY


def test_an_unknown_deviation_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no deviation is called 'gpu-choise'") as refused:
        deviate(build("lab"), ["gpu-choise"])
    assert "gpu-choice" in refused.value.hint
