"""Plays each story with the current version and writes what it leaves behind: `python -m tests.recorded.record`.

Names of stories as arguments play these alone. The states are written into a folder named after the commit that is
checked out. `stories.py` says what is played; a release adds its folder, older folders stay as they are.
"""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Final

import yaml

from gpuops.clock import machine_time
from gpuops.sim.scenario.saved_state import save
from tests.execute.journal.postgres import Server, binaries, running_server
from tests.harness.office import EVENING
from tests.recorded import victim
from tests.recorded.states import (
    GUEST_LOGIN,
    SCENARIO,
    RecordedState,
    load_database,
    new_world,
    open_state,
    serving,
    write,
)
from tests.recorded.stories import STORIES, Act, Story

ROOT: Final = Path(__file__).parents[2]
FAMILIES: Final = ("GPUOPS_", "VMWARE_", "GOVC_", "XDG_", "CREDENTIALS_", "PG")
SETTLE_S: Final = 900.0
"""After a kill vCenter ends the tasks that it has begun."""
NOT_KEPT: Final = ("-shm", ".lock")
"""SQLite makes the first anew; a lock file says a process of this machine."""


def main() -> None:
    parser = ArgumentParser(description="Record what runs of this version leave behind when they are killed.")
    parser.add_argument("--version", default=_commit(), help="the folder's name; default: the commit checked out")
    parser.add_argument("stories", nargs="*", help="default: all of them")
    arguments = parser.parse_args()
    failed: list[str] = []
    binary_dir = binaries()
    assert binary_dir is not None, "apt-get install postgresql"
    with running_server(binary_dir) as postgres:
        for story in STORIES:
            if not arguments.stories or story.name in arguments.stories:
                try:
                    state = _record(story, arguments.version, postgres)
                except AssertionError as error:
                    failed.append(story.name)
                    print(f"{story.name} failed: {error}", flush=True)
                    continue
                write(state)
                print(f"{story.name} recorded: {[command.exit_code for command in state.commands]}", flush=True)
    sys.exit(f"not recorded: {', '.join(failed)}" if failed else 0)


def _commit() -> str:
    words = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout.strip()


