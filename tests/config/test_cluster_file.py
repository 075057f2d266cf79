"""The file of a cluster: what each wrong value is told, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from gpuops.errors import PolicyError
from gpuops.extras.clusters.cluster_file import load_cluster, parse_cluster
from gpuops.model.workloads.cluster import Arrangement, ClusterMarker, ClusterWish, RdmaKind, parse_cluster_marker

TEMPLATE: Final = Path(__file__).parents[2] / "templates" / "cluster.yaml"
GOOD: Final = """\
version: 1
name: train
template: golden
nodes: 2
gpus: {profile: a40-48c}
rdma: {kind: none}
"""


def test_the_template_is_a_cluster_of_the_scenario() -> None:
    wish = load_cluster(TEMPLATE)
    assert (wish.name, wish.template, wish.nodes, wish.profile, wish.gpus) == ("train", "trainer", 4, "a100d-80c", 1)
    assert (wish.rdma, wish.port_group, wish.placement) == (RdmaKind.PVRDMA, "rdma-vm", Arrangement.PACKED)
    assert (wish.cpus, wish.memory_mib) == (16, 65536)


def test_what_is_not_said_is_the_templates() -> None:
    assert parse_cluster(GOOD, "x") == ClusterWish("train", "golden", 2, 1, profile="a40-48c")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nodes: 2", "nodes: 0", "nodes: should be 1 or more"),
        ("nodes: 2", "nodes: two", "nodes: should be a whole number"),
        ("name: train", "name: Train", "name: should be a name for guests too"),
        ("name: train", "name: train-", "name: should be a name for guests too"),
        ("template: golden\n", "", "template: is missing"),
        ("{profile: a40-48c}", "{}", "gpus: say either `profile`, for vGPUs, or `model`, for whole GPUs"),
        ("{profile: a40-48c}", "{profile: a, model: b}", "gpus: say either"),
        ("{profile: a40-48c}", "{profile: a, count: 17}", "gpus.count: should be 16 or less"),
        ("{kind: none}", "{kind: rdma}", "rdma.kind: should be"),
        ("{kind: none}", "{kind: pvrdma}", "rdma: kind pvrdma needs `port_group`"),
        ("{kind: none}", "{kind: sriov, port_group: a, device: '15b3:101d'}", "rdma: kind sriov has no `device`"),
        ("{kind: none}", "{kind: none, port_group: a}", "rdma: kind none has no `port_group`"),
        ("{kind: none}", "{kind: directpath}", "rdma: kind directpath needs `device`"),
        ("{kind: none}", "{kind: directpath, device: mlx5}", "rdma.device: 'mlx5' is no PCI type"),
        ("version: 1", "version: 2", "version: should be 1"),
        ("nodes: 2", "nodes: 2\nmemory: 64", "memory: should be text; put quotes around it"),
        ("nodes: 2", "nodes: 2\nmemory: '64'", "memory: '64' is not a size of memory"),
        ("nodes: 2", "nodes: 2\nmemory: 4097MiB", "memory: 4097MiB is no multiple of 4 MiB"),
        ("nodes: 2", "nodes: 2\nplacement: near", "placement: should be 'packed' or 'spread'"),
        ("nodes: 2", "nodes: 2\nlatency_sensitivity: low", "latency_sensitivity: should be 'normal' or 'high'"),
        ("nodes: 2", "nodes: 2\nhuge_pages: 1", "huge_pages: should be true or false"),
        ("nodes: 2", "nodes: 2\nnode: 3", "node: unknown key"),
    ],
)
def test_each_wrong_value_is_one_line_that_names_it(old: str, new: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_cluster(GOOD.replace(old, new), "cluster.yaml")
    assert caught.value.message.startswith(f"cluster.yaml: {said}")
    assert "\n" not in caught.value.message
    assert "templates/cluster.yaml" in caught.value.hint


def test_another_wish_has_another_digest() -> None:
    one = parse_cluster(GOOD, "x")
    assert one.digest == parse_cluster(GOOD, "y").digest != parse_cluster(GOOD.replace("2", "3", 1), "x").digest


@pytest.mark.parametrize("text", ["", "v1", "v2 train rank=0", "v1 train rank=0 nodes=4", "\u0663", "v1 train " * 5000])
def test_what_gpuops_did_not_write_is_no_marker(text: str) -> None:
    assert parse_cluster_marker(text) is None


def test_a_marker_is_read_as_it_was_written() -> None:
    marker = ClusterMarker("train", 1, 4, "0a1b2c3d", "0123456789ab", 2, RdmaKind.SRIOV)
    assert parse_cluster_marker(marker.text) == marker
    assert marker.text == "v1 train rank=1 nodes=4 id=0a1b2c3d wish=0123456789ab gpus=2 rdma=sriov"
    for wrong in (
        marker.text.replace("rank=1", "rank=one"),
        marker.text.replace("rank=1", "rank=\u0661"),
        marker.text.replace("sriov", "none-such"),
        f"{marker.text} ",
    ):
        assert parse_cluster_marker(wrong) is None
