"""What `gpuops config` prints: the file that was written, the settings in force, the key that was changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuops.config.vcenter.origins import ShownTarget
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import visible


def written_text(path: Path, *, filled: bool) -> Shown:
    """Where the file is, and the next move."""
    later = "gpuops login test" if filled else "write your vCenter into it, then gpuops login test"
    return Text(f"{visible(str(path))}: written"), Text(f"next: {later}", "dim")


def written_document(path: Path) -> Document:
    """The same for programs."""
    return _document("config-init", file=str(path))


def setup_text(files: Sequence[Path], commands: Sequence[str]) -> Shown:
    """The files that `gpuops setup` wrote, and the commands to type next."""
    written = [Text(f"written  {visible(str(file))}") for file in files]
    return *written, Text("next:", "dim"), *(Text(f"  {visible(command)}") for command in commands)


def setup_document(name: str, files: Sequence[Path], commands: Sequence[str], *, roles_made: bool) -> Document:
    """The same for programs."""
    return _document("setup", target=name, files=[*map(str, files)], roles_made=roles_made, next=[*commands])


def show_text(path: Path, there: bool, default: str | None, found: Sequence[ShownTarget]) -> Shown:
    """The file, then each vCenter with a line for each setting: its value and who says it."""
    return tuple(_shown(path, there, default, found))


def _shown(path: Path, there: bool, default: str | None, found: Sequence[ShownTarget]) -> Iterator[Shown]:
    yield Text(f"{visible(str(path))}{'' if there else ': is not there'}", "dim")
    for target in found:
        yield Text(visible(target.name), "bold").append(" (default)" if target.name == default else "")
        table = TextTable()
        for each in target.settings:
            table.add_row(f"  {each.name}", visible(each.value), Text(visible(each.origin), "dim"))
        yield table
    if not found:
        yield Text("no vCenter is configured" + ("" if there else ": gpuops config init writes a first file"))


def show_document(path: Path, there: bool, default: str | None, found: Sequence[ShownTarget]) -> Document:
    """The same for programs."""
    return _document(
        "config-show",
        file=str(path),
        there=there,
        default=default,
        targets={
            target.name: {each.name: {"value": each.value, "from": each.origin} for each in target.settings}
            for target in found
        },
    )


def changed_text(path: Path, key: str, before: str, after: str) -> Shown:
    """The key with its value, and what it was."""
    was = "as it was" if before == after else f"was {visible(before)}"
    return Text(f"{visible(str(path))}: {visible(key)} is {visible(after)} ({was})")


def changed_document(path: Path, key: str, before: str, after: str) -> Document:
    """The same for programs."""
    return _document("config-set", file=str(path), key=key, before=before, after=after)


def _document(kind: str, **content: object) -> Document:
    return {"schema_version": SCHEMA_VERSION, "kind": kind, **content}
