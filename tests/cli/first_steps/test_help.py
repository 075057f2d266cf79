"""The manual: every topic listed and shown, nothing of it read or rendered before it is asked for.

That its command lines exist and its examples print what stands there is held by `tests/test_docs.py`.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import Result

from gpuops.cli.app import app
from gpuops.console import output

Gpuops = Callable[..., Result]
MANUAL = Path(__file__).resolve().parents[3] / "gpuops" / "manual"
PAGES = sorted(MANUAL.glob("*.md"))
TOPICS = [page.stem for page in PAGES]
MOST_LINES = 160
"""Of a page, without the tables that are made from the sources."""
FORMER_TOPICS = {
    "architecture": "install",
    "assumptions": "troubleshooting",
    "bundle": "troubleshooting",
    "capacity": "inventory",
    "cluster-run": "cluster",
    "comparison": "ansible",
    "connection": "targets",
    "copies": "journal",
    "cron": "timers",
    "defrag": "place",
    "devices": "attach",
    "evidence": "idle",
    "gate": "broker",
    "history": "report",
    "job-guests": "job",
    "job-run": "job",
    "keep-free": "place",
    "layouts": "profiles",
    "licences": "install",
    "machines": "broker",
    "measurements": "observe",
    "mode": "hosts",
    "notices": "timers",
    "placement": "place",
    "playbooks": "ansible",
    "pool-guests": "pool",
    "queue": "place",
    "readiness": "doctor",
    "real-guests": "simulator",
    "roles": "login",
    "runner": "sites",
    "scheduler": "hosts",
    "schemas": "output",
    "serve": "report",
    "simulated": "simulator",
    "size-checked": "size",
    "size-measure": "size",
    "testing": "simulator",
    "top": "inventory",
    "upgrading": "upgrade",
    "vsphere9": "place",
    "windows": "policy",
}
"""Subjects that are sections of a page, by the words that people type."""
OTHER_PROGRAMS = (
    "curl ",
    "pipx ",
    "uv ",
    "/opt/gpuops/bin/pip ",
    "podman ",
    "docker ",
    "apptainer ",
    "kubectl ",
    ".venv/bin/mypy ",
)


def test_the_manual_has_the_topics_people_ask_for() -> None:
    assert TOPICS == [
        "ansible",
        "apply",
        "attach",
        "broker",
        "change",
        "cluster",
        "commands",
        "container",
        "diagnose",
        "doctor",
        "exit-codes",
        "guest",
        "hosts",
        "idle",
        "install",
        "inventory",
        "job",
        "journal",
        "login",
        "marks",
        "metrics",
        "mig",
        "observe",
        "output",
        "place",
        "policy",
        "pool",
        "profiles",
        "python",
        "report",
        "rotation",
        "simulator",
        "sites",
        "size",
        "targets",
        "teams",
        "timers",
        "tour",
        "troubleshooting",
        "upgrade",
        "watch",
        "what-if",
    ]


def test_every_topic_is_listed_with_its_first_line(gpuops: Gpuops) -> None:
    listed = gpuops("help").stdout.splitlines()
    for page, line in zip(PAGES, listed, strict=False):
        name, title = re.split(r" {2,}", line)
        assert name == page.stem
        assert page.read_text(encoding="utf-8").startswith(f"# {title}\n")
    assert len(listed) == len(PAGES) + 2, "the options, and one line on how to go on"


@pytest.mark.parametrize("page", PAGES, ids=TOPICS)
def test_in_a_pipe_a_topic_is_the_page_as_it_is_written(page: Path, gpuops: Gpuops) -> None:
    printed = gpuops("help", page.stem)
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert printed.stdout == page.read_text(encoding="utf-8")


def test_on_a_terminal_a_topic_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "70")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit) as ended:
        app(["help", "targets"])
    assert ended.value.code == 0
    screen = terminal.getvalue()
    assert "\x1b[" in screen
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen)
    assert "# Connect to a vCenter" not in plain and "Connect to a vCenter" in plain
    assert max(map(len, plain.splitlines())) <= 70


@pytest.mark.parametrize("words", ["s", "e", "re", "rot", "joob", "rotate x", "cluster"[:-1]])
def test_an_unknown_topic_names_at_most_five_others_in_one_line(words: str, gpuops: Gpuops) -> None:
    error, advice = gpuops("help", *words.split()).stderr.splitlines()
    assert error.count(",") < 5 and advice == "next: gpuops help lists the topics"


@pytest.mark.parametrize("words", ["rotate", "rotate night", "detach", "host mig show"])
def test_help_of_a_command_without_a_page_is_its_usage(words: str, gpuops: Gpuops) -> None:
    page = gpuops("help", *words.split())
    assert (page.exit_code, page.stdout) == (0, gpuops(*words.split(), "--help").stdout)
    assert page.stdout.startswith(f"Usage: gpuops {words} ")


def test_several_words_are_the_topic_that_they_make(gpuops: Gpuops) -> None:
    assert gpuops("help", "exit", "codes").stdout == (MANUAL / "exit-codes.md").read_text(encoding="utf-8")


def test_programs_get_the_manual_as_a_document(gpuops: Gpuops) -> None:
    listed = json.loads(gpuops("--output", "json", "help").stdout)
    assert (listed["kind"], list(listed["topics"])) == ("help", [*TOPICS, "options"])
    page = json.loads(gpuops("--output", "json", "help", "output").stdout)
    assert page["text"] == (MANUAL / "output.md").read_text(encoding="utf-8")
    output.choose(output.OutputFormat.TEXT)


def test_help_of_the_program_reads_no_page_and_renders_none() -> None:
    program = """
import sys
opened = []
reads = ("open", "os.listdir", "os.scandir")
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in reads else 0)
sys.argv = ["gpuops", "--help"]
from gpuops.cli.app import main
try:
    main()
except SystemExit:
    pass
wrong = [path for path in opened if "manual" in path] + [name for name in sys.modules if name == "rich.markdown"]
sys.exit(", ".join(wrong) or 0)
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert "gpuops help " in process.stdout


@pytest.mark.parametrize("page", PAGES, ids=TOPICS)
def test_every_option_a_page_speaks_of_is_one_of_gpuops(page: Path) -> None:
    known_options: set[str] = set()

    def walk(command: object) -> None:
        known_options.update(option for parameter in command.params for option in parameter.opts)  # type: ignore[attr-defined]
        for child in getattr(command, "commands", {}).values():
            walk(child)

    walk(get_command(app))
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if not line.startswith(OTHER_PROGRAMS)]
    spoken = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(lines)))
    assert spoken
    assert spoken - known_options == set()


@pytest.mark.parametrize("page", PAGES, ids=TOPICS)
def test_a_page_is_read_in_one_sitting(page: Path) -> None:
    whole = page.read_text(encoding="utf-8")
    # the tables of all commands, and those made from the sources, are looked things up in
    text = re.sub(r"^<!-- (\w+):.*?^<!-- end of \1 -->$", "", whole, flags=re.M | re.S)
    assert len(text.splitlines()) <= MOST_LINES
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize(("words", "page"), FORMER_TOPICS.items(), ids=FORMER_TOPICS)
def test_a_subject_is_found_by_the_heading_of_its_section(words: str, page: str, gpuops: Gpuops) -> None:
    printed = gpuops("help", *words.split("-"))
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert printed.stdout == (MANUAL / f"{page}.md").read_text(encoding="utf-8")
