"""The output of `gpuops sim`: how clients reach it, the faults that it can inject, the ledger of effects."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import convert

from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.layout import Shown, Text


def client_lines(url: str, username: str, password: str, ca_file: str | None) -> str:
    """Return what to type to reach a simulated vCenter with govc, pyVmomi, Ansible and Terraform.

    All of them trust its certificate through `ca_file`. None means plain HTTP, which only the first two can use.
    community.vmware reads VMWARE_*, Terraform's provider reads VSPHERE_*, the TLS of Python and Go reads SSL_CERT_FILE.
    """
    where = urlsplit(url)
    govc = {"GOVC_URL": url, "GOVC_USERNAME": username, "GOVC_PASSWORD": password}
    trust = '    protocol="http",\n'
    if ca_file is not None:
        govc["GOVC_TLS_CA_CERTS"] = ca_file
        trust = f"    sslContext=ssl.create_default_context(cafile={ca_file!r}),\n"
    pyvmomi = (
        "import ssl\nfrom pyVim.connect import SmartConnect\nvcenter = SmartConnect(\n"
        f"    host={where.hostname!r}, port={where.port}, user={username!r}, pwd={password!r},\n{trust})"
    )
    blocks = [f"# govc\n{_export_lines(govc)}", f"# pyVmomi\n{pyvmomi}"]
    if ca_file is None:
        return "\n\n".join([*blocks, "# Ansible and Terraform need TLS: start the simulator without --http"])
    ansible = {"VMWARE_HOST": where.hostname, "VMWARE_PORT": str(where.port), "VMWARE_USER": username}
    ansible |= {"VMWARE_PASSWORD": password, "SSL_CERT_FILE": ca_file, "REQUESTS_CA_BUNDLE": ca_file}
    terraform = {"VSPHERE_SERVER": where.netloc, "VSPHERE_USER": username, "VSPHERE_PASSWORD": password}
    terraform |= {"SSL_CERT_FILE": ca_file}
    return "\n\n".join([*blocks, f"# Ansible\n{_export_lines(ansible)}", f"# Terraform\n{_export_lines(terraform)}"])


def _export_lines(variables: Mapping[str, str | None]) -> str:
    return "\n".join(f"export {name}={shlex.quote(text or '')}" for name, text in variables.items())


Faults = Iterable[tuple[str, str]]
"""(id, what a client sees of it)."""


def faults_text(faults: Faults) -> Shown:
    """Return a line for each fault."""
    return (Text(f"{name:<4} {sees}") for name, sees in faults)


class FaultRecord(DocumentRecord, frozen=True):
    """A fault."""

    id: str
    sees: Annotated[str, "what a client sees of it"]


@printed("faults", by="gpuops sim faults")
class FaultsDocument(PrintedDocument, frozen=True):
    """The faults that a served simulated vCenter can have in store."""

    faults: list[FaultRecord]


def faults_document(faults: Faults) -> FaultsDocument:
    """Return the faults by id."""
    return FaultsDocument([FaultRecord(name, sees) for name, sees in faults])


Entry = Mapping[str, Any]


def ledger_text(effects: Sequence[Entry]) -> Shown:
    """Return a line for each effect, and below it each property that changed."""
    if not effects:
        return Text("nothing was done")
    return map(_effect_lines, effects)


class LedgerEntryRecord(DocumentRecord, frozen=True):
    """One effect."""

    sequence: int
    at: Moment
    user: str
    session: str
    operation_id: str
    method: str
    object_type: str
    moid: Annotated[str, "managed object id"]
    name: str
    before: Annotated[dict[str, Any], "values that changed, before"]
    after: Annotated[dict[str, Any], "values that changed, after"]


@printed("ledger", by="gpuops sim ledger")
class LedgerDocument(PrintedDocument, frozen=True):
    """Every effect that was applied to a served simulated vCenter."""

    entries: list[LedgerEntryRecord]


def ledger_document(effects: Sequence[Entry]) -> LedgerDocument:
    """Return the effects as the simulated vCenter reports them."""
    return LedgerDocument(convert(effects, list[LedgerEntryRecord]))


def _effect_lines(effect: Entry) -> Iterator[Text]:
    line = Text(f"{effect['sequence']:>4}  {effect['at']}  ", "dim")
    line.append(f"{effect['method']} {effect['name']}")
    yield line.append(f"  by {effect['user']}", "dim")
    for key in {**effect["before"], **effect["after"]}:
        values = [effect[moment].get(key) for moment in ("before", "after")]
        if values[0] != values[1]:
            before, after = ("none" if value in (None, "") else value for value in values)
            yield Text(f"      {key}  {before} -> {after}")
