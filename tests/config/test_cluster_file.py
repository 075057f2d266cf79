"""The file of a cluster: the one-line error for each wrong value."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

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


def test_another_wish_has_another_digest() -> None:
    cluster = parse_cluster(GOOD, "x")
    assert cluster.digest == parse_cluster(GOOD, "y").digest != parse_cluster(GOOD.replace("2", "3", 1), "x").digest


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
