"""A class that 2 % of the nodes have: average precision, a threshold from the validation nodes, and class weights.

python examples/rare_class.py
"""

import tempfile
from pathlib import Path

import numpy as np

import siafu


def accounts(num_nodes: int = 3000, num_fraud: int = 60, seed: int = 0) -> siafu.Graph:
    """Accounts that pay each other; the fraudulent ones differ a little and pay each other more often."""
    draw = np.random.default_rng(seed)
    y = np.zeros(num_nodes, np.int64)
    y[draw.permutation(num_nodes)[:num_fraud]] = 1
    x = draw.normal(size=(num_nodes, 6)).astype(np.float32)
    x[:, 0] += 1.5 * y
    fraud = y.nonzero()[0]
    payments = draw.integers(num_nodes, size=(2, 3000))
    rings = fraud[draw.integers(num_fraud, size=(2, 300))]
    edges = np.concatenate([payments, rings], 1)
    split = draw.integers(3, size=num_nodes)
    return siafu.Graph.from_edges(
        np.concatenate([edges, edges[::-1]], 1),
        x=x,
        y=y,
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        num_nodes=num_nodes,
    )


def main() -> None:
    graph = accounts()
    with tempfile.TemporaryDirectory() as temporary:
        for name, settings in {
            "as it is": {},
            "class weights": {"class_weights": [1, 20]},
            "focal loss": {"loss": "focal"},
        }.items():
            run = siafu.train(graph, out=Path(temporary) / name, epochs=60, seed=0, search="off", **settings)
            found = run.metrics
            print(
                f"{name:14} average precision {found['test_average_precision']:.2f}, "
                f"F1 {found['test_f1']:.2f} at 0.5 and {found['test_f1_at_threshold']:.2f} "
                f"at {found['threshold']:.3f}, accuracy {found['test_accuracy']:.3f} at 0.5"
            )
        predicted = siafu.predict(run, graph)["class"]  # by the run's threshold
        print(f"{int(predicted.sum())} of {graph.num_nodes} accounts are predicted fraudulent")


if __name__ == "__main__":
    main()
