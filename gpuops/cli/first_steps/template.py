"""`gpuops template`: the policies, requests, roles, units and reports that come with gpuops, to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.spread import spread
from gpuops.errors import UsageError
from gpuops.files.file import FOLDER, describe_template, is_missing, read_bytes, read_text, templates
from gpuops.files.private_file import write_private

if TYPE_CHECKING:
    from gpuops.report.layout import Shown

template = VerbTable("template", "Show and write the templates that come with gpuops.")


def names(incomplete: str) -> list[str]:
    return [name for name in templates() if name.startswith(incomplete)]


@template.command("list")
@spread
def template_list() -> None:
    """List the templates.

    \b
    Example:
      gpuops template list
    """
    from gpuops.report.first_steps.manual import TemplateListDocument

    descriptions = {name: describe_template(_text(name)) for name in templates()}
    output.show(_list(descriptions), TemplateListDocument(descriptions))


@template.command("show")
@spread
def template_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which one.", autocompletion=names)],
) -> None:
    """Print one template.

    \b
    Example:
      gpuops template show policy.yaml
    """
    from gpuops.report.first_steps.manual import TemplateShowDocument

    text = _text(name)
    output.show(text.rstrip("\n").split("\n"), TemplateShowDocument(name, text))


@template.command("write")
@spread
def template_write(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Which ones; all if none is named.", autocompletion=names),
    ] = None,
    into: Annotated[
        Path, typer.Option(metavar="DIR", help="The directory they come into; it is made where it is missing.")
    ] = Path(FOLDER),
    force: Annotated[bool, typer.Option("--force", help="Replace files that say something else.")] = False,
) -> None:
    """Write templates into a directory, where the manual's examples find them.

    \b
    Examples:
      gpuops template write
      gpuops template write policy.yaml
      gpuops template write roles/night.yaml site.toml --into site
    """
    from gpuops.report.first_steps.manual import TemplateWriteDocument

    texts = {name: _text(name) for name in chosen or templates()}
    changed = [name for name, text in texts.items() if not _is_unchanged(into / name, text, force=force)]
    for name in changed:
        _write(into / name, texts[name])
    lines = [f"{into / name}: {'written' if name in changed else 'is there already'}" for name in texts]
    output.show(lines, TemplateWriteDocument([str(into / name) for name in changed]))


def _text(name: str) -> str:
    files = templates()
    if name not in files:
        from difflib import get_close_matches

        near = get_close_matches(name, files, 1)
        raise UsageError(f"there is no template {name!r}", hint=f"gpuops template show {near[0]}" if near else _LISTED)
    return read_text(files[name])


_LISTED = "gpuops template list"


def _is_unchanged(path: Path, text: str, *, force: bool) -> bool:
    """Return whether the file has this text already. Raises UsageError for another text, without `force`."""
    try:
        content = read_bytes(path)
    except UsageError as error:
        if is_missing(error):
            return False
        raise
    if content != text.encode() and not force:
        raise UsageError(f"{path} is there and says something else", hint="--force replaces it, --into DIR spares it")
    return content == text.encode()


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="--into DIR names a place") from error
    write_private(path, text)


def _list(descriptions: dict[str, str]) -> Shown:
    from gpuops.report.layout import Text, TextTable

    table = TextTable(rows=((Text(name, "bold"), description) for name, description in descriptions.items()))
    return (table, Text("gpuops template write NAME writes one into templates/", "dim"))