def _record(story: Story, version: str, postgres: Server) -> RecordedState:
    """Plays the story, then the commands of its morning on a copy of what it left."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = postgres.database() if story.journal == "postgresql" else ""
        state = _left_behind(story, version, folder, url)
        copy = folder / "copy"
        copy.mkdir()
        copy_url = postgres.database() if url else ""
        if copy_url:
            load_database(copy_url, state.database)
        stack.enter_context(environment(copy, copy_url))
        with open_state(state, copy) as played:
            evening = {vm["name"]: vm["power"] for vm in yaml.safe_load(state.scenario)["vms"]}
            with redirect_stdout(StringIO()):
                commands = [played.run(words) for words in story.morning]
            state = replace(
                state,
                commands=commands,
                powers=played.powers,
                hosts_in_maintenance=played.hosts_in_maintenance,
                vms_with_marker=sorted(story.vms_with_marker),
            )
            vms_off = {name for name, power in evening.items() if power == "on" and played.powers[name] != "poweredOn"}
            vms_on = {name for name, power in evening.items() if power == "off" and played.powers[name] != "poweredOff"}
            assert (vms_off, vms_on) == ({*story.vms_off}, {*story.vms_on}), (
                story.name,
                vms_off,
                vms_on,
                [*map(str, commands)],
            )
            assert played.vms_with_marker == {*story.vms_with_marker}, (story.name, played.vms_with_marker)
            assert played.pod is None or not played.pod.maintenance, story.name
            assert played.world.bugs == []
    return state


def _left_behind(story: Story, version: str, folder: Path, url: str) -> RecordedState:
    text, policy = yaml.safe_dump(story.scenario), yaml.safe_dump(story.policy)
    (folder / "policy.yaml").write_text(policy, encoding="utf-8")
    for name, content in story.files.items():
        (folder / name).write_text(content, encoding="utf-8")
    world, now = new_world(text), EVENING
    if story.prepare is not None:
        story.prepare(world)
    with serving(world, folder, broker="desktop_pools" in story.scenario) as (ready, pod):
        for act in story.acts:
            with world.lock:
                world.clock.advance(act.later_s)
            now += timedelta(seconds=act.later_s)
            _play(act, folder, url, ready, (now - machine_time()).total_seconds())
        with world.lock:
            world.clock.advance(SETTLE_S)
            world.clock.advance(story.morning_later_s)
            saved = save(world, SCENARIO, 0, lambda: new_world(text))
        saved["ledger"] = []
        gated = sorted(pod.maintenance) if pod is not None else []
        assert world.bugs == []
    lost = story.journal == "lost"
    moment = now + timedelta(seconds=SETTLE_S + story.morning_later_s)
    state = RecordedState(
        version, story.name, story.kind, story.about, story.journal, text, policy, saved, gated, moment.isoformat(),
        {} if lost else _files(folder / "state"), _dump_database(url) if url else [],
    )  # fmt: skip
    _check_neutral(state, folder)
    return state


def _play(act: Act, folder: Path, url: str, ready: Path, ahead_s: float) -> None:
    words = [word.format(policy=folder / "policy.yaml", folder=folder) for word in act.words]
    cut = words.index("--") if "--" in words else len(words)
    words = [*words[:cut], "--vcenter", f"sim@{ready}", *words[cut:]]
    env = {key: value for key, value in os.environ.items() if not key.startswith(FAMILIES)} | _variables(folder, url)
    env |= {"SURROUNDINGS_AHEAD_S": str(ahead_s), "TZ": "UTC"}
    output = folder / "output"
    code = victim.run(words, act.kill, env, output, checkpoints=act.checkpoints)
    expected = -9 if act.kill != victim.NEVER else act.exit_code
    assert code == expected, f"{act}: {code}\n{output.read_text(encoding='utf-8')}"


def _variables(folder: Path, url: str) -> dict[str, str]:
    variables = {"HOME": str(folder), "GPUOPS_STATE_DIR": str(folder / "state"), "GPUOPS_SIM_CLOCK": "stepped"}
    variables |= {"GPUOPS_GUEST_USERNAME": GUEST_LOGIN[0], "GPUOPS_GUEST_PASSWORD": GUEST_LOGIN[1]}
    return variables | ({"GPUOPS_JOURNAL_URL": url} if url else {})


@contextmanager
def environment(folder: Path, url: str) -> Iterator[None]:
    """For commands in this process: nothing of this machine, and where the state lies."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(FAMILIES)]:
        del os.environ[name]
    os.environ |= _variables(folder, url)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _files(state_dir: Path) -> dict[str, str]:
    paths = [path for path in sorted(state_dir.rglob("*")) if path.is_file() and not path.name.endswith(NOT_KEPT)]
    return {str(path.relative_to(state_dir)): base64.b64encode(path.read_bytes()).decode() for path in paths}


def _dump_database(url: str) -> list[str]:
    """The statements of pg_dump, without settings of the session and commands of psql."""
    binary_dir = binaries()
    assert binary_dir is not None
    process = subprocess.run(
        [binary_dir / "pg_dump", "--inserts", "--no-owner", "--no-privileges", "--no-comments", url],
        capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    lines = [line for line in process.stdout.splitlines() if line and not line.startswith(("--", "\\"))]
    statements = re.split(r"(?<=;)\n", "\n".join(lines))
    return [statement for statement in statements if not statement.startswith(("SET ", "SELECT pg_catalog.set_config"))]


def _check_neutral(state: RecordedState, folder: Path) -> None:
    """Nothing of this machine is in it."""
    texts = [
        str(state.world),
        *state.database,
        *(base64.b64decode(content).decode("latin-1") for content in state.files.values()),
    ]
    machine = socket.gethostname()
    for secret in (str(folder), str(ROOT), f'"machine":"{machine}"', f' on {machine}"'):
        assert not any(secret in text for text in texts), f"{state.name} names {secret}"


if __name__ == "__main__":
    main()
