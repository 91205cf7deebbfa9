"""Layers and models: maths over one block. They know no rank, no file, no clock."""

from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.dropout import Dropout
from siafu.nn.embedded import Embedded
from siafu.nn.gat import Gat
from siafu.nn.gatv2 import GatV2
from siafu.nn.gcn import Gcn
from siafu.nn.gin import Gin
from siafu.nn.gnn import Gnn
from siafu.nn.kinds import build_model
from siafu.nn.layer import Layer
from siafu.nn.model import Model
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
    "Model",
    "ModelConfig",
    "Sage",
    "build_model",
]
