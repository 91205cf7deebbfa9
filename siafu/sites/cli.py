"""The commands ``siafu site …``: parse arguments, call, print. ``siafu federate`` stands with the other commands."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from siafu.signals import deferred_stop, exit_code
from siafu.terminal import escape_control_chars

site = typer.Typer(no_args_is_help=True, help="Organisations that train together and keep their data.")

_TICK_S = 0.5

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
]
Config = Annotated[Path, typer.Option("--config", help="The site's settings.")]


@site.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to make.")],
    name: Annotated[str, typer.Option(help="The site's name: small letters, digits and hyphens.")] = "",
    trial: Annotated[
        str,
        typer.Option(help="Names of sites, such as a,b,c: make an authority, a coordinator and all of them."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Make the keys of a site and a certificate request; or, with --trial, a whole federation to try."""
    from siafu.sites.provisioning import init_site, init_trial

    names = [each.strip() for each in trial.split(",") if each.strip()]
    _check_names([*names, *([name] if name else [])], one=not trial)
    made = init_trial(folder, names) if names else init_site(folder, name)
    _print_made(made, as_json)


@site.command()
def sign(
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="request.pem, as a site's init made it.")
    ],
    authority: Annotated[Path, typer.Option(help="The folder of the authority.")],
    out: Annotated[Path, typer.Option(help="The certificate to write.")] = Path("signed.pem"),
    as_json: Json = False,
) -> None:
    """Have the authority of a trial sign a certificate request."""
    from siafu.sites.provisioning import sign as sign_it

    _print_made(sign_it(request, authority, out), as_json)


@site.command()
def rotate(
    config: Config = Path("site.toml"),
    authority: Annotated[
        Path | None, typer.Option(help="Folder of the authority that signs; by default the key signs itself.")
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Replace the old key and certificate by the new ones.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a new key and certificate beside the old ones; a running site reloads changed files by itself."""
    from siafu.sites.provisioning import rotate as rotate_keys

    _print_made(rotate_keys(_site_config(config), authority=authority, finish=finish), as_json)


@site.command()
def split(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A data set's name, a store, or an .npz file.")],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder of sites, as init --trial makes it.")
    ],
    sites: Annotated[str, typer.Option(help="Names of the sites; by default those of the folder.")] = "",
    by: Annotated[
        str, typer.Option(help="hash, stream, or a file with the number of each node's site.")
    ] = "hash",
    fold: Annotated[int, typer.Option(help="Which split of several.")] = 0,
    as_json: Json = False,
) -> None:
    """Split a graph among the sites of a trial: each gets a store and a table of cross edges."""
    from siafu.load_graph import load_static
    from siafu.partition.assign import assign
    from siafu.sites.provisioning import split as deal

    found = sorted(path.parent.name for path in folder.glob("*/site.toml"))
    names = [each.strip() for each in sites.split(",") if each.strip()] or found
    if len(names) < 2:
        raise ValueError(
            f"{folder}: holds {len(names)} sites; make them with: siafu site init {folder} --trial a,b,c"
        )
    graph = load_static(data, fold=fold)
    counts = deal(graph, assign(graph, parts=len(names), by=by, say=_say), folder, names)
    lines = [
        f"{name:12} {', '.join(f'{k} {v:,}' for k, v in about.items())}" for name, about in counts.items()
    ]
    print(
        json.dumps({"folder": str(folder), "sites": counts})
        if as_json
        else escape_control_chars("\n".join(lines))
    )


@site.command()
def serve(
    data: Annotated[Path, typer.Option(help="The site's store.")],
    config: Config = Path("site.toml"),
    listen: Annotated[str, typer.Option(help="Address and port, instead of that in the settings.")] = "",
    fold: Annotated[int, typer.Option(help="Which split of several.")] = 0,
    as_json: Json = False,
) -> None:
    """Answer the coordinator and the other sites, until stopped."""
    from siafu.sites.service import open_site_service
    from siafu.sites.site_data import load_site_data
    from siafu.sites.status import site_lock

    settings = _site_config(config)
    if listen:
        settings = settings.model_copy(update={"listen": listen})
    with site_lock(settings) as note, deferred_stop() as stop:
        served, server = open_site_service(settings, load_site_data(settings, data, fold=fold), say=_log)
        stop.begin()
        note(server.address)
        _log(f"site {settings.name} serves on {server.address}")
        while stop.reason is None:
            time.sleep(_TICK_S)
            served.warn()
        server.stop()
        served.close()
    found = {"site": settings.name, "address": server.address, "ledger_bytes": served.ledger.totals.all}
    print(json.dumps(found) if as_json else f"site {settings.name} ended")
    raise typer.Exit(exit_code(stop.reason))


@site.command()
def status(config: Config = Path("site.toml"), as_json: Json = False) -> None:
    """Show whether a site serves, its certificates, its policy, and the bytes that have left it."""
    from siafu.sites.status import site_status

    found = site_status(_site_config(config))
    print(json.dumps(found) if as_json else escape_control_chars("\n".join(_lines(found))))


def address_of(text: str) -> tuple[str, str]:
    """Split the value of ``--address`` into site and address."""
    name, equals, place = text.partition("=")
    if not equals:
        raise ValueError(f"--address {text}: expected site=host:port")
    return name, place


def _site_config(path: Path) -> Any:
    from siafu.launch.sites.config import SiteConfig, read_config

    return read_config(path, SiteConfig)


def _check_names(names: list[str], *, one: bool) -> None:
    import re

    from siafu.launch.sites.config import COORDINATOR, NAME_PATTERN

    for name in names:
        if not re.match(NAME_PATTERN, name) or name in (COORDINATOR, "authority"):
            raise ValueError(f"{name!r} is no name of a site; expected small letters, digits and hyphens")
    if (one and len(names) != 1) or (not one and len(names) < 2) or len(set(names)) != len(names):
        raise ValueError("give --name for one site, or --trial with at least two names, each once")


def _print_made(made: Any, as_json: bool) -> None:
    files = [str(path) for path in made.files]
    print(
        json.dumps({"files": files, "next": made.next})
        if as_json
        else escape_control_chars("\n".join([*files, made.next]))
    )


def _lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for key, value in found.items():
        if value is None or value in ([], {}):
            value = {"serves": "no", "max_bytes": "any number"}.get(key, "none")
        if isinstance(value, dict):
            value = ", ".join(
                f"{name} {each:,}" if isinstance(each, int) else f"{name} {each}"
                for name, each in value.items()
            )
        elif isinstance(value, list):
            value = "; ".join(value)
        lines.append(
            f"{key:14} {f'{value:,}' if isinstance(value, int) and not isinstance(value, bool) else value}"
        )
    return lines


def _say(text: str) -> None:
    print(escape_control_chars(text), file=sys.stderr)


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {escape_control_chars(text)}", file=sys.stderr, flush=True)
