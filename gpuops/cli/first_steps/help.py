"""`gpuops help` and `template`: the manual, the table of all options, and the templates that come with gpuops.

The topics of the manual are the files of `gpuops/manual`; none is read before the command runs.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpuops.console import output
from gpuops.console.commands import VerbTable
from gpuops.console.spread import spread
from gpuops.errors import UsageError
from gpuops.files.file import FOLDER, describe_template, is_missing, read_bytes, read_text, templates
from gpuops.files.private_file import write_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.resources.abc import Traversable

    from gpuops.report.layout import Shown

SHARED: Final = {
    "--address": "The address of the vCenter: vc.example.com.",
    "--all": "All of them, where otherwise some are meant or shown.",
    "--at": "The moment at which a night begins: 22:00, or 2026-11-23T22:00Z.",
    "--cluster": "Only hosts of this vSphere cluster.",
    "--count": "How many vGPUs one VM has afterwards.",
    "--device": "A whole GPU or other PCI device, by its address.",
    "--device-group": "A vendor device group.",
    "--device-type": "A type of device for Dynamic DirectPath I/O.",
    "--dry-run": "Show what would be done; change nothing.",
    "--dynamic": "Devices by Dynamic DirectPath I/O.",
    "--every": "How old what is shown may be.",
    "--file": "The file with what is asked for: requests, jobs, a cluster, a pool, layouts, roles.",
    "--follow": "Look again and again, until it has ended or Ctrl-C.",
    "--force": "Do it although something speaks against it.",
    "--gpu": "GPUs by their PCI address.",
    "--gpus": "How many GPUs.",
    "--health": "Answer GET /healthz at this port.",
    "--host": "Only hosts of this name; a pattern (esx-0*) where several can be meant.",
    "--inventory": "Use a saved inventory instead of a vCenter.",
    "--label": "The hardware label of devices.",
    "--limit": "Show at most so many rows.",
    "--listen": "Answer HTTP at this port.",
    "--memory": "The memory of a VM.",
    "--mig-layout": "GPUs as if they had the GPU instances of a layout.",
    "--model": "A GPU model.",
    "--numa": "How much CPU, memory and GPU must share a NUMA node.",
    "--once": "Look once, and end.",
    "--output": "The format of the result.",
    "--overlap": "The share of their work that VMs do at one time.",
    "--password-file": "The file with the password.",
    "--pin": "Whether a vGPU is bound to one GPU.",
    "--policy": "The rotation policy.",
    "--pool": "VMs of this pool of the policy.",
    "--profile": "A vGPU profile.",
    "--ready-file": "The file in which `sim serve` says where it listens.",
    "--reboot": "Bring settings of hosts into force: `rolling` = one host after another.",
    "--running-vms": "What is done to VMs on a host that is rebooted.",
    "--save": "Write the result to this file.",
    "--scenario": "A simulated vCenter.",
    "--since": "From then on: 7d, 2w or a date.",
    "--ssh-port": "The port of SSH.",
    "--ssh-user": "The user who logs in by SSH.",
    "--strict": "Exit code 3 if anything is not as it should be.",
    "--tag": "Objects with this vCenter tag.",
    "--timeout": "End it after so long.",
    "--undo": "Undo what the same command did before.",
    "--username": "The account for the vCenter.",
    "--vcpu": "How many vCPUs a VM has.",
    "--vgpu-mode": "Which sizes of vGPUs share a GPU.",
    "--vm": "VMs by name, path, moid: or uuid:; a pattern (ml-*) where several can be meant.",
    "--window": "When hosts may be rebooted.",
    "--yes": "Do not ask first.",
}
"""What an option means whose help text differs between commands."""
_MOST_NAMED: Final = 3


def option_table(root: Any) -> str:
    """Return a page of the manual with a row for each option of the commands below the root."""
    commands: defaultdict[str, list[str]] = defaultdict(list)
    meanings = dict(SHARED)
    for command, name, option in options_of(root):
        commands[name].append(command)
        meanings.setdefault(name, option.help)
    rows = [f"| `{name}` | {meanings[name]} | {_listed(commands[name])} |" for name in sorted(commands)]
    header = ("# All options, and what each means", "", "| Option | Meaning | Commands |", "|---|---|---|")
    return "\n".join((*header, *rows)) + "\n"


def options_of(command: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield each long option of each command below this one: the command, the name of the option, the option."""
    subcommands = getattr(command, "commands", {})
    if path and (not subcommands or getattr(command, "invoke_without_command", False)):
        for option in command.params:
            yield from ((path, name, option) for name in option.opts if name.startswith("--"))
    for name in subcommands:
        yield from options_of(subcommands[name], f"{path} {name}".strip())


