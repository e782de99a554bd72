"""Whatever is wrong: one clear message, the documented exit code, no traceback."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE_S, cpu_seconds, wait_until

from opstep.runtime import arrays
from opstep.runtime.ir.op import OPS, Mismatch

# Files that are not what they should be: name, content, what the message says.
GOOD = np.arange(6, dtype=np.float32).reshape(3, 2)


def npy(array: np.ndarray, **changes: str) -> bytes:
    """The bytes of an .npy file, with parts of its header replaced (same length each)."""
    import io

    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    data = out.getvalue()
    for old, new in changes.values():
        data = data.replace(old.encode(), new.encode(), 1)
    return data


def npz(**members: bytes) -> bytes:
    import io

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return out.getvalue()


def lying(old: str, new: str) -> bytes:
    return npy(GOOD, a=(old, new))


BAD_FILES = {
    "empty.npy": (b"", "not an .npy array"),
    "text.npy": (b"1 2 3\n4 5 6\n", "not an .npy array"),
    "truncated.npy": (npy(GOOD)[:-5], "truncated"),
    "longer.npy": (npy(GOOD) + b"more", "longer than that"),
    "huge.npy": (lying("(3, 2), }      ", "(3000000000, 2)"), "not an .npy array"),
    "lying.npy": (lying("(3, 2), }       ", "(3, 200000000),}"), "truncated"),
    "negative.npy": (lying("(3, 2)", "(-3,2)"), "not a shape"),
    "objects.npy": (npy(np.array([{}, 1], dtype=object)), "Python objects"),
    "complex.npy": (npy(np.ones(3, np.complex64)), "complex64 is not an element type"),
    "strings.npy": (npy(np.array(["a", "b"])), "is not an element type"),
    "none.npz": (b"PK nothing", "not an .npz archive"),
    "truncated.npz": (npz(x=npy(GOOD))[:-30], "not an .npz archive"),
    "inner.npz": (npz(x=npy(GOOD)[:-5]), "truncated"),
    "pickle.npz": (npz(x=npy(np.array([{}], dtype=object))), "Python objects"),
    "two.npz": (npz(a=npy(GOOD), b=npy(GOOD)), "say which"),
    "empty.safetensors": (b"", "not a safetensors file"),
    "lying.safetensors": ((1 << 40).to_bytes(8, "little") + b"{}", "not a safetensors file"),
    "short.safetensors": (
        (61).to_bytes(8, "little")
        + b'{"x":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}}    ',
        "not a safetensors file",
    ),
    "x.txt": (b"1 2 3", "not a kind of file"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_array_files(cli, write, scale, name):
    data, message = BAD_FILES[name]
    write(name, data)
    outcome = cli("run", scale, "-i", f"x={name}", "-i", "bias=0")
    assert outcome.code == 2
    assert message in outcome.err
    assert name in outcome.err


def test_a_file_that_claims_a_terabyte(cli, write, scale):
    """Refused by its size, before memory is asked for."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (274877906944,), }"
    header = header.ljust(117) + b"\n"
    write("big.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64)
    outcome = cli("run", scale, "-i", "x=big.npy", "-i", "bias=0")
    assert outcome.code == 2
    assert "1,099,511,627,776 bytes" in outcome.err


def test_a_compressed_file_that_claims_more_than_it_can_hold(cli, tmp_path, scale):
    np.savez_compressed(tmp_path / "z.npz", x=np.zeros((3, 2), np.float32))
    data = bytearray((tmp_path / "z.npz").read_bytes())
    at = data.rfind(b"PK\x01\x02") + 24  # the size that the directory claims, uncompressed
    data[at : at + 4] = (0xFFFFFF00).to_bytes(4, "little")
    (tmp_path / "z.npz").write_bytes(data)
    outcome = cli("run", scale, "-i", "x=z.npz", "-i", "bias=0")
    assert outcome.code == 2
    assert "more than fit" in outcome.err


def test_all_symbols_without_a_size_are_named_at_once(cli, write):
    text = "graph main(x: f32[N, K], y: f32[M]) -> f32[M] {\n  z = relu(y)\n  return z\n}\n"
    outcome = cli("run", write("sizes.opg", text), "-i", "random")
    assert outcome.code == 2
    said = "input x is f32[N, K], y is f32[M], and nothing says how large N, K and M are"
    assert said in outcome.err and "add --symbol N=8 --symbol K=8 --symbol M=8" in outcome.err


BAD_INPUTS = [
    (["-i", "x=absent.npy", "-i", "bias=0"], "there is no such file"),
    (["-i", "x=.", "-i", "bias=0"], "not a kind of file"),
    (["-i", "x=folder.npy", "-i", "bias=0"], "is a folder"),
    (["-i", "x=good.npz:y", "-i", "bias=0"], "holds no array y"),
    (["-i", "x=good.npy"], "nothing was given for: bias: f32[]"),
    ([], "nothing was given for: x: f32[N, 2], bias: f32[]"),
    (["-i", "y=good.npy"], "the graph has no input y"),
    (["-i", "biass=1"], "did you mean bias?"),
    (["-i", "x=good.npy", "-i", "x=zeros"], "x was given before"),
    (["-i", "x"], "which input, and from where"),
    (["-i", "zeros", "-i", "ones"], "zeros was given for all other inputs"),
    (["-i", "random"], "nothing says how large N is"),
    (["-i", "random", "-s", "N"], "not the name of a dimension and its size"),
    (["-i", "random", "-s", "N=two"], "not the name of a dimension and its size"),
    (["-i", "random", "-s", "N=2", "-s", "N=3"], "N was given the size 2 before"),
    (["-i", "random", "-s", "N=2", "-s", "M=3"], "has no dimension M\nhint: its inputs have N"),
    (["-i", "x=good.npy", "-i", "bias=0", "-s", "N=4"], "N is bound to two sizes: 4, and 3 by x"),
    (["-i", "x=wide.npy", "-i", "bias=0"], "f32[N, 2]"),
    (["-i", "x=flat.npy", "-i", "bias=0"], "f32[N, 2]"),
    (["-i", "x=double.npy", "-i", "bias=0"], "f64"),
    (["-i", "x=ints.npy", "-i", "bias=0"], "i64"),
    (["-g", "double", "-i", "x=good.npy"], "f32[N]"),
    (["-g", "dubble", "-i", "zeros"], "did you mean double?"),
    (["-i", "zeros", "-s", "N=1", "-o", "q=y.npy"], "the graph returns no q"),
    (["-i", "zeros", "-s", "N=1", "-o", "y.npy"], "the graph returns 2"),
    (["-i", "zeros", "-s", "N=1", "-o", "y=y.csv"], "write to a .npy"),
    (["-i", "zeros", "-s", "N=1", "-o", "y=no/y.npy"], "there is no folder no"),
    (["-i", "zeros", "-s", "N=1", "-o", "y=folder.npy"], "folder.npy is a folder"),
    (["-i", "zeros", "-s", "N=1", "-o", "y=a.npy", "-o", "z=./a.npy"], "written to already"),
    (["-i", "zeros", "-s", "N=1", "-o", "y=y.npy", "--device", "null"], "computes nothing"),
    (["-i", "zeros", "-s", "N=1", "--save-params", "no/p.safetensors"], "there is no folder no"),
    (["-i", "zeros", "-s", "N=1", "--save-params", "scale.opg"], "write to a .safetensors file"),
    (
        ["-i", "zeros", "-s", "N=1", "-o", "a.safetensors", "--save-params", "a.safetensors"],
        "written to already",
    ),
    (["-i", "zeros", "-s", "N=1", "--params", "absent.safetensors"], "there is no such file"),
    (["-i", "zeros", "-s", "N=1", "--params", "good.npy"], "not a safetensors file"),
    (["-i", "zeros", "-s", "N=1", "--params", "misnamed.safetensors"], "does not declare"),
    (["-i", "zeros", "-s", "N=1", "--params", "wide.safetensors"], "w is f32[3, 5]"),
    (["-i", "zeros", "-s", "N=1", "--params", "double.safetensors"], "w is f64[3, 2]"),
    (["-i", "zeros", "-s", "N=1", "--params", "missing.safetensors"], "params are not in it: w"),
]


@pytest.mark.parametrize("arguments, message", BAD_INPUTS, ids=[m for _, m in BAD_INPUTS])
def test_bad_inputs_and_params(cli, scale, tmp_path, arguments, message):
    np.save(tmp_path / "good.npy", GOOD)
    np.savez(tmp_path / "good.npz", x=GOOD, z=GOOD)
    np.save(tmp_path / "wide.npy", np.ones((3, 5), np.float32))
    np.save(tmp_path / "flat.npy", np.ones(6, np.float32))
    np.save(tmp_path / "double.npy", np.ones((3, 2)))
    np.save(tmp_path / "ints.npy", np.ones((3, 2), np.int64))
    (tmp_path / "folder.npy").mkdir()
    w = np.ones((3, 2), np.float32)
    arrays.write_safetensors(tmp_path / "misnamed.safetensors", {"w": w, "v": w})
    arrays.write_safetensors(tmp_path / "wide.safetensors", {"w": np.ones((3, 5), np.float32)})
    arrays.write_safetensors(tmp_path / "double.safetensors", {"w": np.ones((3, 2))})
    arrays.write_safetensors(tmp_path / "missing.safetensors", {"count": np.int32(3)})
    outcome = cli("run", scale, *arguments)
    assert outcome.code == 2, outcome.err
    assert message in outcome.err
    assert outcome.err.count("error") <= 1


def test_a_result_that_cannot_be_written_does_not_cost_the_others(cli, scale, tmp_path):
    loop, long = tmp_path / "loop.npy", f"{'n' * 300}.npy"
    loop.symlink_to(loop)
    outcome = cli(
        "run", scale, "-i", "zeros", "-s", "N=1", "-o", "y=loop.npy", "-o", f"y={long}",
        "-o", "z=z.npy", "--save-params", "p.safetensors",
    )  # fmt: skip
    assert outcome.code == 2
    assert "loop.npy: cannot be written" in outcome.err
    assert "name too long" in outcome.err
    assert np.load(tmp_path / "z.npy").shape == (1, 3)
    assert arrays.list_safetensors(tmp_path / "p.safetensors") == ["count", "w"]
    assert not list(tmp_path.glob(".*"))


BAD_PROGRAMS = {
    "absent": (None, 2, "no such file"),
    "binary": (b"\x7fELF\x02\x01\x00\x00" + bytes(range(256)), 2, "binary"),
    "latin1": ("# Größe\ngraph main() {\n}\n".encode("latin-1"), 2, "UTF-8"),
    "syntax": (b"graph main( {\n", 1, "main.opg:1:"),
    "unknown op": (
        b"graph main(x: f32[2]) -> f32[2] {\n  y = rellu(x)\n  return y\n}\n",
        1,
        "did you mean relu",
    ),
    "type": (
        b"graph main(x: f32[2], y: f32[3]) -> f32[2] {\n  z = add(x, y)\n  return z\n}\n",
        1,
        "main.opg:2:",
    ),
    "no graph": (b"param w: f32[2] = zeros()\n", 2, "no graph"),
    "recursive": (
        b"graph main(x: f32[2]) -> f32[2] {\n  y = main(x)\n  return y\n}\n",
        1,
        "main",
    ),
}


@pytest.mark.parametrize("name", BAD_PROGRAMS)
def test_bad_programs(cli, write, name):
    data, code, message = BAD_PROGRAMS[name]
    if data is not None:
        write("main.opg", data)
    outcome = cli("run", "main.opg", "-i", "zeros")
    assert outcome.code == code, outcome.err
    assert message in outcome.err


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="a device of Unix")
def test_an_endless_file(cli):
    outcome = cli("check", "/dev/zero")
    assert outcome.code == 2
    assert "binary" in outcome.err


