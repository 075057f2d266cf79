"""What commands of runners refuse before they ask the queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops import clock
from gpuops.cli.app import app
from gpuops.clock import set_ahead
from gpuops.config.vcenter.sources import refuse_one_login
from gpuops.console.options import CommonOptions
from gpuops.errors import Refused, UsageError
from gpuops.extras.fleet.cli import ask_fleet
from tests.runner.test_due import PARIS, policy_of


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a policy that runners play on a target, while its window is open; no queue is reached."""
    before = clock.wall_clock() - clock.machine_time()
    file, configuration = tmp_path / "policy.yaml", tmp_path / "config.toml"
    file.write_text(policy_of(PARIS).text, encoding="utf-8")
    text = f"[fleet]\nurl = 'postgresql://127.0.0.1:1/none'\n[targets.prod]\nhost = 'vc'\nrotations = ['{file}']\n"
    configuration.write_text(text, encoding="utf-8")
    monkeypatch.setenv("GPUOPS_CONFIG", str(configuration))
    monkeypatch.delenv("GPUOPS_JOURNAL_URL", raising=False)
    set_ahead(datetime(2026, 11, 2, 23, tzinfo=UTC) - clock.machine_time())
    yield file
    set_ahead(before)


@pytest.mark.parametrize("words", [["--dry-run"], ["--inventory", "saved.json"]])
def test_what_looks_only_is_not_asked_of_runners(policy: Path, words: list[str]) -> None:
    result = CliRunner().invoke(app, ["rotate", "night", "--fleet", "--policy", str(policy), *words])
    assert result.exit_code == 2
    assert "--fleet asks the runners to run the night" in result.output


def test_nobody_is_asked_for_a_night_without_consent(policy: Path) -> None:
    with pytest.raises(UsageError, match="a night suspends desktops, and there is no terminal to ask at"):
        ask_fleet(CommonOptions(), policy, yes=False)


def test_a_return_is_not_asked_for(policy: Path) -> None:
    set_ahead(datetime(2026, 11, 2, 12, tzinfo=UTC) - clock.machine_time())
    with pytest.raises(Refused, match="no window of nights is open"):
        ask_fleet(CommonOptions(), policy, yes=True)


def test_another_policy_of_that_name_is_refused(policy: Path) -> None:
    other_policy = policy.with_name("other.yaml")
    other_policy.write_text(policy.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    with pytest.raises(UsageError, match="the files differ"):
        ask_fleet(CommonOptions(), other_policy, yes=True)


def test_with_consent_the_queue_is_asked(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []

    async def ask(url: str, site: str, name: str) -> bool:
        reached.append(f"{site} {name}")
        return True

    monkeypatch.setattr("gpuops.extras.fleet.cli._ask_for_night", ask)
    ask_fleet(CommonOptions(), policy, yes=True)
    assert reached == ["prod nights"]


@pytest.mark.parametrize(
    ("sites", "environ", "refused"),
    [
        (("a", "b"), {"GPUOPS_PASSWORD": "x", "GPUOPS_USERNAME": "u"}, "GPUOPS_USERNAME, GPUOPS_PASSWORD"),
        (("a", "b"), {"GOVC_PASSWORD": "x"}, "GOVC_PASSWORD"),
        (("a", "b"), {"GOVC_PASSWORD": "x", "GOVC_URL": "https://a.example.com"}, ""),
        (("a",), {"GPUOPS_PASSWORD": "x"}, ""),
        (
            ("a", "b"),
            {"GPUOPS_GUEST_USERNAME": "u", "GPUOPS_GUEST_PASSWORD_FILE": "/f"},
            "GPUOPS_GUEST_USERNAME, GPUOPS_GUEST_PASSWORD_FILE",
        ),
        (("a", "b"), {"GPUOPS_GUEST_SSH_KEY": "/key", "GPUOPS_GUEST_SSH_KNOWN_HOSTS": "/known"}, ""),
        (("a", "b"), {"GPUOPS_PASSWORD": ""}, ""),
    ],
)
def test_a_login_of_the_environment_goes_to_no_two_vcenters(
    sites: tuple[str, ...], environ: dict[str, str], refused: str
) -> None:
    if not refused:
        refuse_one_login(sites, environ)
        return
    with pytest.raises(UsageError, match=f"^{refused} would go to each of 2 vCenters: a, b"):
        refuse_one_login(sites, environ)


def test_a_runner_refuses_two_journals(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = policy.with_name("config.toml")
    text = configuration.read_text(encoding="utf-8").partition("[targets.prod]\n")[2]
    configuration.write_text(f"[targets.prod]\njournal_url = 'postgresql://db/own'\n{text}", encoding="utf-8")
    monkeypatch.setenv("GPUOPS_JOURNAL_URL", "postgresql://127.0.0.1:1/none")
    result = CliRunner().invoke(app, ["runner", "run"])
    assert result.exit_code == 2
    assert "targets.prod.journal_url is not the database of the runners" in result.output
