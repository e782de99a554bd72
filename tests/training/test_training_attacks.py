"""``opstep train`` with options and data that make no sense: no work and no file is lost."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import opstep
from opstep.cli.main import main
from opstep.runtime.arrays import write_safetensors
from opstep.runtime.ir.errors import InputError

NET = """
param w: f32[3, 16] = normal(std=0.1)

graph loss(images: f32[N, 16], labels: i32[N]) -> f32[] {
  y = linear(images, w)
  l = softmax_cross_entropy(y, labels)
  return l
}
"""
RNG = np.random.default_rng(0)
DATA = {"images": RNG.random((12, 16)).astype(np.float32), "labels": np.arange(12) % 3}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.opg").write_text(NET)
    np.savez("d.npz", **DATA)
    return tmp_path


def trained(*options: str, file: str = "net.opg", data: str = "d.npz") -> int:
    return main(["train", file, "-d", data, "--batch", "4", *options])


def process(*options: str) -> list[str]:
    line = [sys.executable, "-m", "opstep", "train", "net.opg", "-d", "d.npz", "--batch", "4"]
    return [*line, *options]


@pytest.mark.parametrize("options", [
    ("--save", "net.opg"), ("--emit", "net.opg"), ("--emit", "link.opg"),
    ("--save", "data.safetensors"), ("--save", "data.opg"), ("--save", "runs.opg"),
])  # fmt: skip
def test_no_file_of_the_run_is_written_over(here, capsys, options):
    write_safetensors("data.safetensors", DATA)
    (here / "link.opg").symlink_to("net.opg")
    before = {p: p.read_bytes() for p in here.iterdir()}
    code = trained(*options, "--workspace", "runs.opg", data="data.safetensors")
    assert code == 2 and "is a file that this run reads" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in here.iterdir()} == before


@pytest.mark.parametrize("name", ["save", "emit", "workspace", "params", "resume", "best"])
def test_an_option_without_a_value(here, capsys, name):
    """What a script gives as ``--save "$OUT"``."""
    assert trained(f"--{name}", "") == 2
    assert f"--{name} is empty" in capsys.readouterr().err


@pytest.mark.parametrize("options, told", [
    (("--set", "graph=3"), "graph is no hyperparameter"),
    (("--set", "wrt=7"), "wrt is no hyperparameter"),
    (("--set", "momentum=1"), "it has: lr, weight_decay, betas, eps\n"),
    (("--tag", "lr=1"), "--tag is for a run that is recorded"),
    (("--name", "first"), "--name is for a run that is recorded"),
    (("--validate-every", "2"), "--validate-every: there is no validation"),
    (("--schedule", f"step={'9' * 400}"), "constant, linear, cosine or step=N"),
    (("--schedule", "step=-1"), "schedule is 'step=-1'"),
    (("--schedule", "linear=5"), "schedule is 'linear=5'"),
    (("--seed", str(1 << 63)), "at most 63 bits"),
    (("--best", "loss"), "the best of them, are of validations"),
    (("--data", "x" * 5000), "File name too long"),
    (("--workspace", "x" * 5000), "File name too long"),
    (("--step-graph", "loss"), "net.opg:4:7: error: graph loss is no step of training"),
])  # fmt: skip
def test_options_that_make_no_sense(here, capsys, options, told):
    assert trained(*options) == 2
    assert told in capsys.readouterr().err


def test_labels_of_the_validation_are_looked_at(here, capsys):
    np.savez("held.npz", images=DATA["images"], labels=np.full(12, 7))
    assert trained("--validate", "held.npz") == 2
    assert "held.npz: labels: row 0 has 7" in capsys.readouterr().err


def test_nobody_reads_the_messages(here):
    """``2>&1 | head -1``: training goes on, and is saved."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as gone:
        subprocess.run(process("--epochs", "3", "--save", "out.opg", "-w", "runs.db"),
                       stdout=gone, stderr=gone, check=False)  # fmt: skip
    assert (here / "out.safetensors").stat().st_size > 3 * 16 * 4


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_streams_that_are_closed(here, closed):
    line = " ".join(process("--save", "out.opg"))
    assert subprocess.run(f"{line} {closed}", shell=True, capture_output=True).returncode == 0
    assert (here / "out.opg").exists()


