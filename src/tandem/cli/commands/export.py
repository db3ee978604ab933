"""``tandem export``: a run as one file that decides without JAX, and a network of it as an ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.cli.options import JsonOption, RunArgument, check_writable, print_json, report_write_errors
from tandem.errors import InputError
from tandem.serving.export import export_run
from tandem.serving.onnx_export import write_onnx
from tandem.serving.policy_file import PolicyFile, write_policy_file

DEFAULT = "export.safetensors"


def export(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File to write. Default: RUN/{DEFAULT}.", show_default=False),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write a network as an ONNX model; needs the extra onnx.", show_default=False
        ),
    ] = None,
    policy: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Policy of the front whose network --onnx writes.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run into one file that is all a scheduler needs to decide.

    It holds weights, normalisation, fleet, front and metadata, and can be used with NumPy alone (docs/serving.md).
    """
    target = run / DEFAULT if out is None else out
    if policy is not None and onnx is None:
        raise InputError("--policy: chooses the network of --onnx; name the file of --onnx too.")
    if onnx is not None and onnx.resolve() == target.resolve():
        raise InputError(f"--out and --onnx both name {onnx}; name two files.")
    for path, name in ((out, "--out"), (onnx, "--onnx")):
        if path is not None:
            check_writable(path, name)
    exported = export_run(run)
    network = None if onnx is None else _network(exported, policy)
    with report_write_errors(target, "--out"):
        write_policy_file(target, exported)
    if onnx is not None and network is not None:
        with report_write_errors(onnx, "--onnx"):
            write_onnx(onnx, exported, network)
    if as_json:
        print_json(_document(run, target, onnx, exported))
        return
    kind = exported.network["kind"] + (", conditioned on the preference" if exported.network["conditioned"] else "")
    policies, networks = (len(exported.arrays[name]) for name in ("front.network", "normaliser.fleet.mean"))
    typer.echo(f"{policies} policies, {networks} networks ({kind}), {len(exported.device_names)} devices")
    typer.echo(f"Version {exported.version}")
    typer.echo(f"Written to {target}{'' if onnx is None else f' and {onnx}'}")


def _network(exported: PolicyFile, policy: int | None) -> int:
    """Return the network of a policy, or the only one."""
    owner = exported.arrays["front.network"]
    if policy is None:
        if len(set(owner.tolist())) > 1:
            raise InputError(
                f"--onnx: the run has {len(set(owner.tolist()))} networks; choose a policy of its front with --policy."
            )
        return int(owner[0])
    if not 0 <= policy < len(owner):
        raise InputError(f"--policy {policy}: the front has policies 0 to {len(owner) - 1}; choose one of them.")
    return int(owner[policy])


def _document(run: Path, target: Path, onnx: Path | None, exported: PolicyFile) -> dict[str, Any]:
    return {
        "run": str(run),
        "file": str(target),
        "onnx": None if onnx is None else str(onnx),
        "version": exported.version,
        "format": exported.metadata["format"],
        "network": exported.network,
        "policies": len(exported.arrays["front.network"]),
        "networks": len(exported.arrays["normaliser.fleet.mean"]),
        "devices": len(exported.device_names),
    }
