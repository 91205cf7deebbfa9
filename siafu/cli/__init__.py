"""The command line: parses, calls, prints. Results go to standard output, progress and messages to standard error.

A file holds a group of commands; this one registers them. Commands import what they call when they are run, so that
``siafu --help`` is fast.
"""

import sys
from typing import Annotated

import typer

import siafu
from siafu.cli.data import data, import_, info, partition
from siafu.cli.doctor import doctor
from siafu.cli.errors import WrongUse, explain
from siafu.cli.output import say
from siafu.cli.results import predict, report
from siafu.cli.train import federate, resume, train
from siafu.cli.tune import tune
from siafu.cli.workers import package, worker
from siafu.signals import exit_on_signal
from siafu.sites.cli import site

app = typer.Typer(
    name="siafu",
    help="Train graph neural networks on ordinary CPU machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
functions = typer.Typer(no_args_is_help=True, help="Workers as AWS Lambda functions.")
app.add_typer(functions, name="lambda")
app.add_typer(site, name="site")
app.command()(train)
app.command()(resume)
app.command()(tune)
app.command()(predict)
app.command()(report)
app.command()(worker)
app.command()(federate)
app.command()(data)
app.command("import")(import_)
app.command()(info)
app.command()(partition)
app.command()(doctor)
functions.command("package")(package)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    if version:
        print(siafu.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; a mistake of the user becomes one message and exit code 1 or 2, never a traceback."""
    traceback = "--traceback" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--traceback"]
    with exit_on_signal():
        try:
            app()
        except Exception as error:
            if traceback:
                raise
            say(f"error: {explain(error)}")
            sys.exit(2 if isinstance(error, WrongUse) else 1)
