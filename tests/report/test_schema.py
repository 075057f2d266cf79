"""The published schemas of documents: one for each kind that there is, and no other, as JSON Schema has it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpuops.model.nights.history import GivenUp, Thing
from gpuops.plan.core.abandonment import Abandonment
from gpuops.report.document_schema import document_kinds, document_schema
from gpuops.report.first_steps.simulator_view import faults_document
from gpuops.report.hosts.change_view import abandonment_document
from tests.document_schemas import misfits
from tests.report.document_places import SOURCES, built_as_dicts, registered_kinds
from tests.test_errors import CODES, meaning

KINDS = document_kinds()
FOLDER = Path(__file__).parent / "golden"
GOLDEN = sorted(FOLDER.glob("*.json"))


def test_each_kind_of_the_sources_has_a_schema_and_no_other_has() -> None:
    assert registered_kinds() == set(KINDS)


def test_no_document_is_built_as_a_dict() -> None:
    assert list(built_as_dicts()) == []


def _kinds_table() -> str:
    """Without the kinds that are the words of their command."""
    other_kinds = (
        kind
        for kind in KINDS.values()
        if kind.kind_name != re.sub("^gpuops (host )?", "", kind.printed_by).replace(" ", "-")
    )
    rows = "".join(f"| `{kind.kind_name}` | {kind.printed_by} |\n" for kind in other_kinds)
    return f"| `kind` | Printed by |\n|---|---|\n{rows}"


def _codes_table() -> str:
    ordered = sorted(CODES.items(), key=lambda pair: (pair[1], pair[0]))
    rows = "".join(f"| `{code}` | {exit_code} | {meaning(code)} |\n" for code, exit_code in ordered)
    return f"| `code` | Exit code | Means |\n|---|---|---|\n{rows}"


@pytest.mark.parametrize(("name", "table"), [("kinds", _kinds_table()), ("codes", _codes_table())])
def test_the_manual_lists_each_kind_and_each_code(name: str, table: str, request: pytest.FixtureRequest) -> None:
    page = SOURCES / "manual" / "output.md"
    text = page.read_text(encoding="utf-8")
    head, begin, remainder = re.split(rf"(<!-- {name}:.*? -->\n)", text)
    written, end, tail = remainder.partition(f"<!-- end of {name} -->")
    if request.config.getoption("--refresh-golden"):
        page.write_text(f"{head}{begin}{table}{end}{tail}", encoding="utf-8")
        written = table
    assert written == table, "pytest tests/report/test_schema.py --refresh-golden renews the page"


@pytest.mark.parametrize("name", KINDS)
def test_a_schema_is_one_of_json_schema(name: str) -> None:
    schema = document_schema(KINDS[name])
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:gpuops:schema:{name}:1"
    assert schema["title"] and schema["description"].startswith("Printed by ")
    assert schema["required"][:2] == ["schema_version", "kind"]
    used = set(re.findall(r"#/\$defs/(\w+)", json.dumps(schema)))
    assert used == set(schema.get("$defs", {}))


def _golden(name: str) -> dict[str, Any]:
    """The document; one of a plan as that of a night, for its request is of these tests alone."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return {**document, "kind": "rotate-night"} if document["kind"] == "attach" else document


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_documents_of_every_step_and_state_are_as_their_schemas_say(path: Path) -> None:
    assert misfits(_golden(path.stem)) == []


def test_a_document_that_is_not_as_it_was_published_is_noticed() -> None:
    document = _golden("plan")
    assert misfits(document) == []
    changes: list[dict[str, Any]] = [{"more": 1}, {"applied": "no"}, {"kind": "nothing"}, {"schema_version": 2}]
    for change in [*changes, {"waves": [{}]}]:
        assert misfits({**document, **change}) != [], change
    assert misfits({key: value for key, value in document.items() if key != "changed"}) != []


def test_documents_that_no_test_of_the_command_line_prints() -> None:
    given_up = (
        GivenUp(Thing.HOST, "host-1", None, "esx-01", "scheduler set", datetime(2026, 11, 2, 20, 0, tzinfo=UTC)),
    )
    assert misfits(abandonment_document(Abandonment(given_up, means=("it is not waited for",)))) == []
    assert misfits(faults_document([("T1", "a reset")])) == []
