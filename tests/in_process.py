"""The command line, called in the process of a test."""

import sys

import pytest

from siafu import cli


def command(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """A command in this process: its exit code, its standard output and its standard error."""
    before, sys.argv = sys.argv, ["siafu", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before
    code = ended.value.code
    return (code if isinstance(code, int) else 0), *capsys.readouterr()
