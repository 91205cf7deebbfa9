"""The command ``siafu``, also ``python -m siafu``: it handles signals before it loads the command line."""

from siafu.stop import exit_on_stop


def main() -> None:
    """Run the command."""
    with exit_on_stop():
        from siafu import cli

        cli.main()


if __name__ == "__main__":
    main()
