"""Federated data: what each client holds, and what everybody is tested on."""

from everfed.data.augment import AUGMENTS
from everfed.data.dataset import Dataset
from everfed.data.datasets import DATASETS, load
from everfed.data.federated import FederatedData, from_arrays
from everfed.data.partition import SPLITS

__all__ = ["AUGMENTS", "DATASETS", "SPLITS", "Dataset", "FederatedData", "from_arrays", "load"]
