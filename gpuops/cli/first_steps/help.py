"""`gpuops help`: the manual. Its topics are the files of `gpuops/manual`; none is read before it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli import output
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from gpuops.report.layout import Shown


def topics(context: typer.Context, incomplete: str) -> list[str]:
    return [name for name in _manual() if name.startswith(incomplete)]


def help(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Default: list the topics.", autocompletion=topics)
    ] = None,
) -> None:
    """Show the manual: a topic, or the list of topics.

    \b
    Examples:
      gpuops help
      gpuops help rotation
    """
    from gpuops.report.document import SCHEMA_VERSION

    manual = _manual()
    document = {"schema_version": SCHEMA_VERSION, "kind": "help"}
    if topic is None:
        titles = {name: _title(text) for name, text in pages().items()}
        output.show(_list(titles), {**document, "topics": titles})
        return
    if topic not in manual:
        raise _unknown(topic, list(manual), context)
    text = manual[topic].read_text(encoding="utf-8")
    if sys.stdout.isatty() and output.chosen() is output.OutputFormat.TEXT:
        _render(text)
    else:
        output.show(text.rstrip("\n"), {**document, "topic": topic, "text": text})


def _manual() -> dict[str, Traversable]:
    """The topics and their files, by name."""
    from importlib.resources import files

    pages = (file for file in files("gpuops").joinpath("manual").iterdir() if file.name.endswith(".md"))
    return {page.name.removesuffix(".md"): page for page in sorted(pages, key=lambda page: page.name)}


def pages() -> dict[str, str]:
    """The whole manual: the text of each topic, by name."""
    return {name: file.read_text(encoding="utf-8") for name, file in _manual().items()}


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _list(titles: dict[str, str]) -> Shown:
    from gpuops.report.layout import Text, TextTable

    table = TextTable()
    for name, title in titles.items():
        table.add_row(Text(name, "bold"), title)
    return (table, Text("gpuops help TOPIC shows one, gpuops COMMAND --help the options of a command", "dim"))


def _render(text: str) -> None:
    """Markdown in the colours of the terminal itself: rich's own backgrounds fit dark ones only."""
    from rich.markdown import Markdown
    from rich.theme import Theme

    console = output.rich_console(sys.stdout)
    with console.use_theme(Theme({"markdown.code": "cyan"})):
        console.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))


def _unknown(topic: str, names: list[str], context: typer.Context) -> UsageError:
    from difflib import get_close_matches

    near = get_close_matches(topic, names, n=3, cutoff=0.4)
    meant = f"; did you mean {', '.join(near)}?" if near else ""
    group = context.find_root().command
    is_command = isinstance(group, typer.core.TyperGroup) and topic in group.commands
    options = f"; gpuops {topic} --help shows the options of the command" if is_command else ""
    return UsageError(f"the manual has no topic {topic!r}{meant}", hint=f"topics: {', '.join(names)}{options}")
