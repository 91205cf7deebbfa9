"""Train a module of your own: any ``nn.Module`` of (block, x). siafu's layers are there to build it from.

python examples/own_model.py
"""

import torch
from torch import Tensor, nn

import siafu
from siafu.nn import Dense, Dropout, Gcn


class Twofold(nn.Module):
    """Two graph convolutions beside a dense layer, added up."""

    def __init__(self, in_features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = Gcn(in_features, hidden), Gcn(hidden, classes)
        self.direct = Dense(in_features, classes)
        self.drop = Dropout(0.5)

    def forward(self, block: siafu.Block, x: Tensor) -> Tensor:
        h = self.drop(
            torch.relu(self.first(block, x)), block.node_id
        )  # the ids make the mask independent of the order
        return self.second(block, h) + self.direct(block, x)


def main() -> None:
    graph = siafu.load("community:nodes=5000,classes=10,features=32")
    assert graph.x is not None
    run = siafu.train(graph, model=Twofold(graph.x.shape[1], 64, 10), epochs=50)
    print(f"test accuracy {run.test_accuracy:.3f}, written to {run.directory}")


if __name__ == "__main__":
    main()
