"""Sides of a comparison, each a process of its own that makes a step when it is told to; they take turns."""

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


class Side:
    """A running side; ``command`` says that it is ready, then answers each line it is given with one of JSON."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            command, text=True, env=environ, **pipes
        )  # what it has to complain of, it says itself
        self.name, self.seconds, self.told = name, list[float](), dict[str, Any]()
        self._read()

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._read()

    def step(self) -> None:
        self.told = self.ask("step")
        self.seconds.append(self.told["seconds"])

    def end(self) -> dict[str, Any]:
        """What it found; the first step, which makes what is kept, is not counted."""
        answer = self.ask("end")
        self.process.kill()
        self.process.communicate()
        median = statistics.median(self.seconds[1:])
        found = {"seconds": median, "best_seconds": min(self.seconds[1:])}
        return {"side": self.name, **self.told, **found, **answer}

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries may print there too
                return json.loads(line)
        raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}")
