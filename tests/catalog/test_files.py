"""The catalogue's files: complete, reachable, read strictly, and only the requested ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import gpuops.catalog
from gpuops.catalog import load
from gpuops.catalog.catalog_files import BOARDS as BOARD_FILES
from gpuops.catalog.catalog_files import Fields, read
from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Board, Catalog

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
    with pytest.raises(UsageError, match=r"list\.yaml: the top level is not a mapping"):
        read(tmp_path / "list.yaml")


def test_rows_nobody_read_whole_are_noticed() -> None:
    fields = Fields({"rows": [{"a": "1", "b": "2"}]}, "here.yaml")
    with pytest.raises(UsageError, match=r"here\.yaml: rows\[0\]: unknown key 'b'"):
        for row in fields.rows("rows"):
            row.number("a")
