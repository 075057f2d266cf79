"""The output of `gpuops config` (the file written, the settings in force, the key changed) and of `gpuops explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Self

from msgspec import field

from gpuops.config.explanation import Explanation
from gpuops.config.vcenter.origins import ShownTarget
from gpuops.report.document import DocumentRecord, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable


def written_text(path: Path, *, filled: bool) -> Shown:
    """Return the path of the file, and the next move."""
    later = "gpuops login test" if filled else "write your vCenter into it, then gpuops login test"
    return Text(f"{path}: written"), Text(f"next: {later}", "dim")


@printed("config-init", by="gpuops config init")
class ConfigInitDocument(PrintedDocument, frozen=True):
    """The configuration file that was written."""

    file: Annotated[str, "its path"]


def setup_text(files: Sequence[Path], commands: Sequence[str]) -> Shown:
    """Return the files that `gpuops setup` wrote, and the commands to type next."""
    written = [Text(f"written  {file}") for file in files]
    return *written, Text("next:", "dim"), *(Text(f"  {command}") for command in commands)


@printed("setup", by="gpuops setup")
class SetupDocument(PrintedDocument, frozen=True):
    """The vCenter that was set up."""

    target: Annotated[str, "its name in the configuration file"]
    files: Annotated[list[str], "the files that were written, the configuration file first"]
    roles_made: Annotated[bool, "whether the roles of gpuops were made in vCenter"]
    next: Annotated[list[str], "the commands to type next"]


def show_text(path: Path, file_exists: bool, default: str | None, targets: Sequence[ShownTarget]) -> Iterator[Shown]:
    """Yield the path of the file, then each vCenter with a line for each setting: its value and where it is set."""
    yield Text(f"{path}{'' if file_exists else ': is not there'}", "dim")
    for target in targets:
        yield Text(target.name, "bold").append(" (default)" if target.name == default else "")
        rows = ((f"  {setting.name}", setting.value, Text(setting.origin, "dim")) for setting in target.settings)
        yield TextTable(rows=rows)
    if not targets:
        yield Text("no vCenter is configured" + ("" if file_exists else ": gpuops config init writes a first file"))


class SettingRecord(DocumentRecord, frozen=True):
    """A setting in force."""

    value: str
    from_: Annotated[str, "an option, a variable, FILE:LINE or the default"] = field(name="from")


@printed("config-show", by="gpuops config show")
class ConfigShowDocument(PrintedDocument, frozen=True):
    """The settings in force for each vCenter, and where each comes from."""

    file: Annotated[str, "path of the configuration file"]
    there: Annotated[bool, "whether the file is there"]
    default: Annotated[str | None, "the target that is meant where none is named"]
    targets: Annotated[
        dict[str, dict[str, SettingRecord]],
        "by the target's name, then by the setting's; of a password only whether it is set",
    ]


def show_document(
    path: Path, file_exists: bool, default: str | None, targets: Sequence[ShownTarget]
) -> ConfigShowDocument:
    """Return the settings in force as a document."""
    settings = {
        target.name: {setting.name: SettingRecord(setting.value, setting.origin) for setting in target.settings}
        for target in targets
    }
    return ConfigShowDocument(str(path), file_exists, default, settings)


def changed_text(path: Path, key: str, before: str, after: str) -> Shown:
    """Return the key with its new value and its old one."""
    earlier = "as it was" if before == after else f"was {before}"
    return Text(f"{path}: {key} is {after} ({earlier})")


@printed("config-set", by="gpuops config set")
class ConfigSetDocument(PrintedDocument, frozen=True):
    """The key of the configuration file that was changed."""

    file: Annotated[str, "path of the configuration file"]
    key: Annotated[str, "TARGET.KEY, or default"]
    before: str
    after: str


def explain_text(explanation: Explanation) -> Iterator[Shown]:
    """Yield the key, the values that it may have, the keys below it, and an example."""
    yield Text(explanation.path, "bold")
    if explanation.description:
        yield Text(f"  {explanation.description}")
    facts = TextTable()
    facts.add_row("  type", explanation.type)
    if explanation.allowed:
        facts.add_row("  allowed", ", ".join(map(_constant_text, explanation.allowed)))
    if "." in explanation.path:
        facts.add_row("  required", "yes" if explanation.required else "no")
    if explanation.default is not None:
        facts.add_row("  default", _constant_text(explanation.default))
    yield facts
    if explanation.keys:
        yield from (Text(), Text("keys", "bold"))
        table = TextTable()
        for key in explanation.keys:
            required = " (required)" if key.required else ""
            table.add_row(
                f"  {key.path.rpartition('.')[2]}",
                f"{key.description.partition('. ')[0].removesuffix('.') or key.type}{required}",
            )
        yield table
    if explanation.example:
        yield from (Text(), Text("example", "bold"))
        yield from (Text(f"  {line}") for line in explanation.example.splitlines())


def _constant_text(constant: object) -> str:
    return constant if isinstance(constant, str) else dumps(constant)


@printed("explain", by="gpuops explain")
class ExplainDocument(PrintedDocument, frozen=True):
    """A key of a file that people write."""

    path: Annotated[str, "the file and its keys"]
    description: str
    type: str
    allowed: Annotated[list[str], "empty = whatever is of the type"]
    required: bool
    default: Annotated[str | None, "as JSON if it is no text; null = there is none"]
    keys: Annotated[dict[str, str], "descriptions of the keys below it"]
    example: Annotated[str, "lines of the template that comes with gpuops; empty = without an example"]

    @classmethod
    def made_of(cls, explanation: Explanation) -> Self:
        return cls.from_attributes(
            explanation,
            allowed=list(map(_constant_text, explanation.allowed)),
            default=None if explanation.default is None else _constant_text(explanation.default),
            keys={key.path.rpartition(".")[2]: key.description for key in explanation.keys},
        )
