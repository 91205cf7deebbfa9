"""``RaceFolder``: a race within the folder of its run: the plan, a folder for each candidate, and the result.

Each candidate has a run folder of its own. When the race is over, the files of the best become those of the run, which
goes on from there.
"""

import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siafu.checksums import add_fields_checksum, verify_fields_checksum
from siafu.config import parse_toml, write_toml
from siafu.event_log import EventLog
from siafu.files import make_folder, write_atomically
from siafu.recipes.plan import Candidate, RacePlan
from siafu.run_folder import RunFolder


@dataclass(frozen=True)
class RaceFolder:
    """The files of the race of a run."""

    run: RunFolder

    @property
    def path(self) -> Path:
        """The folder."""
        return self.run.path / "race"

    @property
    def _plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def _result(self) -> Path:
        return self.path / "result.json"

    def candidate(self, place: int) -> RunFolder:
        """Return the run folder of a candidate."""
        return RunFolder(self.path / str(place))

    def write_plan(self, plan: RacePlan) -> None:
        """Write the plan, and the config of every candidate."""
        for place, each in enumerate(plan.candidates):
            self.candidate(place).path.mkdir(parents=True)
            self.candidate(place).write_config(write_toml(each.config))
        fields = {
            "names": [each.name for each in plan.candidates],
            "works": [each.work for each in plan.candidates],
            "rounds": list(plan.rounds),
        }
        write_atomically(self._plan, add_fields_checksum(fields))

    def read_plan(self) -> RacePlan | None:
        """Read the plan; None where the run has no race."""
        if not self._plan.is_file():
            return None
        fields = self._read(self._plan)
        candidates = (
            Candidate(name, parse_toml(self.candidate(place).read_config()), work)
            for place, (name, work) in enumerate(zip(fields["names"], fields["works"], strict=True))
        )
        return RacePlan(tuple(candidates), tuple(fields["rounds"]))

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the result of the race."""
        write_atomically(self._result, add_fields_checksum(result))

    def read_result(self) -> dict[str, Any] | None:
        """Read the result; None while the race goes on, or where there was none."""
        if not self._result.is_file():
            return None
        result = self._read(self._result)
        if result["chosen"] not in range(len(result["names"])):
            raise ValueError(
                f"{self._result}: chosen is {result['chosen']}, which is no place of a candidate"
            )
        return result

    def install(self, chosen: int, *, goes_on: bool) -> None:
        """Make the config of the chosen candidate that of the run, and where it ``goes_on`` its checkpoint and events.

        The config comes last: a run that is killed before it installs again.
        """
        best, run = self.candidate(chosen), self.run
        if goes_on:
            make_folder(run.checkpoint.parent)
            write_atomically(run.checkpoint, best.checkpoint.read_bytes())
            write_atomically(run.events, best.events.read_bytes())
        else:
            run.events.unlink(missing_ok=True)
        with closing(EventLog(run.events)) as events:
            events.write("race", **(self.read_result() or {}))
        run.write_config(best.read_config())
        for folder in self.path.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder / "checkpoint", ignore_errors=True)

    def _read(self, path: Path) -> dict[str, Any]:
        fields = verify_fields_checksum(path.read_bytes())
        if fields is None:
            raise ValueError(f"{path}: changed or damaged since it was written; train anew in another folder")
        return fields


def pending_race(run: RunFolder) -> RacePlan | None:
    """Return the plan of a run's race that is not over; None where the config is chosen."""
    if parse_toml(run.read_config()).train.search == "off":
        return None
    return RaceFolder(run).read_plan()
