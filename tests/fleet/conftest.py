"""A PostgreSQL server of the tests' own, which a test may stop and start."""

from __future__ import annotations

from tests.execute.conftest import postgresql

__all__ = ["postgresql"]
