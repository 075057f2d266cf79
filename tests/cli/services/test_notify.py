"""`gpuops notify`, and the notices of a night and a morning of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.sim.wire import sim_client
from tests.cli.conftest import LAB_POLICY, Lab
from tests.notify.conftest import Webhook, webhook
from tests.stored_day import BUSY, store_day

__all__ = ["webhook"]
Gpuops = Callable[..., Result]


@pytest.fixture
def prod(lab: Lab, clean: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> Gpuops:
    """The lab as the target `prod`, whose notices go to the webhook."""
    ready = sim_client.of(lab.server)
    password = clean / "password"
    password.write_text(ready.password)
    password.chmod(0o600)
    ca_file = f'ca_file = "{ready.ca_file}"' if ready.ca_file else ""
    config = clean / "config.toml"
    config.write_text(
        f'''default = "prod"
[targets.prod]
host = "{ready.url}"
username = "{ready.username}"
password_file = "{password}"
notify = ["env:HOOK"]
{ca_file}
[targets.silent]
host = "{ready.url}"
'''
    )
    monkeypatch.setenv("GPUOPS_CONFIG", str(config))
    monkeypatch.setenv("HOOK", webhook.url)
    return lambda *words: CliRunner().invoke(app, [*words])


def titles(webhook: Webhook) -> list[str]:
    return [json.loads(body)["title"] for _, body in webhook.calls]


@pytest.mark.long
def test_a_night_and_a_morning_are_told_of_once_each(prod: Gpuops, webhook: Webhook) -> None:
    planned = prod("rotate", "night", "--policy", LAB_POLICY, "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert webhook.calls == [], "a dry run sends no notice"
    night = prod("rotate", "night", "--policy", LAB_POLICY, "--yes")
    assert night.exit_code == 0, night.output
    day = prod("rotate", "day", "--yes")
    assert day.exit_code == 0, day.output
    second_return = prod("rotate", "day", "--yes")
    assert second_return.exit_code == 0, second_return.output
    first, second = titles(webhook)
    assert first.startswith("gpuops prod: night ended: rotate night: ")
    assert second.startswith("gpuops prod: return ended: rotate day: ")
    assert len(set(webhook.keys)) == 2


@pytest.mark.long
def test_a_receiver_that_refuses_changes_no_exit_code(prod: Gpuops, webhook: Webhook) -> None:
    webhook.status = 503
    night = prod("rotate", "night", "--policy", LAB_POLICY, "--yes")
    assert night.exit_code == 0, night.output
    warnings = [line for line in night.stderr.splitlines() if "notices not accepted" in line]
    trouble = "notices not accepted by json://127.0.0.1 (env:HOOK): the receiver did not accept it"
    assert warnings == [f"warning: {trouble}; the next run sends them again, or run gpuops notify flush"]
    refused = prod("notify", "flush")
    assert refused.exit_code == 5
    webhook.status = 200
    flushed = prod("notify", "flush")
    assert (flushed.exit_code, flushed.stdout) == (0, "accepted      json://127.0.0.1 (env:HOOK)\n")
    assert prod("notify", "flush").stdout == "no notice is waiting to be sent\n"
    assert len(set(webhook.keys)) == 1
    assert "s3cr3t" not in night.output + refused.output + flushed.output


def test_a_vcenter_that_is_away_is_an_alarm(prod: Gpuops, lab: Lab, webhook: Webhook) -> None:
    lab.server.close()
    night = prod("rotate", "night", "--policy", LAB_POLICY, "--yes")
    assert night.exit_code == 5, night.output
    assert titles(webhook) == ["gpuops prod: alarm: rotate night ended with exit code 5"]


def test_a_policy_that_cannot_be_read_at_night_is_told_of_once(
    prod: Gpuops, webhook: Webhook, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run itself, however often cron calls, and not once more by the unit that `OnFailure=` starts."""
    policy = clean / "policy.yaml"
    policy.write_text("pools: [")
    words = ("rotate", "night", "--policy", str(policy), "--yes")
    assert prod(*words, "--dry-run").exit_code == 2
    assert prod(*words, "--vcenter", "silent").exit_code == 2
    assert webhook.calls == []
    for _ in range(2):
        night = prod(*words)
        assert (night.exit_code, night.stdout) == (2, "")
        assert night.stderr.startswith("error: ") and "warning" not in night.stderr
    for name, value in {"UNIT": "gpuops-night.service", "EXIT_CODE": "exited", "EXIT_STATUS": "2"}.items():
        monkeypatch.setenv(f"MONITOR_{name}", value)
    monkeypatch.setenv("MONITOR_INVOCATION_ID", "a" * 32)
    assert prod("notify", "flush").exit_code == 0
    assert titles(webhook) == ["gpuops prod: alarm: rotate night ended with exit code 2"]
    assert str(policy) in webhook.calls[0][1].decode()


