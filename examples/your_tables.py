"""From your own tables to predictions with your own ids: edges and nodes in CSV files, names as ids.

python examples/your_tables.py
"""

import csv
import random
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

import siafu
from siafu.data.columns import NodeSchema, TableSchema
from siafu.data.importing import import_graph


def write_tables(folder: Path) -> None:
    """Two groups of people who mostly know people of their own group; each has a town, and most a height."""
    draw = random.Random(0)
    people = [(f"person-{i}", "red" if i % 2 else "blue") for i in range(400)]
    with (folder / "people.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "height", "town", "group", "split"])
        for name, group in people:
            height = "" if draw.random() < 0.1 else round(170 + draw.gauss(3 if group == "red" else -3, 6))
            town = draw.choice(["Thika", "Nyeri", "Embu"])
            rows.writerow([name, height, town, group, draw.choice(["train", "valid", "test", "test"])])
    with (folder / "knows.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["src", "dst"])
        for name, group in people:
            same = [other for other, its in people if its == group]
            rows.writerows([name, draw.choice(same)] for _ in range(3))
            rows.writerow([name, draw.choice(people)[0]])


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_tables(folder)
        store = import_graph(
            folder / "people.store",
            edges=folder / "knows.csv",
            nodes=folder / "people.csv",
            schema=TableSchema(nodes=NodeSchema(label="group", split="split")),
            undirected=True,
        )
        graph = store.graph()
        run = siafu.train(graph, model="sage", epochs=60, out=folder / "run", baseline=True)
        siafu.predict(run, graph, out=folder / "predicted.parquet")
        print(f"with the graph {run.test_accuracy:.2f}, without {run.metrics['baseline']['test_score']:.2f}")
        print(pq.read_table(folder / "predicted.parquet").slice(0, 3).to_pylist())


if __name__ == "__main__":
    main()