LOOP = """\
    graph main(x: f32[N]) -> f32[N] {
      y = while(x, test=always, body=more%s)
      return y
    }
    graph always(x: f32[N]) -> bool[] {
      least = min(x)
      yes = greater(least, -1.0)
      return yes
    }
    graph more(x: f32[N]) -> f32[N] {
      y = mul(x, 1.0)
      return y
    }
    """


def test_what_only_the_device_can_refuse_has_its_line(cli, write, monkeypatch):
    def refuse(x, y, **attrs):
        raise Mismatch("a size or an attribute does not fit 64 bits")

    monkeypatch.setattr(OPS["cumsum"], "cpu", refuse)
    path = write("deep.opg", """\
        graph main(x: f32[N, 3]) -> f32[N, 3] {
          y = added(x)
          return y
        }
        graph added(x: f32[N, 3]) -> f32[N, 3] {
          y = cumsum(x, axis=0)
          return y
        }
        """)  # fmt: skip
    outcome = cli("run", path, "-i", "ones", "-s", "N=3")
    assert outcome.code == 1
    assert "deep.opg:6:7: error: a size or an attribute does not fit 64 bits" in outcome.err
    assert "deep.opg:2:7: note: called here" in outcome.err


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize("size", [4611686018427387904, 10**30])
def test_sizes_beyond_64_bits(cli, scale, command, size):
    given = ["-i", "random"] if command == "run" else []
    outcome = cli(command, scale, "-g", "double", *given, "-s", f"N={size}")
    assert outcome.code == 2
    assert f"f32[{size}]" in outcome.err


