"""Federated data: what each client holds, and what everybody is tested on."""

from everfed.data.datasets import DATASETS, Dataset, load
from everfed.data.federated import FederatedData, from_arrays
from everfed.data.partition import SPLITS

__all__ = ["DATASETS", "SPLITS", "Dataset", "FederatedData", "from_arrays", "load"]