def test_a_test_says_who_accepted_it(prod: Gpuops, webhook: Webhook) -> None:
    test_run = prod("notify", "test", "--output", "json")
    assert test_run.exit_code == 0, test_run.output
    document = json.loads(test_run.stdout)
    assert document["kind"] == "notify-test"
    assert document["receivers"] == [{"receiver": "json://127.0.0.1 (env:HOOK)", "accepted": 1, "trouble": None}]
    webhook.status = 404
    refused = prod("notify", "test")
    assert refused.exit_code == 5
    assert refused.stdout == "not accepted  json://127.0.0.1 (env:HOOK): the receiver did not accept it\n"
    assert len(webhook.calls) == 2


@pytest.mark.parametrize("verb", ["test", "flush"])
@pytest.mark.parametrize(
    ("target", "reason", "next_move"),
    [
        (
            "silent",
            "no notices are configured for silent",
            "put notify = [...] into its [targets.silent] (gpuops help timers)",
        ),
        (
            "silnt",
            "no target 'silnt' in the configuration file; did you mean silent?; notices belong to a target",
            "use one of its targets: prod, silent",
        ),
    ],
)
def test_without_receivers_it_says_what_to_write(
    verb: str, target: str, reason: str, next_move: str, prod: Gpuops
) -> None:
    refusal = prod("notify", verb, "--vcenter", target)
    assert (refusal.exit_code, refusal.stderr) == (2, f"error: {reason}\nnext: {next_move}\n")


@pytest.mark.long
def test_a_probable_component_is_told_of_once_a_day_where_that_is_asked_for(
    prod: Gpuops, lab: Lab, webhook: Webhook
) -> None:
    vcenter = json.loads(prod("inventory", "-o", "json").stdout)["vcenter"]
    measured = {"vdi-05": {**BUSY, "smi.vgpu.licensed.latest": 0}, "vdi-04": {**BUSY, "smi.vgpu.licensed.latest": 1}}
    store_day(lab.server, default_state_dir(), vcenter, measured)
    for options in ([], ["--notify", "100%"]):
        assert prod("diagnose", *options).exit_code == 0
        assert webhook.calls == [], "not asked for, or nothing is so probable"
    for _ in range(2):
        diagnose = prod("diagnose", "--notify", "90%")
        assert (diagnose.exit_code, "not accepted" in diagnose.output) == (0, False)
    [(_, body)] = webhook.calls
    notice = json.loads(body)
    assert notice["title"] == "gpuops prod: slow VMs: diagnose: 1 VM with a component that is probably at fault"
    assert "- vdi-05 (d-" in notice["message"] and "): 99% vGPU without licence" in notice["message"]
    assert "next: gpuops diagnose --vcenter prod" in notice["message"] and "vdi-04" not in notice["message"]


def test_where_to_tell_and_from_which_share_on_is_checked_first(prod: Gpuops) -> None:
    for words, reason in (
        (["--notify", "80"], "--notify 80: is above 1"),
        (["--notify", "80%", "--vcenter", "silent"], "no notices are configured for silent"),
        (["--notify", "80%", "--cases", "."], "--cases and --notify exclude each other"),
    ):
        refusal = prod("diagnose", *words)
        assert (refusal.exit_code, refusal.stdout) == (2, "") and reason in refusal.stderr
