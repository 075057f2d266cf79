"""Files that others write: archives and YAML are read within limits, or refused in one line."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.errors import GpuopsError, PolicyError
from gpuops.files import bundle_file
from gpuops.files.bundle_file import read_member
from gpuops.files.yaml_file import parse_yaml
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
        (lambda: archive(("scenario.json", SCENARIO)), "it has no files named manifest.json"),
        (lambda: archive(("manifest.json", MANIFEST)), "it has no files named scenario.json"),
        (lambda: archive(("manifest.json", "{}"), ("scenario.json", SCENARIO)), "its manifest.json has another `kind`"),
        (lambda: archive(("manifest.json", "["), ("scenario.json", SCENARIO)), "can be read"),
        (lambda: archive(("manifest.json", MANIFEST), ("scenario.json", "[" * 100_000)), "can be read"),
        (lambda: archive(("manifest.json", MANIFEST), ("scenario.json", "1" * 5000)), "can be read"),
        (lambda: archive(("manifest.json", MANIFEST), ("scenario.json", b"\xff\xfe\xfd")), "can be read"),
        (
            lambda: archive(("manifest.json", MANIFEST), ("scenario.json", SCENARIO), ("scenario.json", SCENARIO)),
            "it has 2 files named scenario.json",
        ),
        (
            lambda: archive(("manifest.json", MANIFEST), (link("scenario.json"), "/etc/passwd")),
            "scenario.json is a link",
        ),
        (
            lambda: archive(("manifest.json", MANIFEST), ("../scenario.json", SCENARIO)),
            "it has no files named scenario.json",
        ),
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


TAGGED = [
    "!!bool x",
    "!!timestamp x",
    '!!int ""',
    '!!float ""',
    "!!null x",
    "!!binary x",
    "!!str x",
    "!own x",
    "! x",
    "!<tag:yaml.org,2002:int> 5",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!pairs [a: 1]",
    "!!map {a: 1}",
    "!!seq [a]",
    "&anchor !!int 5",
    "!!merge <<",
    "!!value =",
    "[a, !!bool x]",
    "{!!int 1: 2}",
]


@pytest.mark.quick_cases(13)
@pytest.mark.parametrize("value", TAGGED)
@pytest.mark.parametrize("merges", [False, True])
def test_a_tag_is_refused_with_its_line(value: str, merges: bool) -> None:
    with pytest.raises(PolicyError, match=r"^x\.yaml: line 2, column \d+: the tag '.+': gpuops accepts no tags$"):
        parse_yaml(f"version: 1\nname: {value}\n", "x.yaml", merges=merges)


@pytest.mark.parametrize("value", [r'"\ud800"', r'"\udfff\ud800"', r'{"\udc00": 1}', r'["\ud83d\ude00"]'])
def test_half_of_a_surrogate_pair_is_refused_with_its_line(value: str) -> None:
    with pytest.raises(PolicyError, match=r"^x\.yaml: line 2, column \d+: it holds half of a surrogate pair"):
        parse_yaml(f"version: 1\nname: {value}\n", "x.yaml")


def test_other_texts_are_read() -> None:
    text = 'a: "!!bool x"\nb: \'! x\'\nc: x!!y\nd: "\\U0001F600 \\u00e9"\n'
    assert parse_yaml(text, "x.yaml") == {"a": "!!bool x", "b": "! x", "c": "x!!y", "d": "\U0001f600 é"}


@pytest.mark.parametrize(
    "arguments", [["rotate", "plan", "--vcenter", "sim:lab", "--policy"], ["sim", "serve", "--scenario"]]
)
def test_a_command_ends_as_by_any_wrong_file(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "tagged.yaml"
    path.write_text("name: !!bool x\n", encoding="utf-8")
    completed = CliRunner().invoke(app, [*arguments, str(path)])
    assert (completed.exit_code, completed.stdout) == (2, "")
    assert f"error: {path}: line 1, column 7: the tag 'tag:yaml.org,2002:bool'" in completed.stderr
