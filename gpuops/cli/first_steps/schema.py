"""`gpuops schema` prints the JSON Schemas of documents and files; `gpuops explain` explains one key of a file."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from gpuops.console import output
from gpuops.console.spread import spread
from gpuops.errors import UsageError
from gpuops.extensions import InputFile, input_files
from gpuops.files.file import read_text, templates

if TYPE_CHECKING:
    from gpuops.report.document_schema import Schema


_FILES_OF_THE_CORE: Final = {
    "config": InputFile(
        "The configuration file: named vCenters", "gpuops.config.vcenter.targets:Configuration", "site.toml"
    ),
    "mig-layout": InputFile(
        "Layouts of `gpuops host mig check`", "gpuops.config.layout_file:LayoutFile", "mig-layout.yaml"
    ),
    "policy": InputFile("A rotation policy", "gpuops.config.policy:PolicyFile", "policy.yaml"),
    "requests": InputFile("Requests of `gpuops place`", "gpuops.config.requests_file:RequestsFile", "requests.yaml"),
    "role-file": InputFile(
        "Roles that `gpuops roles` compares", "gpuops.config.role_file:RoleFile", "roles/night.yaml"
    ),
    "scenario": InputFile("A simulated vCenter", "gpuops.sim.scenario.scenario_file:ScenarioFile"),
    "what-if-changes": InputFile(
        "Changes of `gpuops what-if`", "gpuops.config.changes_file:ChangesFile", "what-if.yaml"
    ),
    "workloads": InputFile("Workloads of `gpuops size`", "gpuops.config.requests_file:WorkloadsFile", "workloads.yaml"),
}
INPUTS: Final = dict(sorted((_FILES_OF_THE_CORE | input_files()).items()))
"""The files by their names in `gpuops schema`."""


def names(incomplete: str) -> list[str]:
    return [name for name in _titles_by_name() if name.startswith(incomplete)]


@spread
def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Default: list the names.", autocompletion=names)
    ] = None,
) -> None:
    """Print the JSON Schema of a document of --output json, or of a file that gpuops reads.

    The name of a document is its `kind`; a file is called case, cluster, config, jobs, mig-layout, policy,
    pool, remote-gpu, requests, role-file, scenario, site, what-if-changes or workloads.

    \b
    Examples:
      gpuops schema
      gpuops schema attach
      gpuops schema policy > policy.schema.json
    """
    from gpuops.report.document_schema import document_kinds, document_schema
    from gpuops.report.first_steps.manual_view import ListedSchemaRecord, SchemaListDocument
    from gpuops.report.layout import Text, TextTable

    titles = _titles_by_name()
    if name is not None:
        if name not in titles:
            raise UsageError(f"there is no schema {name!r}", hint="gpuops schema lists them")
        if output.chosen() is output.OutputFormat.TEXT:
            output.choose(output.OutputFormat.JSON)  # a schema is JSON, and no line of it is wrapped
        output.show("", input_schema(name) if name in INPUTS else document_schema(document_kinds()[name]))
        return
    table = TextTable(rows=((Text(name, "bold"), use, title) for name, (use, title) in titles.items()))
    document = SchemaListDocument(
        [ListedSchemaRecord(schema_name, use, title) for schema_name, (use, title) in titles.items()]
    )
    output.show((table, Text("gpuops schema NAME prints one", "dim")), document)


def _titles_by_name() -> dict[str, tuple[str, str]]:
    """Return each name with its use, `input` or `output`, and its title."""
    from gpuops.report.document_schema import document_kinds, document_title

    titles = {name: ("input", input_file.title) for name, input_file in INPUTS.items()}
    return titles | {name: ("output", document_title(document)) for name, document in document_kinds().items()}


def input_schema(name: str) -> Schema:
    """Return the schema of a file, made from the class that checks it, without rules between several keys."""
    from gpuops.config.decoding import is_section
    from gpuops.config.file_schema import schema_of_section
    from gpuops.report.document import SCHEMA_VERSION
    from gpuops.report.document_schema import DIALECT

    title, checked_by, _ = INPUTS[name]
    module, _, attribute = checked_by.partition(":")
    checking_class = getattr(import_module(module), attribute)
    if is_section(checking_class):
        body = _without_titles(schema_of_section(checking_class))
    else:
        # the schema of the class itself, and of each class that its fields have
        parts = msgspec.json.schema(checking_class)["$defs"]
        body = _without_titles({**parts.pop(attribute), "$defs": parts})
    heading = {"$schema": DIALECT, "$id": f"urn:gpuops:schema:{name}:{SCHEMA_VERSION}", "title": title}
    return heading | {"required": [], **body}


def _without_titles(schema: Any) -> Any:
    """Return the schema without titles that only repeat the name of a key or a class."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    # below `properties` and `$defs` the keys are names, and one of them may be `title`
    return {
        key: {name: _without_titles(part) for name, part in parts.items()}
        if key in ("properties", "$defs")
        else _without_titles(parts)
        for key, parts in schema.items()
        if key != "title"
    }


def files(incomplete: str) -> list[str]:
    return [name for name in INPUTS if name.startswith(incomplete)]


@spread
def explain(
    key: Annotated[
        str, typer.Argument(metavar="FILE[.KEY]...", help="policy, or policy.pools.idle.", autocompletion=files)
    ],
) -> None:
    """Explain a key of a file that people write: what it means, its type, its default, and an example.

    A file is called case, cluster, config, jobs, mig-layout, policy, pool, remote-gpu, requests, role-file,
    scenario, site, what-if-changes or workloads. Connects to nothing.

    \b
    Examples:
      gpuops explain policy
      gpuops explain policy.pools.idle
      gpuops explain config.targets.host
    """
    from gpuops.config.explanation import explain as explain_key
    from gpuops.report.first_steps.config_view import ExplainDocument, explain_text

    # `policy.yaml.pools[].idle` and `policy.pools.0.idle` mean the same key
    file, *words = [word for word in key.replace("[]", "").split(".") if word not in ("toml", "yaml", "yml")]
    name = _file_named(file)
    file_name = INPUTS[name].template
    template = read_text(templates()[file_name]) if file_name else ""
    explanation = explain_key(name, [word for word in words if not word.isdigit()], input_schema(name), template)
    output.show(explain_text(explanation), ExplainDocument.made_of(explanation))


def _file_named(word: str) -> str:
    """Return the file with that name; `pools`, `roles` and `changes` are accepted too. Raises UsageError."""
    singular = word.removesuffix("s")
    matches = [name for name in INPUTS if singular in (part.removesuffix("s") for part in (name, *name.split("-")))]
    if word in INPUTS or len(matches) == 1:
        return word if word in INPUTS else matches[0]
    near = get_close_matches(word, INPUTS, n=5, cutoff=0.5)
    did_you_mean = f"; did you mean {', '.join(near)}?" if near else ""
    raise UsageError(f"there is no file {word!r}{did_you_mean}", hint=f"files: {', '.join(INPUTS)}")
