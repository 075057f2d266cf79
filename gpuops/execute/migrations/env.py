"""What alembic runs around revisions: `database.py` tells it the connection, and what the database keeps."""

from __future__ import annotations

from alembic import context

_told = context.config.attributes
context.configure(
    connection=_told["connection"], contents=_told["contents"], output_buffer=context.config.output_buffer
)
with context.begin_transaction():
    context.run_migrations()
