"""The Containerfile: its steps name what is there, what runs is not root, and serving writes where it may alone."""

from __future__ import annotations

import itertools
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

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer

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
"""Run gpuops; print every file that it opens for writing outside the folders in the first argument."""


def steps() -> list[tuple[str, str]]:
    """(instruction, its text), with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word, arguments.strip())
        for word, _, arguments in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def environment() -> dict[str, str]:
    """What ENV sets in the image that runs."""
    return dict(assignment.split("=", 1) for word, text in steps() if word == "ENV" for assignment in shlex.split(text))


def test_every_stage_begins_with_the_image_that_the_builder_names() -> None:
    first, *later_steps = steps()
    assert first[0] == "ARG"
    name = first[1].partition("=")[0]
    assert [text.split()[0] for word, text in later_steps if word == "FROM"] == [f"${{{name}}}"] * 2
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


@pytest.mark.long
def test_serving_a_scenario_writes_below_tmp_and_the_state_alone(tmp_path: Path) -> None:
    """What a read-only root file system allows: `/tmp` and the volume, here folders of the test."""
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


def night_in_the_manual() -> list[str]:
    """The words of the `podman run` line whose command is a night."""
    text = (ROOT / "gpuops" / "manual" / "container.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = [line for line in text.splitlines() if line.startswith("podman run ") and "rotate night" in line]
    return shlex.split(line)


def option_values(words: list[str], option: str) -> list[str]:
    """The values that the option is given with."""
    return [value for name, value in itertools.pairwise(words) if name == option]


@pytest.mark.long
def test_the_night_of_the_manual_runs_with_its_mounts_alone(tmp_path: Path) -> None:
    """The variables and paths of the image and of the line, each folder in place of what is mounted there."""
    words = night_in_the_manual()
    assert option_values(words, "--user") == [dict(steps())["USER"]]
    mounts = {target: mode for _, target, *mode in (mount.split(":") for mount in option_values(words, "-v"))}
    assert mounts == {"/etc/gpuops": ["ro"], environment()["GPUOPS_STATE_DIR"]: []}
    places = {folder: tmp_path / folder.replace("/", "_") for folder in (*mounts, *option_values(words, "--tmpfs"))}
    for place in places.values():
        place.mkdir(mode=0o700)

    def on_this_machine(text: str) -> str:
        mounted = next((folder for folder in places if f"{text}/".startswith(f"{folder}/")), None)
        assert mounted is not None or not text.startswith("/"), f"{text} is in no mount"
        return text.replace(mounted, str(places[mounted]), 1) if mounted else text

    variables = dict(assignment.split("=", 1) for assignment in option_values(words, "-e"))
    env = {name: on_this_machine(value) for name, value in (environment() | variables).items() if name != "PATH"}
    typed = [on_this_machine(word) for word in words[words.index("gpuops") + 1 :]]
    with SimServer(build("lab")) as server:
        assert server.ca_file is not None
        config, config_dir = Path(env["GPUOPS_CONFIG"]), places["/etc/gpuops"]
        shutil.copy(server.ca_file, config_dir / "ca.pem")
        config.write_text(
            f'[targets.prod]\nhost = "{server.host}:{server.port}"\nusername = "{server.username}"\n'
            f'ca_file = "{config_dir}/ca.pem"\n'
        )
        password = Path(env["GPUOPS_PASSWORD_FILE"])
        password.write_text(server.password, encoding="utf-8")
        password.chmod(0o400)
        shutil.copy(ROOT / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml", typed[typed.index("--policy") + 1])
        written = os.pathsep.join(str(place) for folder, place in places.items() if mounts.get(folder) != ["ro"])
        process = subprocess.run(
            [sys.executable, "-c", WATCHED, written, *typed],
            env={**env, "TMPDIR": env["HOME"]},
            cwd=places["/tmp"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert (process.returncode, process.stderr) == (0, ""), process
    assert process.stdout.startswith("rotate night: "), "and it has taken something"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root tree of Debian 12 with its Python 3.11, in place of the base image, which comes from a registry."""
    for missing, getting in (
        (shutil.which("mmdebstrap") is None, "no mmdebstrap: install Debian's package mmdebstrap"),
        (os.getuid() != 0, "not root: a root tree is entered by root"),
    ):
        if missing and os.environ.get("CI"):
            pytest.fail(getting)
        elif missing:
            pytest.skip(getting)
    tree = tmp_path_factory.mktemp("base") / "tree"
    packages = "--include=python3,python3-venv,ca-certificates"
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--quiet", packages, "bookworm", str(tree)]
    subprocess.run(command, check=True, capture_output=True)
    (tree / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for shared in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", os.environ.get("PIP_CERT")):
        if shared and Path(shared).exists():
            (tree / shared[1:]).unlink(missing_ok=True)
            (tree / shared[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(shared, tree / shared[1:])
    return tree


def copy_tree(source: Path, target: Path, *options: str) -> None:
    """As COPY does: a folder's content into a folder of its name."""
    subprocess.run(["cp", "-a", *options, str(source), str(target)], check=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_steps_make_an_image_whose_user_writes_to_tmp_and_state_alone(base: Path, tmp_path: Path) -> None:
    """Every step as a builder plays it, each stage in a root tree of its own; then as the user that it names."""
    trees: dict[str, Path] = {}
    tree, place = base, "/"
    passed_on = ("PIP_CERT", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy")
    variables = {name: os.environ[name] for name in passed_on if name in os.environ}
    variables["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    user = ""
    for word, text in steps():
        match word:
            case "FROM":
                name = text.partition(" AS ")[2] or "image"
                tree = trees[name] = tmp_path / name
                copy_tree(base, tree, "--link")  # a file that a step replaces is another one
            case "WORKDIR":
                place = text
                (tree / place[1:]).mkdir(parents=True, exist_ok=True)
            case "COPY" if text.startswith("--from="):
                stage, source, target = text.removeprefix("--from=").split()
                copy_tree(trees[stage] / source[1:], tree / target[1:])
            case "COPY":
                *sources, target = text.split()
                for source in sources:
                    copy_tree(ROOT / source, tree / place[1:] / (source if target == "./" else target))
            case "RUN":
                step = ["chroot", str(tree), "sh", "-c", f"cd {place} && {text}"]
                subprocess.run(step, env=variables, check=True, capture_output=True)
            case "USER":
                user = text
            case _:
                pass
    (tree / "state").mkdir()
    os.chown(tree / "state", *map(int, user.split(":")))
    (tree / "root.txt").write_text("not to be written to", encoding="utf-8")

    def typed(*words: str) -> str:
        enter = ["chroot", f"--userspec={user}", str(tree), "env", "-i", "-C", place]
        command = [*enter, *(f"{name}={value}" for name, value in environment().items()), *words]
        process = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        assert process.returncode == 0, (command, process.stdout, process.stderr)
        return process.stdout

    assert typed("gpuops", "--version").startswith("gpuops ")
    assert "every desktop is back" in typed("gpuops", "demo").lower()
    owned = ["find", str(tree), "-xdev", "-uid", user.split(":")[0], "-printf", "/%P\n"]
    written = subprocess.run(owned, capture_output=True, encoding="utf-8", check=True).stdout.split()
    assert written, "a night writes its journal"
    assert [path for path in written if not path.startswith(("/tmp", "/state"))] == []
