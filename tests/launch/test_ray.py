"""Ranks on a real Ray of one node; skipped where Ray is not installed. It takes Ray most of a minute to start."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rank_work import TIMEOUT_S, Starter

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")

HERE = Path(__file__).parent
PLACES = {"PYTHONPATH": f"{HERE.parents[1]}:{HERE}", "RAY_USAGE_STATS_ENABLED": "0"}


def test_ranks_on_ray_exchange_and_raise_their_errors(start: Starter, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import json, sys, tempfile\n"
        "import ray\n"
        "from rank_work import WORK\n"
        "from siafu.launch.failures import RanksFailed\n"
        "from siafu.launch.ray import run_on_ray\n"
        "with tempfile.TemporaryDirectory(prefix='r', ignore_cleanup_errors=True) as folder:\n"
        "    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address='127.0.0.1', _temp_dir=folder)\n"
        "    found = [run_on_ray(WORK['exchange'], ranks=2, threads=1)]\n"
        "    try:\n"
        "        run_on_ray(WORK['refuse'], ranks=2, threads=1)\n"
        "    except RanksFailed as error:\n"
        "        found.append([str(error), error.reported[0].rank, error.reported[0].error])\n"
        "    try:\n"
        "        run_on_ray(WORK['exchange'], ranks=2, threads=2)\n"
        "    except ValueError as error:\n"
        "        found.append(str(error))\n"
        "    ray.shutdown()\n"
        "    print(json.dumps(found))\n"
    )
    # Ray keeps a token in the home; a loaded machine may need longer to start workers than it waits by itself.
    patient = {"HOME": str(tmp_path), "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(TIMEOUT_S)}
    process = start([sys.executable, str(driver)], **PLACES, **patient)
    try:
        out, err = process.communicate(timeout=3 * TIMEOUT_S)
    except subprocess.TimeoutExpired:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.kill()
        raise
    assert process.returncode == 0, err
    results, failed, no_room = json.loads(out.splitlines()[-1])
    assert results == [
        [0, [2.0, 1.0], [0, 10], [0, 1], "from rank 0", 1],
        [1, [2.0, 1.0], [1, 11], [0, 1], "from rank 0", 1],
    ]
    assert failed[0].endswith("graph.npz: labels: found none, expected one a node; give --labels")
    assert failed[1:] == [1, "ValueError"]
    assert no_room.startswith("the Ray cluster has 2 CPUs, but ranks times threads is 4")


def test_without_a_cluster_it_says_how_to_get_one(start: Starter, tmp_path: Path) -> None:
    lines = "from siafu.launch.ray import run_on_ray; run_on_ray(print, ranks=2, threads=1)"
    process = start([sys.executable, "-c", lines], RAY_TMPDIR=str(tmp_path), RAY_ADDRESS="", **PLACES)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "ValueError: there is no Ray cluster to run on: start one (ray start --head)" in err
