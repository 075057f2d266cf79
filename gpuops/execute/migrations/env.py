"""The script that alembic runs: `database.py` passes the connection, and what the database keeps."""

from __future__ import annotations

from alembic import context

_settings = context.config.attributes
context.configure(
    connection=_settings["connection"], contents=_settings["contents"], output_buffer=context.config.output_buffer
)
with context.begin_transaction():
    context.run_migrations()
