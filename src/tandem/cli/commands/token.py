"""``tandem token``: create, list and revoke the tokens of a service."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from tandem.cli.commands.serve import DEFAULT_DATABASE, DatabaseOption, FleetOption, open_store
from tandem.cli.formatting import make_console
from tandem.cli.options import JsonOption, print_json
from tandem.errors import InputError, unknown_name

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke the tokens of 'tandem serve'.")


@app.command("create")
def create(
    role: Annotated[str, typer.Option(help="device (reports and outcomes) or operator (everything).")],
    label: Annotated[str, typer.Option(help="A note, such as the owner's name.")] = "",
    days: Annotated[
        float | None, typer.Option(min=0.001, help="Days until it expires; default: never.", show_default=False)
    ] = None,
    database: DatabaseOption = DEFAULT_DATABASE,
    fleet: FleetOption = "default",
) -> None:
    """Create a token and print it. It is not stored and cannot be shown again.

    A running server knows it after at most two seconds. From the first token on, every request needs one.
    """
    store = open_store(database, fleet)
    from tandem.serving.access import Role, create_token

    if role not in list(Role):
        raise InputError(f"--role: {unknown_name('role', role, list(Role))}")
    try:
        typer.echo(create_token(store, Role(role), label, days))
    finally:
        store.close()


@app.command("list")
def list_tokens(
    database: DatabaseOption = DEFAULT_DATABASE, fleet: FleetOption = "default", as_json: JsonOption = False
) -> None:
    """List the tokens, without their secrets."""
    store = open_store(database, fleet)
    try:
        tokens = store.list_tokens()
    finally:
        store.close()
    rows = [
        {
            "id": token.id,
            "role": token.role,
            "label": token.label,
            "created_at": token.created_at.isoformat(timespec="seconds"),
            "expires_at": None if token.expires_at is None else token.expires_at.isoformat(timespec="seconds"),
            "revoked_at": None if token.revoked_at is None else token.revoked_at.isoformat(timespec="seconds"),
        }
        for token in tokens
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("id", "role", "label", "created", "expires", "revoked")
    for row in rows:
        table.add_row(*(value or "-" for value in row.values()))
    make_console().print(table)


@app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, see 'tandem token list'.")],
    database: DatabaseOption = DEFAULT_DATABASE,
    fleet: FleetOption = "default",
) -> None:
    """Revoke a token. Running servers refuse it after at most two seconds."""
    store = open_store(database, fleet)
    try:
        if not store.revoke_token(token.partition(".")[0]):
            raise InputError(f"{token.partition('.')[0]}: there is no such token; see 'tandem token list'.")
    finally:
        store.close()
    typer.echo("Revoked.")