def test_a_result_beyond_64_bits(cli, write):
    path = write("wide.opg", """\
        graph main(x: f32[N, 0]) -> f32[N*N, N*N, 0] {
          y = zeros(shape=[N*N, N*N, 0])
          return y
        }
        """)  # fmt: skip
    outcome = cli("run", path, "-i", "ones", "-s", "N=100000")
    assert outcome.code == 1
    assert "wide.opg:2:7: error: a tensor of type" in outcome.err
    assert "does not fit into any memory" in outcome.err


def test_a_while_past_its_limit(cli, write):
    path = write("loop.opg", LOOP % ", limit=50")
    outcome = cli("run", path, "-i", "ones", "-s", "N=3")
    assert outcome.code == 1
    assert "loop.opg:2:" in outcome.err
    assert "50" in outcome.err


def test_a_failed_assert(cli, write):
    path = write("a.opg", """\
        state s: i32[] = 7
        graph main(x: f32[]) -> f32[] {
          fine = less(x, 1.0)
          assert fine, "x is too large"
          s <- 8
          return x
        }
        """)  # fmt: skip
    for mode in ("async", "debug"):
        outcome = cli("run", path, "-i", "x=2", "--mode", mode)
        assert outcome.code == 1
        assert "x is too large" in outcome.err
        assert "a.opg:4:" in outcome.err
    assert cli("run", path, "-i", "x=0.5").code == 0


