"""Archives that come from others: whatever they are, they are read within limits or refused in a line."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.errors import GpuopsError, PolicyError
from gpuops.files import bundle_file
from gpuops.files.bundle_file import read_member
from gpuops.sim.scenario.build import build

MANIFEST = json.dumps({"kind": "gpuops-bundle"})
SCENARIO = json.dumps({"description": "x"})


def archive(*members: tuple[str | zipfile.ZipInfo, str | bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", packing) as zip_file:
        for name, content in members:
            zip_file.writestr(name, content)
    return packed.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    symlink = zipfile.ZipInfo(name)
    symlink.external_attr = (stat.S_IFLNK | 0o777) << 16
    return symlink


def damage() -> bytes:
    whole = bytearray(archive(("manifest.json", MANIFEST), ("scenario.json", SCENARIO * 100)))
    at = whole.index(b"scenario.json") + len("scenario.json")
    whole[at + 4 : at + 12] = b"\0" * 8
    return bytes(whole)


def encrypt() -> bytes:
    whole = bytearray(archive(("manifest.json", MANIFEST), ("scenario.json", SCENARIO)))
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = whole.index(signature)
        while at >= 0:
            whole[at + flags] |= 1
            at = whole.find(signature, at + 1)
    return bytes(whole)


def packed_by(packing: int, *, broken: bool = False) -> bytes:
    """An archive packed in this way; or one that only says so, of what LZMA cannot unpack."""
    members = (("manifest.json", MANIFEST), ("scenario.json", SCENARIO))
    if not broken:
        return archive(*members, packing=packing)
    whole = bytearray(archive(*members, packing=zipfile.ZIP_STORED))
    for signature, at_method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = whole.index(signature)
        while at >= 0:
            whole[at + at_method] = packing
            at = whole.find(signature, at + 1)
    return bytes(whole)


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"", "can be read"),
        (lambda: b"PK\x03\x04 nothing", "can be read"),
        (lambda: archive(("manifest.json", MANIFEST), ("scenario.json", SCENARIO))[:-30], "can be read"),
        (damage, "can be read"),
        (encrypt, "can be read"),
        (lambda: archive(("scenario.json", SCENARIO)), "it has no files manifest.json"),
        (lambda: archive(("manifest.json", MANIFEST)), "it has no files scenario.json"),
        (lambda: archive(("manifest.json", "{}"), ("scenario.json", SCENARIO)), "its manifest.json has another `kind`"),
        (lambda: archive(("manifest.json", "["), ("scenario.json", SCENARIO)), "can be read"),
        (lambda: archive(("manifest.json", MANIFEST), ("scenario.json", "[" * 100_000)), "can be read"),
        (lambda: archive(("manifest.json", MANIFEST), ("scenario.json", "1" * 5000)), "can be read"),
        (lambda: archive(("manifest.json", MANIFEST), ("scenario.json", b"\xff\xfe\xfd")), "can be read"),
        (
            lambda: archive(("manifest.json", MANIFEST), ("scenario.json", SCENARIO), ("scenario.json", SCENARIO)),
            "it has 2 files scenario.json",
        ),
        (
            lambda: archive(("manifest.json", MANIFEST), (link("scenario.json"), "/etc/passwd")),
            "scenario.json is a link",
        ),
        (lambda: archive(("manifest.json", MANIFEST), ("../scenario.json", SCENARIO)), "it has no files scenario.json"),
        (lambda: archive(*((f"{n}", "") for n in range(40)), ("manifest.json", MANIFEST)), "has 41 files"),
        pytest.param(
            lambda: archive(*((f"{n}", "") for n in range(80_000))), "has 80000 files", marks=pytest.mark.long
        ),  # more than a directory of 16 bits counts: two seconds to write
        (lambda: packed_by(zipfile.ZIP_LZMA), "its manifest.json is compressed by another method"),
        (lambda: packed_by(zipfile.ZIP_LZMA, broken=True), "its manifest.json is compressed by another method"),
        (lambda: packed_by(zipfile.ZIP_BZIP2), "its manifest.json is compressed by another method"),
        (
            lambda: archive(("manifest.json", MANIFEST), ("scenario.json", f"[{'1,' * 4_000_001}1]")),
            "its scenario.json has more than 4,000,000 values",
        ),
        (
            lambda: archive(("manifest.json", MANIFEST), ("scenario.json", f"[{'[],' * 1_000_000}[]]")),
            "its scenario.json has more than 1,000,000 lists and objects",
        ),
    ],
)
def test_what_is_no_bundle(make: Callable[[], bytes], message: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(make())
    with pytest.raises(PolicyError) as refused:
        read_member(path, "scenario.json")
    assert message in refused.value.message
    assert refused.value.message.startswith(f"{path}")
    assert refused.value.hint
    assert [unpacked.name for unpacked in tmp_path.iterdir()] == ["bundle.zip"], "nothing was unpacked"


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_file, "LARGEST_MEMBER", 1 << 20)
    path = tmp_path / "bundle.zip"
    path.write_bytes(archive(("manifest.json", MANIFEST), ("scenario.json", " " * (64 << 20))))
    assert path.stat().st_size < 100_000
    with pytest.raises(PolicyError, match="larger than 1 MiB unpacked"):
        read_member(path, "scenario.json")


def test_an_archive_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_file, "LARGEST_ARCHIVE", 100)
    path = tmp_path / "bundle.zip"
    path.write_bytes(b"x" * 101)
    with pytest.raises(PolicyError, match="larger than 100 bytes"):
        read_member(path, "scenario.json")


@pytest.mark.parametrize("scenario", ["[]", "{}", '{"vms": 7}', SCENARIO, "null"])
def test_a_scenario_that_is_none(scenario: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(archive(("manifest.json", MANIFEST), ("scenario.json", scenario)))
    with pytest.raises(GpuopsError) as refused:
        build(str(path))
    assert refused.value.message.startswith(f"scenario {path}: ")


def test_a_bundle_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        build(str(tmp_path / "none.zip"))
