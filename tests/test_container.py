"""The Containerfile: its steps name what is there, what runs is not root, and serving writes where it may alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
FILE: Final = ROOT / "templates" / "container" / "Containerfile"
WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
WATCHED: Final = f"""
import os, sys
kept = [os.path.realpath(each) for each in sys.argv[1].split(os.pathsep)]
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and (arguments[2] or 0) & {WRITES}:
        path = os.path.realpath(arguments[0])
        if path != os.devnull and not any(path.startswith(each) for each in kept):
            os.write(2, (path + chr(10)).encode())
    if event == "os.mkdir" and not any(os.path.realpath(arguments[0]).startswith(each) for each in kept):
        os.write(2, (str(arguments[0]) + chr(10)).encode())
sys.addaudithook(watch)
from gpuops.cli.app import main
sys.argv[1:2] = []
main()
"""
"""gpuops, which tells of every file that it opens to write outside of the folders that the first argument names."""


def steps() -> list[tuple[str, str]]:
    """(instruction, its text), with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def environment() -> dict[str, str]:
    """What ENV sets in the image that runs."""
    return dict(each.split("=", 1) for word, text in steps() if word == "ENV" for each in shlex.split(text))


def test_every_stage_begins_with_the_image_that_the_builder_names() -> None:
    first, *others = steps()
    assert first[0] == "ARG"
    name = first[1].partition("=")[0]
    assert [text.split()[0] for word, text in others if word == "FROM"] == [f"${{{name}}}"] * 2
    assert "/" not in first[1], "no registry is named"


def test_what_it_copies_is_in_the_tree() -> None:
    copied = [text.split() for word, text in steps() if word == "COPY" and not text.startswith("--from=")]
    sources = [source for words in copied for source in words[:-1]]
    assert {"gpuops", "templates", "requirements.lock", "pyproject.toml"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_nothing_is_fetched_without_its_hash() -> None:
    installs = [text for word, text in steps() if word == "RUN" and "install" in text]
    assert len(installs) == 3
    for text in installs:
        assert "--require-hashes" in text or "--no-index --no-deps" in text


def test_what_runs_is_not_root_and_begins_with_gpuops() -> None:
    last = dict(steps())
    assert all(number.isdecimal() and int(number) > 0 for number in last["USER"].split(":"))
    assert json.loads(last["ENTRYPOINT"]) == ["gpuops"]
    words = [word for word, _ in steps()]
    assert "RUN" not in words[words.index("USER") :]


def test_serving_a_scenario_writes_below_tmp_and_the_state_alone(tmp_path: Path) -> None:
    """What a read-only root file system lets it: `/tmp` and the volume, here folders of the test's own."""
    places = {"/tmp": tmp_path / "tmp", "/state": tmp_path / "state"}
    for folder in places.values():
        folder.mkdir(mode=0o700)
    env = {name: str(places.get(value, value)) for name, value in environment().items() if name != "PATH"}
    ready = places["/tmp"] / "ready.json"
    command = [sys.executable, "-c", WATCHED, os.pathsep.join(map(str, places.values()))]
    with subprocess.Popen(
        [*command, "sim", "serve", "--ready-file", str(ready), "--state", str(places["/state"] / "lab")],
        env={**env, "TMPDIR": str(places["/tmp"])},
        cwd=places["/tmp"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("serving lab")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
    assert (places["/state"] / "lab").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_commands_of_the_build_make_a_gpuops_that_serves(tmp_path: Path) -> None:
    """What its RUN lines say, done in folders of the test's own in place of the image's."""
    here = {"/build": tmp_path / "build", "/opt/gpuops": tmp_path / "gpuops"}
    here["/build"].mkdir()
    for word, step in steps():
        text = step
        for place, folder in here.items():
            text = text.replace(place, str(folder))
        if word == "COPY" and not text.startswith("--from="):
            *sources, target = text.split()
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, here["/build"] / (source if target == "./" else target))
        elif word == "RUN":
            words = shlex.split(text)
            words[0] = sys.executable if words[0] == "python" else words[0]
            subprocess.run(words, cwd=here["/build"], check=True, capture_output=True)
    command = [str(here["/opt/gpuops"] / "bin" / "gpuops"), "sim", "faults"]
    listed = subprocess.run(command, env={"HOME": str(tmp_path)}, cwd=tmp_path, capture_output=True, check=True)
    assert b"T2" in listed.stdout
