"""Files of programs that move CUDA calls over the network: those that come with gpuops, and what is refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuops.config.remote_gpu_file import known_programs, load_program, parse_remote_gpu, rendered
from gpuops.errors import GpuopsError, PolicyError, UsageError
from gpuops.model.workloads.remote_gpu import CutOff, LeaseKey, MemoryLimit

FOLDER: Final = Path(__file__).parents[2] / "templates" / "remote-gpu"
FILES: Final = sorted(FOLDER.glob("*.yaml"))
PLAIN: Final = {"PATH", "PWD", "HOME"}
"""Variables of every shell."""
GIVEN: Final = {
    *("LEASE", "GPU", "MEMORY_MIB", "SECONDS_LEFT", "PORT", "CLIENT_ADDRESS", "SERVER_ADDRESS", "KEY", "UNIT", "GPUS"),
    "KEY_FILE",
}
DOCUMENTED: Final = {
    # the programs' own; their pages, read on the day that the files say
    "lupine": {
        "LUPINE_SERVER": "github.com/lupinemachines/lupine",
        "LUPINE_PORT": "github.com/lupinemachines/lupine",
        "/opt/lupine/lib": "github.com/lupinemachines/lupine",
        "/opt/lupine/bin/lupine_driver_server": "github.com/lupinemachines/lupine",
        "RuntimeMaxSec": "www.freedesktop.org/software/systemd",
        "IPAddressAllow": "www.freedesktop.org/software/systemd",
        "IPAddressDeny": "www.freedesktop.org/software/systemd",
        "CUDA_VISIBLE_DEVICES": "docs.nvidia.com",
        "CUDA_DEVICE_ORDER": "docs.nvidia.com",
        "--query-compute-apps": "docs.nvidia.com",
    },
    "juice": dict.fromkeys(
        (
            *("agent run", "--gpu-ids", "--labels", "--listen-ip", "session list", "session release"),
            *("session request", "--match-labels", "--vram", "--vram-strict"),
        ),
        "docs.juicelabs.co",
    ),
}
"""What each program's scripts say to it -> where its documentation has that."""
TEXT: Final = (FOLDER / "lupine.yaml").read_text(encoding="utf-8")


def file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def scripts(name: str) -> str:
    told = file(name)
    return "\n".join((*told["server"].values(), *told["client"].values()))


def test_an_open_and_a_commercial_program_come_with_gpuops() -> None:
    assert known_programs() == ("juice", "lupine") == tuple(path.stem for path in FILES)
    assert {file(name)["kind"] for name in known_programs()} == {"open", "commercial"}
    lupine, juice = load_program("lupine"), load_program("juice")
    assert (lupine.memory, lupine.key, lupine.cut_off) == (MemoryLimit.PROMISE, LeaseKey.NONE, CutOff.SERVER)
    assert (juice.memory, juice.key, juice.cut_off, juice.most_shares) == (
        *(MemoryLimit.PROGRAM, LeaseKey.NONE, CutOff.CLIENT),
        1,
    )


@pytest.mark.parametrize("name", DOCUMENTED)
def test_what_a_file_says_to_its_program_is_documented_and_the_page_is_named(name: str) -> None:
    pages, text = file(name)["pages"], scripts(name)
    assert {each: page.removeprefix("https://").startswith(DOCUMENTED[name][each]) for each, page in pages.items()} == (
        dict.fromkeys(DOCUMENTED[name], True)
    )
    assert [each for each in pages if each not in text] == [], "a page of something that no script says"
    own = {"lupine": r"LUPINE_\w+|(?<=--property=)\w+(?==)|(?<=--setenv=)\w+", "juice": r"(?:agent|session) \w+"}[name]
    assert set(re.findall(own, text)) <= set(pages), "something without a page"


def test_every_option_of_juice_that_is_used_has_its_page() -> None:
    lines = re.sub(r"\\\n", " ", scripts("juice"))
    said = {word for line in re.findall(r"\bjuice (?:agent run|session \w+)[^|;&\n]*", lines) for word in line.split()}
    assert {word for word in said if word.startswith("--")} == {
        each for each in DOCUMENTED["juice"] if each.startswith("--")
    }


@pytest.mark.parametrize("name", DOCUMENTED)
def test_how_alive_it_is_is_said_with_a_date(name: str) -> None:
    release, program = file(name)["release"], load_program(name).release
    assert program is not None and re.fullmatch(r"2026-\d\d-\d\d", program.seen)
    assert bool(program.version) == bool(program.date) == ("version" in release)
    assert program.page.startswith("https://")


