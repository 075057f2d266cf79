"""Jobs, pools and clusters of several vCenters at once: of each its own, though all lie in one journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.execute.state.state_dir import default_state_dir
from gpuops.extras.lending.lease_book import LeaseBook, LendingPool, PoolServer, ServerGpu
from gpuops.extras.lending.pool_book import PoolBooks
from gpuops.plan.core.rejection import Rejection
from tests.bench.simulator.simulators import our_simulator
from tests.cli.conftest import LAB_POLICY
from tests.cli.sites.test_sites import SERVED, _secret, configured, dead, document, run, served

__all__ = ["configured", "dead", "served"]  # fixtures
Configure = Callable[..., None]
READ: Final = (["job", "list"], ["job", "show", "both"], ["pool", "show"], ["cluster", "show"])


@pytest.fixture
def submitted(configured: Configure, tmp_path: Path) -> str:
    """A policy for jobs, and three jobs: `both` in each vCenter, `alone` in `muc`."""
    text = Path(LAB_POLICY).read_text(encoding="utf-8")
    policy = tmp_path / "jobs-policy.yaml"
    policy.write_text(text.replace("\nml:\n", '\nml:\n  jobs: {relocate: true, vms: ["ml-*"]}\n', 1), encoding="utf-8")
    job = ("--image", "quay.io/lab/train:2", "--profile", "a40-48c", "--duration", "3h", "--policy", str(policy))
    for site, name in (("fra", "both"), ("muc", "alone"), ("muc", "both")):
        submission = run("job", "submit", *job, "--name", name, "--vcenter", site, "--", "run")
        assert submission.exit_code == 0, submission.output
    return str(policy)


@pytest.fixture
def pools(configured: Configure) -> None:
    """A pool of the same name in the book of each vCenter, with a server of its own."""
    for site in SERVED:
        with PoolBooks.open(default_state_dir(), "", _uuid(site), write=True) as books:
            books.change("lab", partial(_with_pool, site))


def _with_pool(site: str, *_: object) -> tuple[LeaseBook, tuple[Rejection, ...]]:
    server = PoolServer(f"gpu-{site}", site, (ServerGpu(0, 40_960),))
    return LeaseBook(LendingPool("lab", "net"), (server,)), ()


def _uuid(site: str) -> str:
    return str(json.loads(run("job", "list", "--vcenter", site, "-o", "json").stdout)["vcenter"])


@pytest.mark.long
@pytest.mark.usefixtures("submitted", "pools")
@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_each_answer_is_the_one_of_its_vcenter_alone(words: list[str]) -> None:
    result = run(*words, "--site", "all", "-o", "json")
    answer = document(result)
    alone = {name: json.loads(run(*words, "--vcenter", name, "-o", "json").stdout) for name in SERVED}
    assert (result.exit_code, answer["sites"], answer["unreachable"]) == (0, alone, {})


@pytest.mark.long
@pytest.mark.usefixtures("submitted", "pools")
@pytest.mark.parametrize("words", READ, ids=" ".join)
def test_one_that_is_away_is_named_and_sinks_nobody(
    words: list[str], configured: Configure, dead: str, tmp_path: Path
) -> None:
    configured(gone={"host": dead, "username": "x", "password_file": _secret(tmp_path)})
    result = run(*words, "--site", "all", "-o", "json")
    answer = document(result)
    assert (result.exit_code, list(answer["sites"]), list(answer["unreachable"])) == (4, list(SERVED), ["gone"])
    assert "error: gone: " in result.stderr
    assert run(*words, "--site", "gone").exit_code == 5


@pytest.mark.usefixtures("submitted")
def test_jobs_are_one_table_whose_first_column_is_the_site() -> None:
    lines = run("job", "list", "--site", "all").stdout.splitlines()
    assert lines[0].split()[:4] == ["site", "place", "number", "job"]
    assert [line.split()[:4] for line in lines[1:4]] == [
        ["fra", "-", "1", "both"],
        ["muc", "-", "1", "alone"],
        ["muc", "-", "2", "both"],
    ]
    assert lines[4:] == ["fra: 1 job: 1 wait, 0 run", "muc: 2 jobs: 2 wait, 0 run"]


@pytest.mark.long
def test_the_policy_of_the_site_says_whose_turn_it_is(
    submitted: str, configured: Configure, served: dict[str, dict[str, str]]
) -> None:
    configured(fra={**served["fra"], "policy": submitted})
    sites: dict[str, Any] = document(run("job", "list", "--site", "all", "-o", "json"))["sites"]
    turns = {site: [(job["place"], job["next_vm"]) for job in queue["jobs"]] for site, queue in sites.items()}
    assert turns == {"fra": [(1, "ml-06")], "muc": [(None, None), (None, None)]}


@pytest.mark.long
@pytest.mark.usefixtures("submitted")
def test_a_job_that_one_site_has_is_shown_and_the_others_are_named() -> None:
    result = run("job", "show", "alone", "--site", "all", "-o", "json")
    answer = document(result)
    assert (result.exit_code, list(answer["sites"]), answer["unreachable"]) == (4, ["muc"], {})
    assert answer["sites"]["muc"]["job"]["name"] == "alone"
    assert answer["failed"]["fra"]["message"] == "no job is called 'alone'"
    nowhere = run("job", "show", "nowhere", "--site", "all")
    assert (nowhere.exit_code, nowhere.stderr.count("error:")) == (2, 1), "it is said once"


@pytest.mark.long
@pytest.mark.usefixtures("pools")
def test_pools_are_one_table_whose_first_column_is_the_site() -> None:
    lines = run("pool", "show", "--site", "all").stdout.splitlines()
    assert lines[0] == "lab: network net, no program", "said once where all sites say the same"
    assert [line.split()[:2] for line in lines[1:4]] == [["site", "server"], ["fra", "gpu-fra"], ["muc", "gpu-muc"]]


@pytest.mark.long
def test_clusters_are_one_table_whose_first_column_is_the_site(configured: Configure, tmp_path: Path) -> None:
    templates = Path(__file__).parents[3] / "templates"
    file, secret = tmp_path / "cluster.yaml", tmp_path / "password"
    file.write_text((templates / "cluster.yaml").read_text(encoding="utf-8").replace("nodes: 4 ", "nodes: 1 "), "utf-8")
    with our_simulator("training", "--clock", "virtual") as simulated:
        endpoint = simulated.endpoint
        secret.write_text(endpoint.password, encoding="utf-8")
        secret.chmod(0o600)
        login = {"username": endpoint.username, "password_file": str(secret), "ca_file": str(endpoint.ca_file)}
        configured(trn={"host": endpoint.url, **login})
        assert run("cluster", "create", "--file", str(file), "--yes", "--vcenter", "trn").exit_code == 0
        lines = run("cluster", "show", "--site", "all").stdout.splitlines()
        named = document(run("cluster", "show", "--site", "all", "train", "-o", "json"))
    [head, row] = (line for line in lines if not line.split()[0].endswith(":"))
    assert (head.split()[:3], row.split()[:3]) == (["site", "rank", "VM"], ["trn", "0", "train-00"])
    assert [line for line in lines if "no cluster" in line] == [
        "fra: there is no cluster that gpuops made",
        "muc: there is no cluster that gpuops made",
    ]
    assert (list(named["sites"]), list(named["failed"])) == (["trn"], ["fra", "muc"])