def test_out_of_memory(cli, write):
    path = write("big.opg", """\
        graph main(x: f32[N]) -> f32[] {
          a = broadcast(x, shape=[1000000, 1000000, N])
          s = sum(a)
          return s
        }
        """)  # fmt: skip
    outcome = cli("run", path, "-i", "ones", "-s", "N=1000")
    assert outcome.code == 3
    assert "memory" in outcome.err


def runs_in(path: Path) -> int:
    """How many runs a workspace tells of that another process may be making."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute("select count(*) from runs").fetchone()[0]
    return 0


def test_ctrl_c_in_a_long_loop(write, tmp_path):
    write("loop.opg", LOOP % ", limit=1000000000")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.Popen(
        [
            sys.executable, "-m", "opstep", "run", "loop.opg", "-i", "ones", "-s", "N=3",
            "--workspace", "runs.db",
        ],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: runs_in(tmp_path / "runs.db"))
        used = cpu_seconds(process.pid)
        wait_until(lambda: cpu_seconds(process.pid) > used + 0.3)  # it is in the loop
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert "interrupted" in err


def test_an_unexpected_error_asks_for_a_report(capsys, monkeypatch, tmp_path):
    from opstep.cli import main as module

    def broken(*arguments, **options):
        raise ZeroDivisionError("deep\ninside")

    monkeypatch.setattr(module.group, "main", broken)
    assert module.main(["run"]) == 70
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "ZeroDivisionError: deep inside" in err
    assert "report" in err


def test_traceback_shows_where(cli, capsys):
    from opstep.cli.main import main

    assert main(["check", "absent.opg", "--traceback"]) == 2
    assert main(["run", "absent.opg", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away(tmp_path):
    """`opstep ops | head -1` ends quietly."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "ops", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=PATIENCE_S) in (0, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", [["ops"], ["check", "--help"]], ids=" ".join)
