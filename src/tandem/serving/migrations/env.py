"""Run migrations on the connection that ``tandem.serving.schema.upgrade_schema`` passes."""

from alembic import context

from tandem.serving.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
