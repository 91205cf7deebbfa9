"""Links of the next step with PyG Temporal's EvolveGCN-O, for ``whole.py``: the same windows, head and scores.

A sample reads the snapshots of a window of steps. A snapshot is the graph of the events of the last ``LIFE`` steps; its
inputs are degrees, one-hot. The head is ``relu(P h_u + Q h_v + b) . w``. The next step's links rank among all pairs.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WINDOW, LIFE, NEGATIVES, LR = 10, 10, 50, 0.005
SPLIT = (0.7, 0.1, 0.2)


def protocol() -> Any:
    """The same protocol for siafu."""
    from siafu.dynamic import Protocol

    return Protocol(step=1, window=WINDOW, edge_life=LIFE, negatives=NEGATIVES, split=SPLIT, task="link")


class Predictor(nn.Module):
    """Two layers of EvolveGCN-O and the head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        from torch_geometric_temporal.nn.recurrent import EvolveGCNO

        self.layers = nn.ModuleList([EvolveGCNO(width), EvolveGCNO(width)])
        self.source, self.target = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.weight = nn.Linear(width, 1)

    def forward(self, xs: list[Tensor], graphs: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The factors of all nodes as sources and as targets after the last step."""
        for layer in self.layers:
            layer.reinitialize_weight()
            xs = [layer(x, edges).relu() for x, edges in zip(xs, graphs, strict=True)]
        return self.source(xs[-1]), self.target(xs[-1])

    def score(self, a: Tensor, b: Tensor) -> Tensor:
        """The scores of pairs, given the factors of their ends."""
        return self.weight((a + b).relu())[..., 0]


class Steps:
    """The snapshots, inputs and links of each step."""

    def __init__(self, folder: Path, width: int) -> None:
        src, dst, self._step = (
            torch.from_numpy(np.load(folder / f"{name}.npy")).long() for name in ("src", "dst", "step")
        )
        self.num_nodes, self.number = int(torch.maximum(src, dst).max()) + 1, int(self._step.max()) + 1
        self._both = torch.cat([src * self.num_nodes + dst, dst * self.num_nodes + src])
        self._step, self._width = self._step.repeat(2), width
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def links(self, first: int, last: int) -> Tensor:
        """The distinct links of some steps, (2, E)."""
        code = self._both[(self._step >= first) & (self._step <= last)].unique()
        return torch.stack([code // self.num_nodes, code % self.num_nodes])

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """The inputs and the edges of a snapshot."""
        if step not in self._kept:
            edges = self.links(step - LIFE + 1, step)
            degree = torch.bincount(edges[1], minlength=self.num_nodes).clamp(max=self._width - 1)
            self._kept[step] = nn.functional.one_hot(degree, self._width).float(), edges
        return self._kept[step]

    def window(self, step: int) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs and the edges of a sample's snapshots."""
        both = [self.at(each) for each in range(step - WINDOW, step + 1)]
        return [x for x, _ in both], [edges for _, edges in both]


def train_with_pyg_temporal(case: dict[str, Any], folder: Path, out: Path) -> dict[str, Any]:
    """Train on one sample a step; score the validation samples as often as siafu does."""
    from temporal_side import stub_sparse

    stub_sparse()
    steps, width = Steps(folder, case["hidden"]), case["hidden"]
    model = Predictor(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    samples = steps.number - 1
    first_val, first_test = int(samples * SPLIT[0] + 1e-9), int(samples * (SPLIT[0] + SPLIT[1]) + 1e-9)
    splits = [range(WINDOW, first_val), range(first_val, first_test), range(first_test, samples)]
    seconds, best, best_score = 0.0, {}, -1.0
    for epoch in range(1, case["epochs"] + 1):
        began_s = time.perf_counter()
        for place in torch.randperm(len(splits[0])).tolist():
            optimizer.zero_grad()
            _loss(model, steps, splits[0][place]).backward()
            optimizer.step()
        seconds += time.perf_counter() - began_s
        if epoch % case["every"] and epoch < case["epochs"]:
            continue
        score = _mean_precision(model, steps, splits[1])
        if score > best_score:
            best, best_score = {name: value.clone() for name, value in model.state_dict().items()}, score
    model.load_state_dict(best, strict=False)
    test = _mean_precision(model, steps, splits[2])
    out.mkdir()
    torch.save(best, out / "model.pt")
    result = {"step_seconds": seconds, "test_score": test, "epochs": case["epochs"]}
    (out / "metrics.json").write_text(json.dumps(result))
    return result


def _loss(model: Predictor, steps: Steps, sample: int) -> Tensor:
    """Of the links of the next step and 50 random pairs for each."""
    a, b = model(*steps.window(sample))
    links = steps.links(sample + 1, sample + 1)
    if not links.shape[1]:
        return 0 * a.sum()
    src, dst = torch.cat([links, torch.randint(steps.num_nodes, (2, NEGATIVES * links.shape[1]))], 1)
    y = (torch.arange(src.numel()) < links.shape[1]).float()
    return nn.functional.binary_cross_entropy_with_logits(model.score(a[src], b[dst]), y)


@torch.no_grad()
def _mean_precision(model: Predictor, steps: Steps, samples: range) -> float:
    """The mean over samples of the average precision among all pairs."""
    found = []
    for sample in samples:
        links = steps.links(sample + 1, sample + 1)
        if not links.shape[1]:
            continue
        a, b = model(*steps.window(sample))
        score = torch.cat([model.score(rows[:, None], b[None]).reshape(-1) for rows in a.split(32)])
        hit = torch.zeros(score.numel(), dtype=torch.bool)
        hit[links[0] * steps.num_nodes + links[1]] = True
        hit = hit[score.argsort(descending=True)]
        place = hit.nonzero()[:, 0]
        found.append(float(((torch.arange(place.numel()) + 1) / (place + 1)).mean()))
    return sum(found) / max(1, len(found))