IMAGES = NET.replace("images: f32[N, 16]", "images: f32[N, 4, 4]").replace(
    "  y = linear(images,", "  x = reshape(images, shape=[N, 16])\n  y = linear(x,"
)


def photos(*names: str) -> None:
    from PIL import Image

    for k, name in enumerate(names):
        os.makedirs(os.path.dirname(name), exist_ok=True)
        Image.fromarray(np.full((4, 4), k, np.uint8)).save(name)


def test_images_that_would_hang_or_change(here, capsys):
    Image = pytest.importorskip("PIL.Image")
    (here / "net.opg").write_text(IMAGES)
    photos(*(f"photos/{c}/{k}.png" for c in "ab" for k in range(2)))
    bad = "photos/b/z.png"
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(bad)
    assert trained(data="photos") == 2
    assert f"{bad} has pixels of more than 8 bits" in capsys.readouterr().err
    frames = [Image.fromarray(np.full((4, 4), k, np.uint8)) for k in (0, 200)]
    frames[0].save("photos/b/z.gif", save_all=True, append_images=frames[1:])
    os.remove(bad)
    assert trained(data="photos") == 2
    assert "photos/b/z.gif has 2 frames" in capsys.readouterr().err
    os.remove("photos/b/z.gif")
    with pytest.MonkeyPatch.context() as small:
        small.setattr(Image, "MAX_IMAGE_PIXELS", 12)
        assert trained(data="photos") == 2
        assert "photos/a/0.png has more than" in capsys.readouterr().err
    os.mkfifo(bad)
    assert trained(data="photos") == 2
    assert f"{bad} is no file that can be read" in capsys.readouterr().err


def test_a_class_has_one_number_in_all_parts(here):
    pytest.importorskip("PIL.Image")
    from opstep.runtime.ir.types import TensorType, dtype_of
    from opstep.training.files import Folder

    photos("p/train/a/0.png", "p/train/b/0.png", "p/train/c/0.png", "p/test/c/0.png")
    wanted = TensorType(dtype_of(np.dtype("i4")), (3,))
    assert Folder(here / "p/train").columns["labels"](wanted).tolist() == [0, 1, 2]
    assert Folder(here / "p/test").columns["labels"](wanted).tolist() == [2]


@pytest.mark.parametrize("options, told", [
    ({"metrics": 3}, "metrics is 3; it can be a list of names of graphs"),
    ({"metrics": "loss"}, "metrics is 'loss'; it can be a list of names of graphs"),
    ({"freeze": [3]}, "freeze is [3]; it can be a list of names of params"),
    ({"graph": 3}, "graph is 3; it can be a name"),
    ({"device": None}, "device is None; it can be a name, such as 'cpu'"),
    ({"workspace": 3}, "workspace is 3; it can be the path of a file"),
    ({"observers": 3}, "observers is 3; it can be a list of observers"),
    ({"watch": 3}, "watch is 3; it can be conditions, such as"),
    ({"validate": object}, "it can be data, or a share of it"),
])  # fmt: skip
def test_arguments_of_other_types(options, told):
    with pytest.raises(InputError, match=re.escape(told)):
        opstep.train(opstep.loads(NET), DATA, batch=4, **options)


@pytest.mark.parametrize("program", ["net.opg", Path("net.opg"), None, NET])
def test_a_program_that_is_none(program):
    with pytest.raises(InputError) as caught:
        opstep.train(program, DATA)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message.endswith("it is to be an opstep.Program")
    assert diagnostic.hint == 'opstep.load("file.opg") gives one'


COUNTING = NET.replace("graph loss", "state seen: i32[] = 0\n\ngraph loss").replace(
    "  return l", "  n = add(seen, 1)\n  seen <- n\n  fine = less(n, 5)\n"
    '  assert fine, "that was enough"\n  return l',
)  # fmt: skip
METRIC = (
    NET
    + """
graph right(images: f32[N, 16]) -> f32[] {
  m = max(w)
  fine = less(m, -1.0)
  assert fine, "that was enough"
  return m
}
"""
)