def test_a_full_disk_behind_standard_output(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "opstep", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr == "error: the output could not be written: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["run", "entrpy.opg"], 2, "hint: did you mean entropy.opg?"),
        (["check", "entrpy.opg"], 2, "hint: did you mean entropy.opg?"),
        (["debug", "far.opg"], 2, "hint: there are entropy.opg"),
        (["run", "model.pt3"], 2, "hint: the folder has no .pt3 file"),
        (["run", "entropy.opg"], 2, "or --input random --symbol N=8 --symbol K=8 for all of them"),
        (["run", "entropy.opg", "random"], 2, "Did you mean --input random?"),
        (["run", "entropy.opg", "-i", "random"], 2, "hint: add --symbol N=8 --symbol K=8"),
        (
            ["run", "entropy.opg", "-i", "random", "-s", "N=4,K=5"],
            2,
            "hint: write --symbol N=4 --symbol K=5",
        ),
        (["run", "entropy.opg", "-i", "random", "-s", "M=4"], 2, "hint: its inputs have K, N"),
        (["run", "entropy.opg", "-i", "scores=5..1"], 2, "hint: write 1..5"),
        (["run", "entropy.opg", "-i", "scores=0..inf"], 2, "hint: both ends are finite numbers"),
        (["run", "entropy.opg", "-i", "x=random"], 2, "hint: its inputs are scores"),
        (["run", "entropy.opg", "-g", "mian", "-i", "random"], 2, "hint: did you mean main?"),
    ],
)
def test_what_a_beginner_meets_says_what_to_type(cli, write, monkeypatch, words, code, hint):
    text = "graph main(scores: f32[N, K]) -> f32[N, K] {\n  p = softmax(scores)\n  return p\n}\n"
    monkeypatch.chdir(Path(write("entropy.opg", text)).parent)
    outcome = cli(*words)
    assert outcome.code == code and hint in outcome.err


def test_a_nan_from_inputs_that_were_made_up_says_how_to_give_others(cli, write):
    text = "graph main(x: f32[4]) -> f32[4] {\n  far = sub(x, 9.0)\n  y = log(far)\n  return y\n}\n"
    outcome = cli("run", write("far.opg", text), "-i", "random")
    assert outcome.code == 0
    assert "x random: normal numbers (none suits log, far.opg:3: log of a negative" in outcome.err
    assert "--input NAME=0..10" in outcome.err and "opstep hunt" in outcome.err
    assert "made up" not in cli("run", write("far.opg", text), "-i", "x=10..11").err


def test_a_name_that_nobody_reads_is_shortened_in_the_middle(cli, write):
    name = "begin" + "v" * 10_000 + "end"
    text = f"graph main(x: f32[3]) -> f32[3] {{\n  y = add(x, {name})\n  return y\n}}\n"
    for words in (["check", write("long.opg", text)], ["run", f"{name}.opg"], [name]):
        outcome = cli(*words)
        assert outcome.code != 0
        told = outcome.out + outcome.err
        assert "beginvvv" in told and re.search(r"v…v+end", told)
        assert len(told) < 1200


def test_an_array_of_another_type_is_refused_before_it_is_read(cli, write, monkeypatch):
    file = write(
        "f4.opg", "graph main(x: f32[4], y: f32[N], z: f32[2*N]) -> f32[4] {\n  return x\n}\n"
    )
    np.savez("x.npz", x=np.zeros(5, "f4"), y=np.zeros(3, "f4"), z=np.zeros(6, "f4"), i=np.arange(4))
    given = ["-i", "y=x.npz:y", "-i", "z=x.npz:z"]
    monkeypatch.setattr(arrays, "_fill", lambda *_: pytest.fail("it is read"))
    outcome = cli("run", file, "-i", "x=x.npz:x", *given)
    assert (
        outcome.code == 2
        and "f4.opg:1:15: error: graph main wants f32[4] as x, not f32[5]" in outcome.err
    )
    outcome = cli("run", file, "-i", "x=x.npz:i", *given)
    assert outcome.code == 2 and "input x has elements of type i64, not f32" in outcome.err
