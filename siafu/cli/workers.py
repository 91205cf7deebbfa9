"""The commands of pipeline workers: ``worker`` and ``lambda package``."""

from pathlib import Path
from typing import Annotated

import typer

from siafu.cli.output import Json, print_result


def worker(
    lease: Annotated[
        Path, typer.Argument(metavar="LEASE", help="A lease that a pipeline run wrote into its folder.")
    ],
    as_json: Json = False,
) -> None:
    """Do tensor tasks of a pipeline run, on this machine or another, until the run ends."""
    from dataclasses import asdict

    from siafu.workers.lease import Lease
    from siafu.workers.worker import CannotServe, serve

    try:
        report = serve(Lease.from_json(lease.read_bytes()))
    except CannotServe as error:
        raise ValueError(str(error)) from error
    print_result(
        asdict(report), as_json, f"{report.tasks:,} tasks in {report.seconds:.1f} s; {report.reason}"
    )


def package(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write into.")] = Path("lambda"),
    architecture: Annotated[str, typer.Option(help="x86_64 or arm64.")] = "x86_64",
    memory_mb: Annotated[int, typer.Option(help="Memory of the function.")] = 1769,
    python: Annotated[str, typer.Option(help="The function's Python, 3.12 or newer.")] = "3.13",
    as_json: Json = False,
) -> None:
    """Write the zip of the worker for AWS Lambda, and an AWS SAM template that deploys it."""
    from siafu.workers.lambda_package import LambdaConfig, write_package, write_sam

    function = LambdaConfig(architecture=architecture, memory_mb=memory_mb, python=python)  # type: ignore[arg-type]
    size = write_package(out / "worker.zip", function=function)
    write_sam(out / "template.json", package=out / "worker.zip", function=function)
    found = {"package": str(out / "worker.zip"), "template": str(out / "template.json"), "bytes": size}
    text = (
        f"wrote {found['package']} ({size:,} bytes) and {found['template']}\n"
        f"deploy it with: sam deploy --guided --template-file {found['template']}\n"
        "it asks for LeaseKey, the key that leases are signed with (make one: openssl rand -hex 32), and for "
        "LeaseAddresses, the hosts and networks that the function may dial"
    )
    print_result(found, as_json, text)
