"""Arrays in files: what is written is read again, and damaged files give an `InputError`."""

from __future__ import annotations

import random
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest

from opstep.runtime import arrays
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import DTYPES

READ = {
    ".npy": arrays.read_npy,
    ".npz": arrays.read_npz,
    ".safetensors": arrays.read_safetensors,
}


def tensors() -> dict[str, np.ndarray]:
    """Every element type, and the shapes that are easily got wrong."""
    generator = np.random.default_rng(0)
    found = {name: generator.integers(0, 2, (2, 3)).astype(t.numpy) for name, t in DTYPES.items()}
    return found | {
        "file": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "dotted.name": np.ones(1, np.int8),
    }


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_many_arrays_come_back(tmp_path, suffix):
    path, wanted = tmp_path / f"x{suffix}", tensors()
    (arrays.write_npz if suffix == ".npz" else arrays.write_safetensors)(path, wanted)
    found = READ[suffix](path)
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        assert same(array, wanted[name]), name
        assert array.flags.c_contiguous
        assert same(arrays.load(f"{path}:{name}"), array)


@pytest.mark.parametrize("name", tensors())
def test_one_array_comes_back(tmp_path, name):
    path, wanted = tmp_path / "x.npy", tensors()[name]
    arrays.write_npy(path, wanted)
    found = arrays.load(str(path))
    assert same(found, wanted)
    assert found.flags.c_contiguous


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(6, dtype=">i4"),
        np.array([1.5, -2], ">f8"),
    ],
)
def test_foreign_layouts_become_ours(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    found = arrays.read_npy(tmp_path / "x.npy")
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert (found == array).all()


def test_bools_are_zero_or_one(tmp_path):
    data = np.array([0, 1, 2, 255], np.uint8)
    np.save(tmp_path / "x.npy", data.view(bool))
    assert arrays.read_npy(tmp_path / "x.npy").view(np.uint8).tolist() == [0, 1, 1, 1]


def test_compressed_archives_are_read(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros((100, 1000)), b=np.arange(3))
    assert arrays.list_npz(tmp_path / "x.npz") == ["a", "b"]
    assert arrays.read_npz(tmp_path / "x.npz", only="b").keys() == {"b"}
    assert not arrays.load(f"{tmp_path}/x.npz:a").any()


def test_an_archive_with_one_array_needs_no_key(tmp_path):
    np.savez(tmp_path / "x.npz", only=np.arange(3))
    assert arrays.load(str(tmp_path / "x.npz")).tolist() == [0, 1, 2]


def test_a_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "x.npy"
    arrays.write_npy(path, np.arange(3))
    path.chmod(0o600)

    class Broken:
        dtype = property(lambda self: 1 / 0)

        def __array__(self, *args, **kwargs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        arrays.write_npy(path, Broken())
    assert arrays.read_npy(path).tolist() == [0, 1, 2]
    arrays.write_npy(path, np.arange(4))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    arrays.replace_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_bf16_is_read_from_what_numpy_writes(tmp_path):
    np.save(tmp_path / "x.npy", np.array([1.5], ml_dtypes.bfloat16))
    assert arrays.read_npy(tmp_path / "x.npy").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("suffix", READ)
def test_damaged_files(tmp_path, suffix):
    """Thousands of damaged files: an array or an `InputError`, nothing else."""
    good = tmp_path / f"good{suffix}"
    if suffix == ".npy":
        arrays.write_npy(good, tensors()["transposed"])
    elif suffix == ".npz":
        np.savez_compressed(
            good, **{k: v for k, v in tensors().items() if k.isalnum() and k != "file"}
        )
    else:
        arrays.write_safetensors(good, tensors())
    data, bad = good.read_bytes(), tmp_path / f"bad{suffix}"
    generator, refused = random.Random(1), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about headers that it half understands
        for _ in range(1500):
            bad.write_bytes(damaged(bytearray(data), generator))
            try:
                READ[suffix](bad)
            except InputError as error:
                refused += str(bad) in str(error)
    assert refused > 500


def damaged(data: bytearray, generator: random.Random) -> bytes:
    """The data with some bytes changed, cut off or added."""
    for _ in range(generator.choice([1, 1, 2, 5])):
        at, kind = generator.randrange(len(data)), generator.random()
        if kind < 0.5:
            data[at] = generator.randrange(256)
        elif kind < 0.7:
            del data[max(at, 1) :]
        elif kind < 0.85:
            data[at:at] = generator.randbytes(generator.randrange(9))
        else:
            data[at] = generator.choice(b"0123456789")
    return bytes(data)


def test_an_array_that_is_not_wanted_is_not_read(tmp_path):
    """Its header says so, before there is memory for its elements."""
    zeros = np.zeros(1 << 20, np.float32)
    np.savez(tmp_path / "x.npz", a=zeros)
    np.save(tmp_path / "x.npy", zeros)
    arrays.write_safetensors(tmp_path / "x.safetensors", {"a": zeros})

    def expect(dtype, shape):
        raise InputError(f"not {dtype}{list(shape)}")

    for name in ("x.npz", "x.npz:a", "x.npy", "x.safetensors:a"):
        with pytest.raises(InputError, match=r"not f32\[1048576\]"):
            arrays.load(f"{tmp_path}/{name}", expect=expect)


def test_an_archive_that_is_nearly_nothing_but_large(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(1 << 29, np.uint8))
    with pytest.raises(InputError, match=r"x.npz:a: its .* bytes become 536,871,040, which is not"):
        arrays.load(f"{tmp_path}/x.npz")


def test_a_damaged_member_of_any_compression(tmp_path):
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
            np.save(tmp_path / "x.npy", np.arange(999))
            archive.write(tmp_path / "x.npy", "a.npy")
        data = bytearray((tmp_path / "x.npz").read_bytes())
        for at in range(60, 400):
            data[at] ^= 0xA5
        (tmp_path / "x.npz").write_bytes(data)
        with pytest.raises(InputError, match=r"x\.npz"):
            arrays.load(f"{tmp_path}/x.npz")