@pytest.mark.parametrize("name", DOCUMENTED)
def test_its_scripts_are_shell_and_use_only_what_they_are_given(name: str) -> None:
    told = file(name)
    for script in (*told["server"].values(), *(told["client"].get(each, "") for each in ("enter", "leave"))):
        subprocess.run(["/bin/sh", "-n", "-c", script], check=True)
        used = set(re.findall(r"\$\{?([A-Z][A-Z_0-9]+)", script))
        own = set(re.findall(r"([A-Z][A-Z_0-9]+)=", script + told["client"]["environment"]))
        assert used <= GIVEN | PLAIN | own


def test_the_environment_of_several_shares_is_what_lupine_documents() -> None:
    shares = [
        {"address": "10.0.0.1", "port": 14833, "gpu": 0, "memory_mib": 1, "told": ""},
        {"address": "10.0.0.2", "port": 14834, "gpu": 0, "memory_mib": 1, "told": ""},
    ]
    text = rendered(load_program("lupine").client.environment, {"lease": "a", "shares": shares, "key_file": "/k"})
    done = subprocess.run(
        ["/bin/sh", "-c", f'{text}\nprintf %s "$LUPINE_SERVER $LD_LIBRARY_PATH"'],
        env={"LD_LIBRARY_PATH": "/own"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "10.0.0.1:14833,10.0.0.2:14834 /opt/lupine/lib:/own"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\nprogram: lupine", "\nprogram: Lupine", "program: should be of small letters"),
        ("kind: open ", "kind: free ", "kind: "),
        ("memory: promise", "memory: none", "memory: "),
        ("first: 14833, count: 64", "first: 65500, count: 64", "reach beyond port 65535"),
        ("first: 14833", "first: 80", "ports.first: should be 1024 or more"),
        ('seen: "2026-11-27"', "seen: yesterday", "is no date"),
        ('page: "https://github', 'page: "http://github', "begins with https://"),
        ("{{ each.address }}", "{{ each.adress }}", "client.environment: "),
        ("{{ each.address }}", "{{ each.__class__.__mro__ }}", "client.environment: "),
        ("{% for each in shares %}", "{% for each in shares", "client.environment: "),
        ("  used: |\n", "  unused: |\n", "server.unused: unknown key"),
        ("version: 1\n", "version: 2\n", "version: "),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(PolicyError) as caught:
        parse_remote_gpu(TEXT.replace(old, new, 1), "mine.yaml")
    assert caught.value.message.startswith("mine.yaml: ") and said in caught.value.message
    assert "\n" not in caught.value.message and "lupine.yaml" in (caught.value.hint or "")


def test_a_promise_that_nobody_measures_is_refused() -> None:
    without = re.sub(r"  used: \|\n(    .*\n)+", "", TEXT)
    with pytest.raises(PolicyError, match="a promise that nobody measures is none"):
        parse_remote_gpu(without, "mine.yaml")


def test_a_program_is_named_or_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which knows juice, lupine"):
        load_program("bitfusion")
    (tmp_path / "mine.yaml").write_text(TEXT.replace("program: lupine", "program: mine"), encoding="utf-8")
    assert load_program(str(tmp_path / "mine.yaml")).name == "mine"
    with pytest.raises(GpuopsError, match=r"none\.yaml"):
        load_program(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ shares.append(1) }}", "{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{{ 'x' * 10 ** 15 }}",
        "{% for each in range(10 ** 9) %}x{% endfor %}", "{{ '%d'|format('x') }}", "{{ 1 / 0 }}",
        "{{ shares[99].told }}", "{{ '{0.__class__}'.format(1) }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)  # fmt: skip
def test_a_template_reaches_nothing_and_fails_in_one_line(template: str) -> None:
    shares = [{"address": "10.0.0.1", "port": 1, "gpu": 0, "memory_mib": 1, "told": ""}]
    with pytest.raises(UsageError, match="the environment cannot be made: ") as refused:
        rendered(template, {"lease": "a1", "shares": shares, "key_file": "/k"})
    assert len(shares) == 1 and "\n" not in refused.value.message


def test_a_file_that_others_can_write_is_no_program(tmp_path: Path) -> None:
    """Whoever writes into the database of pools may name any path, and its scripts run in guests."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(TEXT.replace("program: lupine", "program: mine"), encoding="utf-8")
    mine.chmod(0o666)
    with pytest.raises(UsageError, match="its scripts run in guests: others can write"):
        load_program(str(mine))
