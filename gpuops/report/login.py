"""What `gpuops login test` prints, as text and JSON."""

from __future__ import annotations

from gpuops.model.login import LoginTest
from gpuops.report.layout import Shown, Text
from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.text import count, visible


def login_text(test: LoginTest) -> Shown:
    """Who and what, and over which protocol inventories of this vCenter are read from now on."""
    return (
        Text(f"{visible(test.address)}: {visible(test.product)}", "bold"),
        Text(f"user      {visible(test.user)}"),
        Text(f"API       {visible(test.api_version)}"),
        Text(f"instance  {visible(test.uuid) or 'unknown'}"),
        *_readers(test),
    )


def login_document(test: LoginTest) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "login-test",
        "address": test.address,
        "user": test.user,
        "product": test.product,
        "vcenter": test.uuid,
        "api_version": test.api_version,
        "reader": "json" if test.equal else "soap",
        "vi_json": {
            "offered": test.offers_vi_json,
            "equal": test.equal,
            "failure": test.failure or None,
            "differences": [{"path": each.path, "soap": each.soap, "json": each.json} for each in test.differences],
        },
        "hosts": test.hosts,
        "vms": test.vms,
    }


def _readers(test: LoginTest) -> tuple[Text, ...]:
    seen = f"{count(test.hosts, 'host')} and {count(test.vms, 'VM')}"
    if test.equal:
        return (
            Text(f"readers   VI/JSON and SOAP give equal snapshots of {seen}"),
            Text("          VI/JSON is used here from now on, until its version changes (--reader auto)", "dim"),
        )
    if not test.offers_vi_json:
        return (Text(f"readers   SOAP alone: VI/JSON came with API 8.0.1.0; {seen} read"),)
    soap = Text("          SOAP is used here (--reader auto)", "dim")
    if test.failure:
        return Text(f"readers   nothing can be read over VI/JSON: {visible(test.failure)}", "yellow"), soap
    lines = (
        Text(f"          {visible(each.path)}: SOAP {visible(each.soap)}, VI/JSON {visible(each.json)}")
        for each in test.differences
    )
    differing = count(len(test.differences), "value")
    return Text(f"readers   VI/JSON and SOAP differ in {differing} of {seen}:", "yellow"), *lines, soap
