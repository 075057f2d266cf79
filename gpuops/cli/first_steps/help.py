"""`gpuops help`: the manual, and how commands are called.

Its topics are the files of `gpuops/manual`; none is read before the command runs.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpuops.console import output
from gpuops.console.spread import spread
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.resources.abc import Traversable

    from gpuops.report.layout import Shown


OPTIONS: Final = "options"
"""The topic that is made from the commands."""
NEAR_TOPICS: Final = 5
"""An unknown topic is answered with at most this many similar names."""


def topics(context: typer.Context, incomplete: str) -> list[str]:
    return [name for name in (*_manual(), OPTIONS) if name.startswith(incomplete)]


@spread
def help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC|COMMAND]...",
            help="A topic of the manual, or a command. Default: list the topics.",
            autocompletion=topics,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List all commands, and the options that every command takes.")
    ] = False,
) -> None:
    """Show a topic of the manual, the usage of a command, or the list of topics.

    \b
    Examples:
      gpuops help
      gpuops help rotation
      gpuops help rotate night
      gpuops help --all
    """
    from gpuops.report.first_steps.manual import HelpDocument

    manual = _manual()
    if everything and words:
        raise UsageError("--all lists all commands, and takes no topic", hint=f"gpuops help {' '.join(words)}")
    if everything:
        root = context.find_root()
        formatter = root.make_formatter()
        root.command.format_everything(root, formatter)  # type: ignore[attr-defined]
        text = formatter.getvalue()
        output.show(text.rstrip("\n").split("\n"), HelpDocument(topic="--all", text=text))
        return
    if not words:
        titles = {name: _title(text) for name, text in pages().items()}
        titles[OPTIONS] = "All options, and what each means"
        output.show(_list(titles), HelpDocument(topics=titles))
        return
    topic = "-".join(words)
    page = topic if topic in manual else None if topic == OPTIONS else _page_with_heading(words)
    if topic == OPTIONS:
        from gpuops.cli.first_steps.option_table import option_table

        text = option_table(context.find_root().command)
    elif page is not None:
        text = manual[page].read_text(encoding="utf-8")
    else:
        usage = _usage(words, context)
        if usage is None:
            raise _no_such_topic(words, manual, context)
        output.show(usage.rstrip("\n").split("\n"), HelpDocument(topic=topic, text=usage))
        return
    if output.may_draw(sys.stdout) and output.chosen() is output.OutputFormat.TEXT:
        _render(text)
    else:
        output.show(text.rstrip("\n").split("\n"), HelpDocument(topic=page or topic, text=text))


def _page_with_heading(words: Sequence[str]) -> str | None:
    """Return the page with a section of this subject, or None.

    The subjects of a section stand in its heading before the colon, separated by commas: `gpuops help roles` finds
    "## Roles: the files" on the page `login`. Case and hyphens do not count.
    """
    subject = " ".join(words).replace("-", " ").lower()
    for name, text in pages().items():
        for heading in re.findall(r"^## (.*):", text, re.MULTILINE):
            if subject in heading.replace("-", " ").lower().split(", "):
                return name
    return None


def _usage(words: Sequence[str], context: typer.Context) -> str | None:
    """Return what `gpuops WORDS --help` prints; None if there is no such command."""
    inner = context.find_root()
    for word in words:
        command = getattr(inner.command, "commands", {}).get(word)
        if command is None:
            return None
        inner = command.context_class(command, info_name=word, parent=inner)
    return str(inner.get_help()) + "\n"


def _manual() -> dict[str, Traversable]:
    """Return the topics and their files, by name."""
    from importlib.resources import files

    pages = (file for file in files("gpuops").joinpath("manual").iterdir() if file.name.endswith(".md"))
    return {page.name.removesuffix(".md"): page for page in sorted(pages, key=lambda page: page.name)}


def pages() -> dict[str, str]:
    """Return the complete manual: the text of each topic, by name."""
    return {name: file.read_text(encoding="utf-8") for name, file in _manual().items()}


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _list(titles: dict[str, str]) -> Shown:
    from gpuops.report.layout import Text, TextTable

    table = TextTable(rows=((Text(name, "bold"), title) for name, title in titles.items()))
    return (table, Text("gpuops help TOPIC shows one, gpuops COMMAND --help the options of a command", "dim"))


def _render(text: str) -> None:
    """Print Markdown in the colours of the terminal: rich's own backgrounds fit only dark ones."""
    from rich.markdown import Markdown
    from rich.theme import Theme

    console = output.rich_console(sys.stdout)
    with console.use_theme(Theme({"markdown.code": "cyan"})):
        console.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))


def _no_such_topic(words: Sequence[str], manual: Iterable[str], context: typer.Context) -> UsageError:
    """Return the error for words that name neither a page nor a command, with the closest names of both."""
    from difflib import get_close_matches

    root: Any = context.find_root().command
    names = {name.replace("-", " "): name for name in (*root.commands.data, *manual)}
    if words[0] in root.commands.data:
        subcommands = getattr(root.commands[words[0]], "commands", {})
        names |= {name: name for name in (f"{words[0]} {subcommand}" for subcommand in subcommands)}
    words_typed = " ".join(words)
    near = [names[name] for name in get_close_matches(words_typed.replace("-", " "), names, n=NEAR_TOPICS, cutoff=0.5)]
    suggestion = f"; did you mean {', '.join(near)}?" if near else ""
    return UsageError(
        f"there is no topic and no command {words_typed!r}{suggestion}", hint="gpuops help lists the topics"
    )
