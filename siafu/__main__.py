"""The command ``siafu``, also ``python -m siafu``; signals are handled before the command line is loaded."""

from siafu.signals import exit_on_signal


def main() -> None:
    """Run the command."""
    with exit_on_signal():
        from siafu import cli

        cli.main()


if __name__ == "__main__":
    main()