def _listed(commands: list[str]) -> str:
    return ", ".join(commands) if len(commands) <= _MOST_NAMED else f"{len(commands)} commands"


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
    from gpuops.report.first_steps.manual_view import HelpDocument

    manual = _manual()
    if everything and words:
        raise UsageError("--all and a topic exclude each other", hint=f"gpuops help {' '.join(words)}")
    if everything:
        root = context.find_root()
        formatter = root.make_formatter()
        root.command.format_everything(root, formatter)  # type: ignore[attr-defined]
        text = formatter.getvalue()
        output.show(text.rstrip("\n").split("\n"), HelpDocument(topic="--all", text=text))
        return
    if not words:
        titles = {name: text.partition("\n")[0].removeprefix("# ") for name, text in pages().items()}
        titles[OPTIONS] = "All options, and what each means"
        output.show(_list(titles), HelpDocument(topics=titles))
        return
    topic = "-".join(words)
    page = topic if topic in manual or topic == OPTIONS else _page_with_heading(words)
    if page == OPTIONS:
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
    command_context = context.find_root()
    for word in words:
        command = getattr(command_context.command, "commands", {}).get(word)
        if command is None:
            return None
        command_context = command.context_class(command, info_name=word, parent=command_context)
    return str(command_context.get_help()) + "\n"


def _manual() -> dict[str, Traversable]:
    """Return the topics and their files, by name."""
    from importlib.resources import files

    pages = (file for file in files("gpuops").joinpath("manual").iterdir() if file.name.endswith(".md"))
    return {page.name.removesuffix(".md"): page for page in sorted(pages, key=lambda page: page.name)}


def pages() -> dict[str, str]:
    """Return the complete manual: the text of each topic, by name."""
    return {name: file.read_text(encoding="utf-8") for name, file in _manual().items()}


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
    root: Any = context.find_root().command
    names = {name.replace("-", " "): name for name in (*root.commands, *manual)}
    if words[0] in root.commands:  # no command is imported by this
        subcommands = getattr(root.commands[words[0]], "commands", {})
        names |= {name: name for name in (f"{words[0]} {subcommand}" for subcommand in subcommands)}
    words_typed = " ".join(words)
    near = [names[name] for name in get_close_matches(words_typed.replace("-", " "), names, n=NEAR_TOPICS, cutoff=0.5)]
    suggestion = f"; did you mean {', '.join(near)}?" if near else ""
    return UsageError(
        f"there is no topic and no command {words_typed!r}{suggestion}", hint="gpuops help lists the topics"
    )


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
    from gpuops.report.first_steps.manual_view import TemplateListDocument

    descriptions = {name: describe_template(_template_text(name)) for name in templates()}
    output.show(_template_table(descriptions), TemplateListDocument(descriptions))


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
    from gpuops.report.first_steps.manual_view import TemplateShowDocument

    text = _template_text(name)
    output.show(text.rstrip("\n").split("\n"), TemplateShowDocument(name, text))


@template.command("write")
@spread
def template_write(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Which ones; all if none is named.", autocompletion=names),
    ] = None,
    into: Annotated[
        Path, typer.Option(metavar="DIR", help="The directory to write into; it is created if it is missing.")
    ] = Path(FOLDER),
    force: Annotated[bool, typer.Option("--force", help="Replace files that have other content.")] = False,
) -> None:
    """Write templates into a directory, where the manual's examples find them.

    \b
    Examples:
      gpuops template write
      gpuops template write policy.yaml
      gpuops template write roles/night.yaml site.toml --into site
    """
    from gpuops.report.first_steps.manual_view import TemplateWriteDocument

    texts = {name: _template_text(name) for name in chosen or templates()}
    changed = [name for name, text in texts.items() if not _is_unchanged(into / name, text, force=force)]
    for name in changed:
        _write(into / name, texts[name])
    lines = [f"{into / name}: {'written' if name in changed else 'is there already'}" for name in texts]
    output.show(lines, TemplateWriteDocument([str(into / name) for name in changed]))


def _template_text(name: str) -> str:
    files = templates()
    if name not in files:
        near = get_close_matches(name, files, 1)
        raise UsageError(
            f"there is no template {name!r}", hint=f"gpuops template show {near[0]}" if near else _ALL_TEMPLATES
        )
    return read_text(files[name])


_ALL_TEMPLATES = "gpuops template list"


def _is_unchanged(path: Path, text: str, *, force: bool) -> bool:
    """Return whether the file has this text already. Raises UsageError for another text, without `force`."""
    try:
        content = read_bytes(path)
    except UsageError as error:
        if is_missing(error):
            return False
        raise
    if content != text.encode() and not force:
        raise UsageError(
            f"{path} exists and has other content", hint="add --force to replace it, or --into DIR to write elsewhere"
        )
    return content == text.encode()


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose another directory with --into DIR"
        ) from error
    write_private(path, text)


def _template_table(descriptions: dict[str, str]) -> Shown:
    from gpuops.report.layout import Text, TextTable

    table = TextTable(rows=((Text(name, "bold"), description) for name, description in descriptions.items()))
    return (table, Text("gpuops template write NAME writes one into templates/", "dim"))
