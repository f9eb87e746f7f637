"""Federated data: clients' samples and a common test set."""

from everfed.data.augment import AUGMENTS
from everfed.data.dataset import Dataset
from everfed.data.datasets import DATASETS, load
from everfed.data.federated import FederatedData, from_arrays
from everfed.data.on_demand import ClientSource, OnDemand
from everfed.data.on_demand_hf import HuggingFace
from everfed.data.on_demand_parquet import Parquet, save_parquet
from everfed.data.on_demand_sources import Arrays, Generated, save_arrays
from everfed.data.partition import SPLITS

__all__ = [
    "AUGMENTS",
    "DATASETS",
    "SPLITS",
    "Arrays",
    "ClientSource",
    "Dataset",
    "FederatedData",
    "Generated",
    "HuggingFace",
    "OnDemand",
    "Parquet",
    "from_arrays",
    "load",
    "save_arrays",
    "save_parquet",
]
