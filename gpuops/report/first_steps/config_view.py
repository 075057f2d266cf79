"""Text and documents of `gpuops config`, `gpuops setup`, `gpuops explain` and `gpuops login test`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Self

from msgspec import field

from gpuops.config.explanation import Explanation
from gpuops.config.vcenter.origins import ShownTarget
from gpuops.model.vcenter.login import LackingPrivileges, LoginTest, ObjectKind, VerbNeed, VerbPrivileges
from gpuops.plan.core.rejection import some_names
from gpuops.report.document import DocumentRecord, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.nights.desktop_use_view import BrokerRecord
from gpuops.report.text import count


def written_text(path: Path, *, filled: bool) -> Shown:
    """Return the path of the file, and the next move."""
    next_move = "gpuops login test" if filled else "write your vCenter into it, then gpuops login test"
    return Text(f"{path}: written"), Text(f"next: {next_move}", "dim")


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
    yield Text(f"{path}{'' if file_exists else ': does not exist'}", "dim")
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
    earlier = "unchanged" if before == after else f"was {before}"
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


def login_text(test: LoginTest) -> Iterator[Shown]:
    """Yield the vCenter, the user, the protocol that reads inventories from now on, and what the login may do."""
    yield (
        Text(f"{test.address}: {test.product}", "bold"),
        Text(f"user      {test.user}"),
        Text(f"API       {test.api_version}"),
        Text(f"instance  {test.uuid or 'unknown'}"),
    )
    if test.broker is not None:
        cluster = f", {test.broker.cluster}" if test.broker.cluster else ""
        yield Text(f"broker    {test.broker.address}: {test.broker.product}{cluster}")
        yield Text(f"          user {test.broker.user}")
    yield from _reader_lines(test)
    yield from _privilege_lines(test)


class DifferenceRecord(DocumentRecord, frozen=True):
    """A value that differs between the protocols."""

    path: str
    soap: str
    json: str


class ViJsonRecord(DocumentRecord, frozen=True):
    """What VI/JSON reported compared with SOAP."""

    offered: bool
    equal: bool
    failure: str | None
    differences: list[DifferenceRecord]


class LackingPrivilegesRecord(DocumentRecord, frozen=True):
    """Privileges that the login lacks, and where."""

    privileges: list[str]
    places: Annotated[list[str], "folders of VMs; hosts, clusters and datastores by name"]

    @classmethod
    def made_of(cls, lacking: LackingPrivileges) -> Self:
        return cls.from_attributes(lacking, privileges=sorted(lacking.privileges))


class VerbNeedRecord(DocumentRecord, frozen=True):
    """What a verb needs on one kind of object."""

    on: ObjectKind
    privileges: list[str]
    allowed: Annotated[list[str], "where the login has all of them"]
    lacking: list[LackingPrivilegesRecord]
    untold: Annotated[int, "the number of objects for which vCenter does not report what the login may do"]

    @classmethod
    def made_of(cls, need: VerbNeed) -> Self:
        return cls.from_attributes(need, on=need.kind, privileges=sorted(need.privileges))


class VerbPrivilegesRecord(DocumentRecord, frozen=True):
    """A verb, and what it needs."""

    verb: Annotated[str, "the command"]
    allowed: Annotated[bool, "whether the login lacks nothing for it anywhere"]
    role: Annotated[str | None, "the template with the role for it"]
    needs: list[VerbNeedRecord]

    @classmethod
    def made_of(cls, verb: VerbPrivileges) -> Self:
        return cls.from_attributes(verb, role=verb.role or None)


class LoginPrivilegesRecord(DocumentRecord, frozen=True):
    """What the login may do, verb by verb."""

    told: Annotated[bool, "whether vCenter reports it; otherwise `verbs` is empty"]
    asked_vms: Annotated[int, "the number of VMs for which the privileges were read"]
    verbs: list[VerbPrivilegesRecord]


@printed("login-test", by="gpuops login test")
class LoginTestDocument(PrintedDocument, frozen=True):
    """What a login reaches, and whether both protocols report the same."""

    address: str
    user: str
    product: str
    vcenter: Annotated[str, "its instance uuid"]
    api_version: str
    reader: Annotated[str, "json or soap, over which inventories are read"]
    vi_json: ViJsonRecord
    broker: Annotated[BrokerRecord | None, "the connection broker, where one is configured"]
    hosts: Annotated[int, "how many were read"]
    vms: Annotated[int, "how many were read"]
    privileges: LoginPrivilegesRecord

    @classmethod
    def made_of(cls, test: LoginTest) -> Self:
        return cls.from_attributes(
            test,
            vcenter=test.uuid,
            reader="json" if test.equal else "soap",
            vi_json=ViJsonRecord.from_attributes(test, offered=test.offers_vi_json, failure=test.failure or None),
            privileges=LoginPrivilegesRecord.from_attributes(test, told=bool(test.verbs)),
        )


def _reader_lines(test: LoginTest) -> tuple[Text, ...]:
    snapshot_size = f"{count(test.hosts, 'host')} and {count(test.vms, 'VM')}"
    if test.equal:
        return (
            Text(f"readers   VI/JSON and SOAP give equal snapshots of {snapshot_size}"),
            Text("          VI/JSON is used here from now on, until its version changes (--reader auto)", "dim"),
        )
    if not test.offers_vi_json:
        return (Text(f"readers   SOAP only: VI/JSON needs API 8.0.1.0 or later; {snapshot_size} read"),)
    soap = Text("          SOAP is used here (--reader auto)", "dim")
    if test.failure:
        return Text(f"readers   nothing can be read over VI/JSON: {test.failure}", "yellow"), soap
    lines = (
        Text(f"          {difference.path}: SOAP {difference.soap}, VI/JSON {difference.json}")
        for difference in test.differences
    )
    differing = count(len(test.differences), "value")
    return Text(f"readers   VI/JSON and SOAP differ in {differing} of {snapshot_size}:", "yellow"), *lines, soap


def _privilege_lines(test: LoginTest) -> Iterator[Text]:
    """Yield for each verb that the login may use it, or which privileges it lacks and where."""
    if not test.verbs:
        yield Text(
            "privileges: vCenter does not report what this login may do; its permissions are in the vSphere Client"
        )
        return
    sample = "" if test.asked_vms >= test.vms else f" (read for {test.asked_vms} VMs, some of each folder)"
    yield Text(f"privileges on {count(test.hosts, 'host')} and {count(test.vms, 'VM')}{sample}:")
    width = max(len(verb.verb) for verb in test.verbs)
    for verb in test.verbs:
        if verb.allowed:
            yield Text(f"  {verb.verb:<{width}}  may" + ("" if verb.needs else ": needs read access only"))
            continue
        lines = [line for need in verb.needs for line in _missing_lines(need)]
        yield Text(f"  {verb.verb:<{width}}  ").append(lines[0], "yellow")
        yield from (Text(" " * (width + 4)).append(line, "yellow") for line in lines[1:])
    if not all(verb.allowed for verb in test.verbs):
        yield Text("  next: assign these roles to the login, only where it may make changes: gpuops help login", "dim")
        roles = sorted({verb.role for verb in test.verbs if verb.role and not verb.allowed})
        yield from (Text(f"  gpuops template show {role}", "dim") for role in roles)


def _missing_lines(need: VerbNeed) -> Iterator[str]:
    for lacking in need.lacking:
        yield f"lacks {', '.join(sorted(lacking.privileges))} on {_places(need, lacking.places)}"
    if need.lacking and need.allowed:
        yield f"may on {_places(need, need.allowed)}"
    if need.untold:
        yield f"not reported for {count(need.untold, need.kind.value)}"


def _places(need: VerbNeed, names: Sequence[str]) -> str:
    """Return the kind and the first names: `VMs in /dc/vm/ml`; or `all VMs` if the login lacks them everywhere."""
    if len(need.lacking) == 1 and not need.allowed and not need.untold and len(names) > 1:
        return f"all {need.kind.value}s"
    kind = f"{need.kind.value}s in" if all(name.startswith("/") for name in names) else need.kind.value
    return f"{kind} {some_names(names)}"
