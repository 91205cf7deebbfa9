"""Zachary's karate club: 34 members, 78 friendships, and who went with whom when the club split.

W. W. Zachary, "An Information Flow Model for Conflict and Fission in Small Groups", Journal of
Anthropological Research 33 (1977). The four classes are the communities of highest modularity that GNN
tutorials train on, with one labelled member each; the two classes are the factions of the instructor (0)
and of the officers (1), known of their leaders alone.
"""

import numpy as np

from siafu.graph import Graph

# fmt: off
_FRIENDS = {  # each pair once, under the lower number
    0: [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31],
    1: [2, 3, 7, 13, 17, 19, 21, 30], 2: [3, 7, 8, 9, 13, 27, 28, 32], 3: [7, 12, 13], 4: [6, 10],
    5: [6, 10, 16], 6: [16], 8: [30, 32, 33], 9: [33], 13: [33], 14: [32, 33], 15: [32, 33], 18: [32, 33],
    19: [33], 20: [32, 33], 22: [32, 33], 23: [25, 27, 29, 32, 33], 24: [25, 27, 31], 25: [31], 26: [29, 33],
    27: [33], 28: [31, 33], 29: [32, 33], 30: [32, 33], 31: [32, 33], 32: [33],
}
# fmt: on
_COMMUNITY = "1111333101311100310101002200200200"
_FACTION = "0000000001000011001010111111111111"
_LABELLED = {4: [0, 4, 8, 24], 2: [0, 33]}


def karate(*, classes: int = 4) -> Graph:
    """Return the club with identity features; one member of each class trains, all others test."""
    if classes not in _LABELLED:
        raise ValueError(f"karate: classes is {classes}; expected 4 (communities) or 2 (factions)")
    edge_index = np.array([(low, high) for low, highs in _FRIENDS.items() for high in highs]).T
    train_mask = np.isin(np.arange(34), _LABELLED[classes])
    return Graph.from_edges(
        edge_index,
        x=np.eye(34, dtype=np.float32),
        y=np.array([int(digit) for digit in (_COMMUNITY if classes == 4 else _FACTION)]),
        train_mask=train_mask,
        test_mask=~train_mask,
        undirected=True,
        name="karate",
    )
