"""Train a model of PyTorch Geometric on minibatches of siafu's sampler; only the loader's line is siafu's.

python examples/pyg_loader.py            # needs torch_geometric: pip install 'siafu[pyg]'
"""

import torch
from torch import Tensor, nn

import siafu

try:
    from torch_geometric.nn import SAGEConv
except ImportError:
    raise SystemExit("this example trains a model of torch_geometric: pip install 'siafu[pyg]'") from None


class Sage(nn.Module):
    """Two layers of GraphSAGE, as PyG has them."""

    def __init__(self, in_features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(in_features, hidden), SAGEConv(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


@torch.no_grad()
def accuracy(model: nn.Module, loader: siafu.NeighborLoader) -> float:
    right = total = 0
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        right += int((out.argmax(1) == batch.y[: batch.batch_size]).sum())
        total += batch.batch_size
    return right / total


def main() -> None:
    torch.manual_seed(0)
    graph = siafu.load("community:nodes=5000,classes=10,features=32")  # or a PyG Data, or the path of a store
    train = siafu.NeighborLoader(graph, [10, 5], graph.train_mask, batch_size=256, shuffle=True)
    test = siafu.NeighborLoader(graph, [-1, -1], graph.test_mask, batch_size=512)  # all neighbours: exact
    model = Sage(32, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        for batch in train:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
