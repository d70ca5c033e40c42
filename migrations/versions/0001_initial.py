"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from migrations import online

revision = "0001"
down_revision = None

_ID = sa.Uuid().with_variant(sa.Uuid(native_uuid=False), "mysql")
_INSTANT = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql")
_JSON = sa.JSON(none_as_null=True).with_variant(mysql.LONGTEXT(), "mysql")
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql")


def upgrade() -> None:
    """Make every table, each after those that it refers to."""
    _definitions()
    _nodes()
    _sagas()
    _incidents()
    _journal()
    _steps()
    _attempts()


def _definitions() -> None:
    op.create_table(
        "definitions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("workflow", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("document", _JSON, nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_definitions")),
        sa.UniqueConstraint("workflow", "version", name=op.f("uq_definitions_workflow_version")),
        **online.table_options(),
    )


def _nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("agents", _JSON, nullable=False),
        sa.Column("definitions", _JSON, nullable=False),
        sa.Column("started_at", _INSTANT, nullable=False),
        sa.Column("heartbeat_at", _INSTANT, nullable=False),
        sa.Column("swept_at", _INSTANT, nullable=True),
        sa.Column("ended_at", _INSTANT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        **online.table_options(),
    )
    if online.on_mysql():
        op.create_index("ix_nodes_alive", "nodes", ["ended_at", "heartbeat_at"])
        return
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.create_index(
            "ix_nodes_alive",
            ["heartbeat_at"],
            unique=False,
            postgresql_where=sa.text("ended_at IS NULL"),
            sqlite_where=sa.text("ended_at IS NULL"),
        )


