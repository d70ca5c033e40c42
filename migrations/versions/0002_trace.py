"""Where a saga's trace begins."""

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column; no row is rewritten, and the release before runs on without it."""
    if not online.has_column("sagas", "trace"):
        op.add_column("sagas", sa.Column("trace", sa.String(length=55), nullable=True))
