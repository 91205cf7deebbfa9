"""SIGKILL of sites in each stage, of the coordinator, of one site for good: what becomes of the model.

    python benchmarks/site_faults.py                      PubMed, RETEXO's split, each fault once
    python benchmarks/site_faults.py --data cora --split own --seeds 0,1,2
    python benchmarks/site_faults.py --only gone          faults whose name has this in it

The hosts are those of ``sites.py``; training is lazy as published, with 100 rounds a stage, where nothing else is set.
An undisturbed run says in which epochs stages end; then each fault has a run of its own. Who is killed is started
again at once, and waited for; who is gone for good is given up after three seconds. Sites tell of epochs once a
second, so a kill comes late; in which stage it came is what the run itself says of where it went on. Accuracy is that
of the model on all test nodes of the whole graph, whoever was there. Needs root.
"""

import argparse
import json
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import require_core
from namespaces import hosts_on_a_switch, refusal
from retexo import load_split
from sites import COORDINATOR, NAMES, Play, kill_at, prepare

from siafu import predict
from siafu.graph import Graph
from siafu.inference import open_run
from siafu.load_graph import load_static

WAITED_S, GIVEN_UP_S = 600, 3
PUBLISHED = ("model.hidden=256", "train.lr=0.003", "train.epochs=100", "train.patience=0")


@dataclass(frozen=True)
class Fault:
    """Who is killed in which stage, from 1 on, and whether it is started again."""

    name: str
    who: str = ""
    stage: int = 0
    again: bool = True


def faults(stages: int) -> list[Fault]:
    """All of them."""
    found = []
    for stage in range(1, stages + 1):
        for who in (*NAMES[:2], COORDINATOR):  # the first site has the run's files
            found += [Fault(f"{who} killed in stage {stage}", who, stage)]
        for who in (NAMES[0], NAMES[2]):
            found += [Fault(f"{who} gone in stage {stage}", who, stage, again=False)]
    return found


def events_of(folder: Path) -> list[dict[str, Any]]:
    """What a run told, in its order."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def stage_ends(folder: Path) -> list[int]:
    """The last epoch of each stage of a run."""
    return [int(event["epoch"]) for event in events_of(folder) if event["phase"] == "stage"]


def went_on(folder: Path) -> str:
    """After which epoch, and in which stage from 1, a run first went on; nothing where it was not disturbed."""
    stages = 0
    for event in events_of(folder):
        stages += event["phase"] == "stage"
        if event["phase"] == "resume":
            return f"went on after epoch {event['epoch']} in stage {stages + 1}"
    return ""


def suffer(play: Play, fault: Fault, out: str, *, epoch: int) -> dict[str, Any]:
    """A run with a fault; returns its metrics."""
    _set_patience(play, WAITED_S if fault.again else GIVEN_UP_S)
    play.federate(out)
    if fault.who:
        kill_at(play, fault.who, epoch, out=out, again=fault.again)
    text, errors = play.running[COORDINATOR].communicate(timeout=WAITED_S)
    if play.running[COORDINATOR].returncode:
        raise RuntimeError(errors)
    if not fault.again:
        play.serve(fault.who)
        play.wait_for(fault.who)
    return json.loads(text.splitlines()[-1])


def _set_patience(play: Play, seconds: float) -> None:
    path = play.folder / COORDINATOR / "federation.toml"
    waited = re.sub(r"^patience = .*", f"patience = {seconds}", path.read_text(), count=1, flags=re.MULTILINE)
    path.write_text(waited)


def accuracy(folder: Path, graph: Graph) -> float:
    """Of a run's model on all test nodes, in percent."""
    said = predict(open_run(folder), graph)["output"].argmax(1)
    assert graph.y is not None
    assert graph.test_mask is not None
    return 100 * float((said == graph.y)[graph.test_mask].float().mean())


def tell(name: str, found: dict[str, Any], folder: Path, graph: Graph, base: Path) -> None:
    """Print a line of the table."""
    percent = accuracy(folder, graph)
    difference = percent - accuracy(base, graph)  # from the undisturbed run
    same = (folder / "model.safetensors").read_bytes() == (base / "model.safetensors").read_bytes()
    told = f"away {','.join(found['away']) or '-':4} accuracy {percent:6.2f} ({difference:+.2f})"
    print(f"{name:32} {told}  bits {'same' if same else 'other'}  {went_on(folder)}", flush=True)


def main() -> None:
    args = _parse()
    if why := refusal():
        sys.exit(f"no hosts can be made here: {why}")
    for seed in map(int, args.seeds.split(",")):
        graph = load_split(args.data, seed) if args.split == "retexo" else load_static(args.data)
        print(f"{args.data}, seed {seed}", flush=True)
        given = argparse.Namespace(**vars(args), never=False, patience=WAITED_S)
        given.set = [f"seed={seed}", *_settings(args.set)]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "sites"
            prepare(folder, graph, given)
            with hosts_on_a_switch(len(NAMES) + 1, rate=args.rate) as hosts:
                play = Play(folder, dict(zip((*NAMES, COORDINATOR), hosts, strict=True)))
                for name in NAMES:
                    play.serve(name)
                for name in NAMES:
                    play.wait_for(name)
                _all(play, graph, args.only)


def _settings(given: list[str]) -> list[str]:
    """What is set, and how training was published where it is not."""
    named = {each.partition("=")[0] for each in given}
    return [*(each for each in PUBLISHED if each.partition("=")[0] not in named), *given]


def _all(play: Play, graph: Graph, only: str) -> None:
    base = play.folder / "undisturbed"
    tell("undisturbed", suffer(play, Fault("undisturbed"), base.name, epoch=0), base, graph, base)
    ends = [0, *stage_ends(base)]
    for place, fault in enumerate(faults(len(ends) - 1)):
        if only not in fault.name:
            continue
        begins, until = ends[fault.stage - 1], ends[fault.stage]
        epoch, out = begins + max(1, (until - begins) // 3), f"run-{place}"
        tell(fault.name, suffer(play, fault, out, epoch=epoch), play.folder / out, graph, base)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="pubmed")
    parser.add_argument(
        "--split", default="retexo", choices=["retexo", "own"], help="drawn by seed, or its own"
    )
    parser.add_argument("--by", default="hash", help="whose node is whose")
    parser.add_argument("--rate", default="100mbit", help="of each interface, as tc takes it")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--set", action="append", default=[], help="a setting of the run, a TOML value")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
