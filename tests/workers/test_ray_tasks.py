"""Workers as tasks of a real Ray cluster of one node; skipped if Ray is not installed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")

HERE = Path(__file__).parent
TIMEOUT_S = 180.0

DRIVER = """
import json, tempfile
import ray
with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder)
    from stub_server import Server, assert_right
    from siafu.workers import ray_tasks
    from siafu.workers.supervisor import LeaseSupervisor, LeaseError
    from siafu.workers.lease import Lease

    def serve(lease):  # with the known tasks' compute
        from stub_tasks import computing
        from siafu.workers import worker
        worker._load_backend = lambda backend, setup: computing()(setup)
        return ray_tasks._serve(lease)

    platform = ray_tasks.RayPlatform()
    platform._serve = ray.remote(num_cpus=1, max_retries=0)(serve)
    with Server() as server, LeaseSupervisor(platform) as supervisor:
        supervisor.set_target(lambda: server.listener.issue_lease(seconds=60), 2)
        tasks = server.put(20)
        assert_right(server.wait(20), tasks)
        server.listener.close()
    try:
        platform.run_worker(Lease("run", "worker-1", "127.0.0.1", 9, "00", 0.0))
    except LeaseError as error:
        print(json.dumps(str(error)))
    ray.shutdown()
"""


def test_workers_on_ray_do_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    places = {"PYTHONPATH": f"{HERE}:{os.environ['PYTHONPATH']}", "HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "driver.py")],
        env={**os.environ, **places, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            each.kill()
        process.communicate()
        raise
    assert process.returncode == 0, err
    assert "the graph server at 127.0.0.1:9: [Errno 111] Connection refused" in json.loads(
        out.splitlines()[-1]
    )
