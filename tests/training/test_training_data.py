"""Data of many kinds, as the inputs of a loss take it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.runtime.arrays import write_safetensors
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.training.data import Batches, Dataset, Position
from opstep.training.files import VALIDATED
from opstep.training.fitting import fitted, oddities, origin_of
from opstep.training.loop import Settings
from opstep.training.preparing import input_types
from opstep.training.train import prepare

NET = """
param w: f32[3, 16] = normal(std=0.1)

graph loss(images: f32[N, 1, 4, 4], labels: i32[N]) -> f32[] {
  x = reshape(images, shape=[N, 16])
  y = linear(x, w)
  l = softmax_cross_entropy(y, labels)
  return l
}
"""
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (12, 4, 4)).astype(np.uint8)
LABELS = np.arange(12) % 3


def dataset(data, parts=("train",), rounded=False, net=NET) -> Dataset:
    return fitted(origin_of(data), input_types(opstep.loads(net), ["loss"]), parts, rounded)


def checked(data, **options) -> None:
    """All rows are there, as the inputs take them."""
    found = dataset(data, **options)
    rows = found.rows(np.arange(12))
    assert rows["images"].dtype == np.float32 and rows["labels"].dtype == np.int32
    assert np.array_equal(rows["images"], IMAGES[:, None].astype(np.float32))
    assert np.array_equal(rows["labels"], LABELS)
    some = found.rows(np.array([5, 2]))
    assert np.array_equal(some["images"][:, 0], IMAGES[[5, 2]])


def images_and_labels(tmp_path, **columns) -> str:
    path = tmp_path / "d.npz"
    np.savez(path, **columns)
    return str(path)


def test_arrays_and_npz(tmp_path):
    checked({"images": IMAGES, "labels": LABELS})
    checked(images_and_labels(tmp_path, images=IMAGES, labels=LABELS))
    checked(images_and_labels(tmp_path, images=IMAGES[..., None, :], labels=LABELS[:, None]))


def test_parts_of_a_file(tmp_path):
    four = {"train_images": IMAGES, "train_labels": LABELS}
    four |= {"images_test": IMAGES[:4], "labels_test": LABELS[:4]}
    path = images_and_labels(tmp_path, **four)
    checked(path)
    checked(f"{path}:train")
    assert len(dataset(f"{path}:test")) == len(dataset(path, VALIDATED)) == 4
    with pytest.raises(InputError, match="has no part dev: no column is called dev_…"):
        dataset(f"{path}:dev")


def test_columns_by_name(tmp_path):
    path = images_and_labels(tmp_path, x=IMAGES, y=LABELS)
    checked([f"images={path}:x", f"labels={path}:y"])
    np.save(tmp_path / "labels.npy", LABELS)
    checked([f"images={path}:x", f"labels={tmp_path / 'labels.npy'}"])
    checked({"images": f"{path}:x", "labels": LABELS})
    checked([f"images={path}:x", str(tmp_path / "labels.npy")])  # called as the input is


def test_npy_is_mapped(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES.astype(np.float32)[:, None])
    found = dataset({"images": tmp_path / "images.npy", "labels": LABELS})
    assert isinstance(found.columns["images"], np.memmap)
    checked({"images": tmp_path / "images.npy", "labels": LABELS})


def test_safetensors(tmp_path):
    write_safetensors(tmp_path / "d.safetensors", {"train.images": IMAGES, "train.labels": LABELS})
    checked(tmp_path / "d.safetensors")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_parquet_and_arrow(tmp_path, suffix):
    import pyarrow as pa
    from pyarrow import feather, parquet

    flat = pa.FixedSizeListArray.from_arrays(pa.array(IMAGES.reshape(-1)), 16)
    table = pa.table({"images": flat, "labels": pa.array(LABELS), "names": pa.array(["a"] * 12)})
    path = tmp_path / f"d.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, str(path))
    checked(path)
    with pytest.raises(InputError, match=r"names: values are .*string, not numbers"):
        dataset({"images": path, "labels": f"{path}:names"})


def test_a_row_from_several_columns(tmp_path):
    x = RNG.normal(size=(12, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", a=x[:, 0], b=x[:, 1], c=x[:, 2])
    net = "graph loss(x: f32[N, 2]) -> f32[] {\n  l = mean(x)\n  return l\n}\n"
    found = dataset([f"x={tmp_path / 'd.npz'}:c,a"], net=net)
    assert np.array_equal(found.rows(np.arange(12))["x"], x[:, [2, 0]])
    with pytest.raises(InputError, match="has no column d"):
        dataset([f"x={tmp_path / 'd.npz'}:c,d"], net=net)


def test_parquet_with_holes(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "d.parquet"
    rows = [[0] * 16, [0] * 15]
    parquet.write_table(pa.table({"images": pa.array(rows), "labels": pa.array([0, None])}), path)
    with pytest.raises(InputError, match="images: lists have different lengths: 16, and 15"):
        dataset(path)
    with pytest.raises(InputError, match="labels: row 1 has no value"):
        dataset({"images": IMAGES[:2], "labels": path})


def folder(path: Path) -> Path:
    from PIL import Image

    for k, name in enumerate(["cat", "dog", "eel"]):
        (path / name).mkdir(parents=True)
        for row in np.flatnonzero(k == LABELS):
            Image.fromarray(IMAGES[row]).save(path / name / f"{row:02}.png")
    return path


def test_a_folder_of_images(tmp_path):
    found = dataset(folder(tmp_path / "train")).rows(np.arange(12))
    order = np.argsort(LABELS, kind="stable")
    assert np.array_equal(found["labels"], LABELS[order])
    assert np.array_equal(found["images"][:, 0], IMAGES[order])
    assert len(dataset(tmp_path)) == 12  # the folder of the part
    (tmp_path / "train/cat/99.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(InputError, match=r"99.png: not an image, or damaged"):
        dataset(tmp_path / "train")


def test_folders_that_do_not_fit(tmp_path):
    from PIL import Image

    with pytest.raises(InputError, match="there are no images in this folder"):
        dataset(tmp_path)
    (folder(tmp_path / "e") / "fox").mkdir()
    with pytest.raises(InputError, match="e/fox: there are no images in this folder"):
        dataset(tmp_path / "e")
    Image.new("RGB", (5, 4)).save(folder(tmp_path / "d") / "eel" / "99.png")
    with pytest.raises(InputError, match=r"99.png is 5x4 pixels, and .*00.png is 4x4"):
        dataset(tmp_path / "d")


@pytest.mark.parametrize(
    "columns, told",
    [
        ({"images": IMAGES[:, :3]}, r"images is u8\[12, 3, 4\], and input images takes f32\[N, 1"),
        ({"labels": LABELS[:5]}, "columns have different numbers of rows: images 12, labels 5"),
        ({"labels": LABELS + (1 << 40)}, "row 0 has 1099511627776, which no i32 is"),
        ({"labels": LABELS + 0.5}, "labels is f64, and input labels is i32: row 0 has 0.5"),
        (
            {"images": IMAGES / 3},
            "images is f64, .* row 0 has .*, which f32 holds only as ",
        ),
        ({"labels": np.array(["a"] * 12)}, "has elements of type <U1, which no tensor has"),
        ({"labels": 3}, r"input labels is i32\[N\]: a number is no data for it"),
        ({"extra": LABELS}, "there is no input extra"),
    ],
)
def test_columns_that_do_not_fit(columns, told):
    with pytest.raises(InputError, match=told):
        dataset({"images": IMAGES, "labels": LABELS, **columns})


def test_values_are_converted_where_nothing_is_lost():
    checked({"images": IMAGES.astype(np.float64), "labels": LABELS.astype(np.float32)})
    third = dataset({"images": IMAGES / 3, "labels": LABELS}, rounded=True)
    assert np.array_equal(third.rows(np.arange(12))["images"][:, 0], np.float32(IMAGES / 3))


def test_names_that_are_missing(tmp_path):
    path = images_and_labels(tmp_path, img=IMAGES, labels=LABELS)
    with pytest.raises(InputError) as caught:
        dataset(path)
    (found,) = caught.value.diagnostics
    assert found.message == f"{path}: there is no column for input images: f32[N, 1, 4, 4]"
    assert f"data={{'images': '{path}:COLUMN'}}" in found.hint and "img, labels" in found.hint


def test_files_that_nothing_is_taken_from(tmp_path):
    first = images_and_labels(tmp_path, images=IMAGES, labels=LABELS)
    np.save(tmp_path / "lables.npy", LABELS)
    with pytest.raises(InputError, match=r"lables.npy: no input of the loss is called lables"):
        dataset([first, str(tmp_path / "lables.npy")])
    np.savez(tmp_path / "more.npz", train_images=IMAGES, train_labels=LABELS)
    with pytest.raises(InputError, match="it has no rows that are used") as caught:
        dataset([first, f"{tmp_path / 'more.npz'}:train"])
    assert f"images, labels: from {first}, which is named first" in str(caught.value)
    np.savez(tmp_path / "held.npz", test_images=IMAGES, test_labels=LABELS)
    checked([first, str(tmp_path / "held.npz")])  # a validation may want it


@pytest.mark.parametrize(
    "name, bytes, told",
    [
        ("d.npz", b"PK\x03\x04 broken", "not an .npz archive"),
        ("d.parquet", b"PAR1", "it cannot be read"),
        ("d.arrow", b"ARROW1", "it cannot be read"),
        ("d.csv", b"1,2", "not a kind of file that data is read from"),
        (None, b"", "there is no such file"),
    ],
)
def test_files_that_are_damaged(tmp_path, name, bytes, told):
    path = tmp_path / (name or "none.npz")
    if name:
        path.write_bytes(bytes)
    with pytest.raises(InputError, match=told):
        dataset(path)


@pytest.mark.parametrize("package, name", [("pyarrow", "d.parquet"), ("PIL", "")])
def test_packages_that_are_missing(tmp_path, monkeypatch, package, name):
    (folder(tmp_path / "d") / "d.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DeviceError, match=r"needs (pyarrow|Pillow)") as caught:
        dataset(tmp_path / "d" / name)
    assert caught.value.diagnostics[0].hint == 'pip install "opstep[data]"'


def test_pickles_are_not_read(tmp_path):
    np.save(tmp_path / "labels.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="holds Python objects, which are never read"):
        dataset({"images": IMAGES, "labels": tmp_path / "labels.npy"})


def test_a_truncated_npz(tmp_path):
    path = Path(images_and_labels(tmp_path, images=IMAGES, labels=LABELS))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"not an .npz archive"):
        dataset(path)


def prepared(data, **options):
    settings = Settings(epochs=1, batch=4)
    return prepare(opstep.loads(NET, "net.opg"), data, settings, **options)


def test_labels_that_are_no_class():
    labels = np.where(np.arange(12) == 7, 3, LABELS)
    with pytest.raises(InputError, match="row 7 has 3, and softmax_cross_entropy takes 0 to 2"):
        prepared({"images": IMAGES, "labels": labels})
    with pytest.raises(InputError, match="row 7 has -1, and softmax_cross_entropy takes 0 to 2"):
        prepared({"images": IMAGES, "labels": np.where(labels == 3, -1, LABELS)})
    prepared({"images": IMAGES, "labels": np.where(labels == 3, -100, LABELS)})  # left out


def test_a_batch_larger_than_the_data():
    with pytest.raises(InputError, match=r"a batch of 4 rows is larger than the data: .* has 3"):
        prepared({"images": IMAGES[:3], "labels": LABELS[:3]})
    with pytest.raises(InputError, match="has no rows"):
        prepared({"images": IMAGES[:0], "labels": LABELS[:0]})


def test_a_share_is_not_trained_on():
    trainer = prepared({"images": IMAGES, "labels": LABELS}, validate=0.25)
    held, kept = trainer.validation.batches.dataset, trainer.batches.dataset
    assert len(held) == 3
    assert sorted([*held.chosen, *kept.chosen]) == list(range(12))
    assert {int(r) for k in range(3) for r in trainer.batches.rows(Position(0, k))} == {
        int(r) for r in kept.chosen
    }
    with pytest.raises(InputError, match="leaves none to train on"):
        Dataset({"x": np.arange(2)}).split(0.9, 0)


def test_odd_values_are_told():
    images = IMAGES.astype(np.float32)
    images[[3, 5], 0, 0] = np.nan
    (told,) = oddities(dataset({"images": images, "labels": LABELS}))
    assert told == "images: 2 rows have a NaN or an infinity, first row 3"


def test_the_same_batches_ahead():
    """Large batches are made by a thread."""
    from opstep.training.data import ahead, is_worth_it

    x = np.zeros((64, 4096), np.float32)
    batches = Batches(Dataset({"x": x, "row": np.arange(64)}), 16, 3)
    assert is_worth_it(batches, on_cpu=False) and not is_worth_it(batches, on_cpu=True)
    got = [(p, b["row"].tolist()) for p, b in ahead(batches.rest(Position(0, 1)))]
    assert got == [(p, b["row"].tolist()) for p, b in batches.rest(Position(0, 1))]

    def broken():
        yield 1
        raise InputError("no more")

    taken = []
    with pytest.raises(InputError, match="no more"):
        taken.extend(ahead(broken()))
    first = next(ahead(iter(range(100))))  # the rest is never taken
    assert first == 0
