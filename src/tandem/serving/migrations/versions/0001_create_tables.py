"""Create the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply the change."""
    op.create_table(
        "fleets",
        sa.Column("id", Key, nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("newest_round", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=True),
        sa.Column("operating_point", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fleets")),
        sa.UniqueConstraint("name", name=op.f("uq_fleets_name")),
    )
    op.create_table(
        "activations",
        sa.Column("id", Key, nullable=False),
        sa.Column("fleet_id", Key, nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=True),
        sa.Column("activated_by", sa.String(length=100), nullable=False),
        sa.Column("activated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_activations_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_activations")),
    )
    op.create_index("ix_activations_fleet_id_id", "activations", ["fleet_id", "id"])
    op.create_table(
        "events",
        sa.Column("id", Key, nullable=False),
        sa.Column("fleet_id", Key, nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_events_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index("ix_events_fleet_id_id", "events", ["fleet_id", "id"])
    op.create_table(
        "operating_points",
        sa.Column("id", Key, nullable=False),
        sa.Column("fleet_id", Key, nullable=False),
        sa.Column("operating_point", sa.JSON(), nullable=False),
        sa.Column("changed_by", sa.String(length=100), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_operating_points_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operating_points")),
    )
    op.create_index("ix_operating_points_fleet_id_id", "operating_points", ["fleet_id", "id"])
    op.create_table(
        "outcomes",
        sa.Column("id", Key, nullable=False),
        sa.Column("fleet_id", Key, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("outcome", sa.LargeBinary(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_outcomes_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outcomes")),
        sa.UniqueConstraint("fleet_id", "round", name=op.f("uq_outcomes_fleet_id_round")),
    )
    op.create_index("ix_outcomes_fleet_id_id", "outcomes", ["fleet_id", "id"])
    op.create_table(
        "rounds",
        sa.Column("id", Key, nullable=False),
        sa.Column("fleet_id", Key, nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("report", sa.LargeBinary(), nullable=False),
        sa.Column("decision", sa.LargeBinary(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("training", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("operating_point", sa.JSON(), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_rounds_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("fleet_id", "round", name=op.f("uq_rounds_fleet_id_round")),
    )
    op.create_index("ix_rounds_fleet_id_id", "rounds", ["fleet_id", "id"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("fleet_id", Key, nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("label", sa.String(length=100), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_tokens_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_table(
        "versions",
        sa.Column("id", Key, nullable=False),
        sa.Column("fleet_id", Key, nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("note", sa.JSON(), nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.id"], name=op.f("fk_versions_fleet_id_fleets")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("fleet_id", "version", name=op.f("uq_versions_fleet_id_version")),
    )