@pytest.mark.parametrize("text, options, steps", [
    (COUNTING, ("--epochs", "3"), 4), (METRIC, ("--validate", "0.4", "--metric", "right"), 2),
])  # fmt: skip
def test_what_was_learned_until_an_error_is_saved(here, capsys, text, options, steps):
    """As of the last good step, which the workspace has, too."""
    (here / "net.opg").write_text(text)
    assert trained(*options, "--save", "out.opg", "-w", "runs.db") == 1
    told = capsys.readouterr().err
    assert (
        f"an error ends training after step {steps}: what was learned until then is saved" in told
    )
    assert told.index("saved out.opg") < told.index("that was enough")
    with opstep.Workspace("runs.db") as workspace:
        last = workspace.checkpoint("last")
        assert last.made == steps
        kept = workspace.checkpoint_values(last)["w"]
    assert opstep.load("out.opg").params["w"].tobytes() == kept.tobytes()


def test_an_error_in_the_first_step_saves_nothing(here, capsys):
    (here / "net.opg").write_text(COUNTING.replace("less(n, 5)", "less(n, 1)"))
    assert trained("--save", "out.opg") == 1
    assert not (here / "out.opg").exists() and "saved" not in capsys.readouterr().err


def test_arguments_in_python():
    program = opstep.loads(NET)
    with pytest.raises(InputError, match="the best of them, are of validations, and there is none"):
        opstep.train(program, DATA, batch=4, best="loss")
    ragged = {"images": [[1], [2, 3]], "labels": [0, 1]}
    with pytest.raises(InputError, match="images is no array: its rows differ in length"):
        opstep.train(program, ragged, batch=2)
    trainer = opstep.train(program, DATA, batch=4, name="learn")
    assert trainer.graph == "learn" and trainer.step == 3


def test_a_validation_in_batches_of_the_size_that_a_loss_takes(here, capsys):
    """What is left of its rows makes no batch, which failed after the first epoch."""
    (here / "net.opg").write_text(NET.replace("[N", "[4"))
    assert trained("--validate", "0.5", "--save", "out.opg") == 0
    assert trained("--validate", "0.2") == 2
    assert "a batch of 4 rows is larger than the data: d.npz has 2" in capsys.readouterr().err


def test_classes_are_told_by_the_names_of_their_folders(here, capsys):
    pytest.importorskip("PIL.Image")
    (here / "net.opg").write_text(IMAGES)
    photos(*(f"photos/{c}/{k}.png" for c in ("cat", "dog", "eel") for k in range(2)))
    assert trained("--validate", "0.3", data="photos") == 0
    assert capsys.readouterr().err.startswith("labels: 0 cat, 1 dog, 2 eel\n")
    photos("photos/zebra/0.png")
    assert trained("--validate", "0.3", data="photos") == 2
    told = "photos: labels: row 6 has 3 (zebra), and softmax_cross_entropy takes 0 to 2"
    assert told in capsys.readouterr().err


def test_no_validation_is_the_best(here, capsys):
    (here / "net.opg").write_text(METRIC.replace("less(m, -1.0)", "less(-1.0, m)").replace(
        "return m", "never = log(-1.0)\n  return never"))  # fmt: skip
    assert trained("--validate", "0.4", "--metric", "right", "--best", "right") == 0
    told = "right was a NaN or an infinity in each validation: none is the best"
    assert capsys.readouterr().err.count(f"warning: {told}") == 1
    with pytest.warns(UserWarning, match=told):
        opstep.train(opstep.load("net.opg"), DATA, batch=4, graph="loss", validate=0.4,
                     metrics=["right"], best="right")  # fmt: skip


def test_nothing_is_left_to_go_on_with(here, capsys):
    """What was learned is saved, and no empty run is written."""
    assert trained("-w", "runs.db", "--epochs", "2") == 0
    assert trained("-w", "runs.db", "--epochs", "2", "--resume", "last", "--save", "out.opg") == 0
    assert "nothing is left of --epochs 2" in capsys.readouterr().err
    program = opstep.load("net.opg")
    opstep.train(program, DATA, batch=4, epochs=2, workspace="runs.db", resume="last")
    with opstep.Workspace("runs.db") as workspace:
        assert len(workspace.runs) == 1
        learned = workspace.checkpoint_values(workspace.checkpoint("last"))["w"].tobytes()
    assert learned == program.params["w"].tobytes()
    assert learned == opstep.load("out.opg").params["w"].tobytes()


def test_a_checkpoint_whose_row_is_damaged(here, capsys):
    assert trained("-w", "runs.db") == 0
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("update tensors set shape = '[1,2]'")
    assert trained("-w", "runs.db", "--resume", "last", "--epochs", "2") == 2
    assert "are damaged" in capsys.readouterr().err