def _sagas() -> None:
    op.create_table(
        "sagas",
        sa.Column("id", _ID, nullable=False),
        sa.Column("definition_id", sa.String(length=64), nullable=False),
        sa.Column("workflow", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=True),
        sa.Column("input", _JSON, nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("abort", _JSON, nullable=True),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.Column("deadline_at", _INSTANT, nullable=False),
        sa.Column("wake_at", _INSTANT, nullable=True),
        sa.Column("ended_at", _INSTANT, nullable=True),
        sa.CheckConstraint(
            "(state IN ('cancelled', 'compensated', 'completed')) = (ended_at IS NOT NULL)",
            name=op.f("ck_sagas_ended_iff_terminal"),
        ),
        sa.CheckConstraint(
            "state IN ('cancelled', 'compensated', 'compensating', 'completed', 'halted', 'running')",
            name=op.f("ck_sagas_state_known"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('compensating', 'compensated', 'cancelled') OR abort IS NOT NULL",
            name=op.f("ck_sagas_undone_for_a_reason"),
        ),
        sa.ForeignKeyConstraint(
            ["definition_id"], ["definitions.id"], name=op.f("fk_sagas_definition_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sagas")),
        sa.UniqueConstraint("workflow", "key", name=op.f("uq_sagas_workflow_key")),
        **online.table_options(),
    )
    if online.on_mysql():
        op.create_index("ix_sagas_live", "sagas", ["state", "id"])
        op.create_index("ix_sagas_wake", "sagas", ["wake_at"])
        return
    with op.batch_alter_table("sagas", schema=None) as batch_op:
        batch_op.create_index(
            "ix_sagas_live",
            ["id"],
            unique=False,
            postgresql_where=sa.text("state IN ('compensating', 'running')"),
            sqlite_where=sa.text("state IN ('compensating', 'running')"),
        )
        batch_op.create_index(
            "ix_sagas_wake",
            ["wake_at"],
            unique=False,
            postgresql_where=sa.text("wake_at IS NOT NULL"),
            sqlite_where=sa.text("wake_at IS NOT NULL"),
        )


def _incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("saga_id", _ID, nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("message", _TEXT, nullable=False),
        sa.Column("opened_at", _INSTANT, nullable=False),
        sa.Column("resolved_at", _INSTANT, nullable=True),
        sa.Column("resolution", sa.String(length=40), nullable=True),
        sa.Column("resolved_by", sa.String(length=200), nullable=True),
        sa.Column("reason", _TEXT, nullable=True),
        sa.CheckConstraint(
            "(resolved_at IS NULL) = (resolution IS NULL)",
            name=op.f("ck_incidents_resolved_with_word"),
        ),
        sa.ForeignKeyConstraint(["saga_id"], ["sagas.id"], name=op.f("fk_incidents_saga_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
        **online.table_options(),
    )
    if online.on_mysql():
        op.execute(
            "ALTER TABLE incidents ADD COLUMN is_open INTEGER GENERATED ALWAYS AS (IF(resolved_at IS NULL, 1, NULL)) STORED, "
            "ADD UNIQUE INDEX ix_incidents_open (saga_id, path, kind, is_open)"
        )
        return
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.create_index(
            "ix_incidents_open",
            ["saga_id", "path", "kind"],
            unique=True,
            postgresql_where=sa.text("resolved_at IS NULL"),
            sqlite_where=sa.text("resolved_at IS NULL"),
        )


def _journal() -> None:
    op.create_table(
        "journal",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("saga_id", _ID, nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("verb", sa.String(length=16), nullable=False),
        sa.Column("from_state", sa.String(length=16), nullable=False),
        sa.Column("to_state", sa.String(length=16), nullable=False),
        sa.Column("at", _INSTANT, nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("reason", _TEXT, nullable=False),
        sa.Column("row", sa.String(length=8), nullable=True),
        sa.Column("details", _JSON, nullable=True),
        sa.ForeignKeyConstraint(["saga_id"], ["sagas.id"], name=op.f("fk_journal_saga_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_journal")),
        **online.table_options(),
    )
    with op.batch_alter_table("journal", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_journal_saga_id_id"), ["saga_id", "id"], unique=False)


def _steps() -> None:
    op.create_table(
        "steps",
        sa.Column("saga_id", _ID, nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("queue", sa.String(length=200), nullable=False),
        sa.Column("direction", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("failure_count", sa.Integer(), nullable=False),
        sa.Column("dispatch_count", sa.Integer(), nullable=False),
        sa.Column("crash_count", sa.Integer(), nullable=False),
        sa.Column("inquiry", sa.String(length=16), nullable=True),
        sa.Column("inquiry_no", sa.Integer(), nullable=False),
        sa.Column("asked_count", sa.Integer(), nullable=False),
        sa.Column("node_id", _ID, nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("ready_at", _INSTANT, nullable=True),
        sa.Column("dispatched_at", _INSTANT, nullable=True),
        sa.Column("doubt_at", _INSTANT, nullable=True),
        sa.Column("granted_at", _INSTANT, nullable=True),
        sa.Column("asked_at", _INSTANT, nullable=True),
        sa.Column("deadline_at", _INSTANT, nullable=True),
        sa.Column("wake_at", _INSTANT, nullable=True),
        sa.Column("settled_at", _INSTANT, nullable=True),
        sa.Column("result", _JSON, nullable=True),
        sa.Column("error", _JSON, nullable=True),
        sa.CheckConstraint(
            "(state = 'leased') = (deadline_at IS NOT NULL AND node_id IS NOT NULL)",
            name=op.f("ck_steps_leased_iff_held"),
        ),
        sa.CheckConstraint(
            "(state = 'unknown') OR (inquiry IS NULL)", name=op.f("ck_steps_asked_only_if_unknown")
        ),
        sa.CheckConstraint(
            "(state IN ('abandoned', 'compensated', 'failed', 'skipped', 'succeeded')) = (settled_at IS NOT NULL)",
            name=op.f("ck_steps_settled_iff_settled"),
        ),
        sa.CheckConstraint(
            "(state IN ('dispatched', 'leased', 'retrying', 'unknown')) = (wake_at IS NOT NULL)",
            name=op.f("ck_steps_wake_iff_live"),
        ),
        sa.CheckConstraint(
            "direction IN ('backward', 'forward')", name=op.f("ck_steps_direction_known")
        ),
        sa.CheckConstraint(
            "state IN ('abandoned', 'compensated', 'dispatched', 'failed', 'halted', 'leased', 'retrying', 'skipped', 'succeeded', 'unknown', 'waiting')",
            name=op.f("ck_steps_state_known"),
        ),
        sa.ForeignKeyConstraint(["saga_id"], ["sagas.id"], name=op.f("fk_steps_saga_id")),
        sa.PrimaryKeyConstraint("saga_id", "path", name=op.f("pk_steps")),
        **online.table_options(),
    )
    with op.batch_alter_table("steps", schema=None) as batch_op:
        batch_op.create_index(
            "ix_steps_held_by_node",
            ["node_id"],
            unique=False,
            postgresql_where=sa.text("state = 'leased'"),
            sqlite_where=sa.text("state = 'leased'"),
        )
        batch_op.create_index(
            "ix_steps_wake",
            ["state", "wake_at"],
            unique=False,
            postgresql_where=sa.text("state IN ('dispatched', 'leased', 'retrying', 'unknown')"),
            sqlite_where=sa.text("state IN ('dispatched', 'leased', 'retrying', 'unknown')"),
        )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("saga_id", _ID, nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("no", sa.Integer(), nullable=False),
        sa.Column("direction", sa.String(length=16), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("node", sa.String(length=200), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("granted_at", _INSTANT, nullable=False),
        sa.Column("ended_at", _INSTANT, nullable=True),
        sa.Column("heartbeat_at", _INSTANT, nullable=True),
        sa.Column("details", _JSON, nullable=True),
        sa.Column("error", _JSON, nullable=True),
        sa.Column("late", _JSON, nullable=True),
        sa.CheckConstraint(
            "(state = 'open') = (ended_at IS NULL)", name=op.f("ck_attempts_ended_iff_closed")
        ),
        sa.CheckConstraint(
            "state IN ('expired', 'failed', 'open', 'succeeded', 'unknown')",
            name=op.f("ck_attempts_state_known"),
        ),
        sa.ForeignKeyConstraint(
            ["saga_id", "path"],
            ["steps.saga_id", "steps.path"],
            name=op.f("fk_attempts_saga_id_path"),
        ),
        sa.PrimaryKeyConstraint("saga_id", "path", "no", name=op.f("pk_attempts")),
        **online.table_options(),
    )
