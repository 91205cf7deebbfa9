"""Layers and models: maths over one block. They know no rank, no file, no clock."""

from siafu.nn.dense import Dense
from siafu.nn.dropout import Dropout
from siafu.nn.embedded import Embedded
from siafu.nn.gat import Gat
from siafu.nn.gatv2 import GatV2
from siafu.nn.gcn import Gcn
from siafu.nn.gin import Gin
from siafu.nn.layer import Layer
from siafu.nn.model import Gnn, ModelConfig
from siafu.nn.sage import Sage

__all__ = [
    "Dense",
    "Dropout",
    "Embedded",
    "Gat",
    "GatV2",
    "Gcn",
    "Gin",
    "Gnn",
    "Layer",
    "ModelConfig",
    "Sage",
]
