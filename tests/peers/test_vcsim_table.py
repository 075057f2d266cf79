"""Our simulator comes to what `vcsim_table/outcomes.tsv` says of it; `test_against_vcsim.py` asks vcsim too."""

from __future__ import annotations

import pytest

from tests.peers.test_against_vcsim import our_server
from tests.peers.vcsim_table.table import play_operations, recorded_rows


@pytest.mark.long
def test_each_operation_comes_to_what_the_table_says_of_ours() -> None:
    assert play_operations(our_server) == {row.operation: row.ours for row in recorded_rows()}
