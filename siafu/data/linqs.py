"""Read the LINQS citation archives: Cora, Citeseer and Pubmed-Diabetes as text.

They come without the public split, so each gets a seeded split of the same sizes: 20 nodes a class, 500, 1000.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.data.npz import to_compressed
from siafu.data.random_split import per_class_split
from siafu.data.text_files import both_directions, lines, one_file, wrong

SPLIT = "no public split in this archive: made one of 20 a class / 500 / 1000 with seed 0"
Arrays = dict[str, NDArray[Any]]


def read_content(folder: Path) -> Arrays:
    """Read ``NAME.content`` (id, words, class) and ``NAME.cites`` (cited id, citing id), tabs between."""
    content, cites = one_file(folder, ".content"), one_file(folder, ".cites")
    names, words, labels = [], [], []
    for number, line in lines(content):
        name, *values, label = line.split("\t")
        names.append(name)
        labels.append(label)
        try:
            words.append(np.array(values, dtype=np.float32))
        except ValueError:
            raise wrong(content, number, "an id, numbers and a class with tabs between") from None
        if len(values) != len(words[0]) or not values:
            raise wrong(content, number, f"an id, {len(words[0])} numbers and a class with tabs between")
    cited = []
    for number, line in lines(cites):
        ends = line.split("\t")
        if len(ends) != 2:
            raise wrong(cites, number, "two ids with a tab between")
        cited.append((ends[0], ends[1]))
    return _arrays(content, names, cited, x=words, labels=labels)


def read_pubmed(folder: Path) -> Arrays:
    """Read ``….NODE.paper.tab`` (id, label=1, word=0.1, …) and ``….DIRECTED.cites.tab`` (…, paper:id, …)."""
    papers, cites = one_file(folder, ".NODE.paper.tab"), one_file(folder, ".DIRECTED.cites.tab")
    rows = lines(papers)
    next(rows, None)
    _, header = next(rows, (2, ""))
    columns = [field.split(":")[1] for field in header.split("\t") if field.startswith("numeric:")]
    column_of = {word: column for column, word in enumerate(columns)}
    names, words, labels = [], [], []
    for number, line in rows:
        name, *fields = line.split("\t")
        values = dict(field.split("=", 1) for field in fields if "=" in field)
        label = values.pop("label", "")
        values.pop("summary", None)
        if not label or not column_of.keys() >= values.keys():
            raise wrong(papers, number, "an id, a label and words of the second line")
        x = np.zeros(len(columns), dtype=np.float32)
        try:
            x[[column_of[word] for word in values]] = [float(value) for value in values.values()]
        except ValueError:
            raise wrong(papers, number, "an id, a label and a number for each word") from None
        names.append(name)
        labels.append(label)
        words.append(x)
    cited = [_cited(cites, number, line) for number, line in lines(cites) if number > 2]
    return _arrays(papers, names, cited, x=words, labels=labels)


def _cited(cites: Path, number: int, line: str) -> tuple[str, str]:
    papers = [field.removeprefix("paper:") for field in line.split("\t") if field.startswith("paper:")]
    if len(papers) != 2:
        raise wrong(cites, number, "a citation of the form id, paper:id, |, paper:id")
    return papers[0], papers[1]


def _arrays(
    path: Path, names: list[str], cited: list[tuple[str, str]], *, x: list[Any], labels: list[str]
) -> Arrays:
    row_of = {name: row for row, name in enumerate(names)}
    if not names or len(row_of) != len(names):
        raise ValueError(
            f"{path.name}: {len(names)} papers of {len(row_of)} different ids; expected each id once"
        )
    known = [(row_of[one], row_of[other]) for one, other in cited if one in row_of and other in row_of]
    classes, y = np.unique(labels, return_inverse=True)
    left_out = len(cited) - len(known)
    return {
        "edge_index": both_directions(known),
        "undirected": np.array(1, dtype=np.uint8),
        "num_nodes": np.array(len(names)),
        **to_compressed(np.stack(x)),
        "y": y.astype(np.int64),
        **per_class_split(y, seed=0, per_class=20, num_val=500, num_test=1000),
        "node_names": np.array(names),
        "class_names": classes,
        "note": np.array(f"LINQS; {SPLIT}; {left_out} citations of unknown papers left out"),
    }
