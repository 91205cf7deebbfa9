"""The job of a rank as JSON, and its scratch folder: the run's folder, or one that only its user can enter."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from siafu.config import Config, build, write_toml
from siafu.rank import RankJob, scratch_folder
from siafu.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.path.mkdir()
    made.write_config(write_toml(Config()))
    return made


def rank_job(folder: RunFolder, run: str | None = None) -> RankJob:
    return RankJob(Config(), run or folder.config_checksum(), edges=0, folder=folder.path)


def test_a_job_survives_its_way_to_other_ranks_as_json(folder: RunFolder) -> None:
    config = build({"method": "sampled", "sampled": {"fanout": [5, 5]}, "train": {"lr": 0.1, "patience": 0}})
    job = replace(rank_job(folder), config=config, parts=folder.path / "parts", resumed=True)
    assert RankJob.from_json(job.to_json()) == job


def test_ranks_that_see_the_folder_of_the_run_use_it(folder: RunFolder) -> None:
    for own in (folder, None):
        with scratch_folder(rank_job(folder), own) as scratch:
            assert scratch == folder.path


@pytest.mark.parametrize("case", ["absent", "another run", "no run", "another user"])
def test_other_ranks_use_a_new_folder_that_only_their_user_can_enter(
    folder: RunFolder, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job = rank_job(folder, "other" if case == "another run" else None)
    match case:
        case "absent":
            folder.path.rename(tmp_path / "elsewhere")
        case "no run":
            folder.config.unlink()
        case "another user":
            monkeypatch.setattr(os, "geteuid", lambda: folder.path.stat().st_uid + 1)
    with scratch_folder(job, None) as one, scratch_folder(job, None) as other:
        assert folder.path not in (one, other)
        assert one != other
        assert one.stat().st_mode & 0o777 == 0o700
    assert not one.exists()
