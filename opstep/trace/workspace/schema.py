"""The schema of a workspace: tables, columns and indices, each with its description.

`docs/workspace.md` and the viewer's texts are generated from this. Every change to the structure
needs a new `VERSION` and a migration (`migrations`).
"""

from __future__ import annotations

from typing import NamedTuple

from opstep.trace.workspace.views import BAD

VERSION = 6
APPLICATION = (
    0x6F707374  # "opst", PRAGMA application_id: tells a workspace from another SQLite file
)


class Column(NamedTuple):
    name: str
    type: str  # INTEGER, REAL, TEXT, BLOB; "" for numbers that are either INTEGER or REAL
    what: str
    references: str = ""  # the table whose `id` it holds


class Index(NamedTuple):
    columns: tuple[str, ...]
    where: str = ""  # rows that it holds; all
    unique: bool = False


class Table(NamedTuple):
    name: str
    what: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ("id",)
    indices: tuple[Index, ...] = ()
    rowid: bool = True  # False: stored in the order of its key


RUN = Column("run", "INTEGER", "the run", "runs")
_TAKEN = (  # the tensor that a row of optional statistics describes
    RUN,
    Column("step", "INTEGER", "step of the run, from 0; -1: before the first"),
    Column("op", "INTEGER", "number of the op in its run"),
    Column("execution", "INTEGER", "the execution that computed it"),
    Column("result", "INTEGER", "index among the op's results, from 0"),
)
_BY_STEP = ("run", "step", "op", "execution", "result")

TABLES = (
    Table(
        "runs",
        "One row per run: what ran, how, and how it ended.",
        (
            Column("id", "INTEGER", "number of the run in this file"),
            Column("key", "TEXT", "identifies the run, also in timelines: 8 hexadecimal digits"),
            Column("began", "TEXT", "start time, UTC, ISO 8601"),
            Column("began_ns", "INTEGER", "the same time on the clock of start_ns and end_ns"),
            Column("ended", "TEXT", "end time, UTC; null while it runs, or if it was killed"),
            Column("seconds", "REAL", "duration; while it runs, up to the end of the last step"),
            Column(
                "status",
                "TEXT",
                "running, done, incomplete (done, but the disk filled up), failed or interrupted",
            ),
            Column("error", "TEXT", "the error message it failed with"),
            Column("file", "TEXT", "path of the program's file"),
            Column("program", "TEXT", "text of the program"),
            Column("graph", "TEXT", "the graph that ran"),
            Column("device", "TEXT", "the name of its device, such as cuda:1"),
            Column("streams", "INTEGER", "number of streams that the plan could use"),
            Column("alloc", "TEXT", "reuse or fresh"),
            Column("fill", "TEXT", "none or nan"),
            Column("sync", "TEXT", "none or op"),
            Column("threads", "INTEGER", "threads per op; null: all cores"),
            Column("seed", "INTEGER", "seed for the initial values of params"),
            Column("steps", "INTEGER", "number of finished and recorded steps"),
            Column(
                "repeatable",
                "INTEGER",
                "how many steps, from the first, ran on the saved inputs",
            ),
            Column("selection", "TEXT", "tensors whose statistics were computed (--stats)"),
            Column("every", "INTEGER", "interval of steps between statistics (--stats-every)"),
            Column("arena_bytes", "INTEGER", "memory for the temporary tensors of the main plan"),
            Column("param_bytes", "INTEGER", "memory for params and states"),
            Column("trace", "TEXT", "path of the timeline recorded with it, or null"),
            Column("version", "TEXT", "version of opstep"),
            Column("host", "TEXT", "name of the machine"),
            Column("pid", "INTEGER", "process that ran it"),
            Column("kernels", "TEXT", "kernels on a GPU: auto, numba or vendor (--kernels)"),
            Column("name", "TEXT", "name given to the run (--name), or null"),
            Column("command", "TEXT", "command line of its process"),
            Column("digest", "TEXT", "SHA-256 of the program's text"),
            Column(
                "keep_inputs",
                "INTEGER",
                "interval of steps between saves of what a rerun needs (--keep-inputs); 0: none",
            ),
            Column("also", "TEXT", "optional statistics (--stats-also)"),
            Column("parent", "INTEGER", "id of the run whose checkpoint it went on from"),
            Column("parent_step", "INTEGER", "number of steps of `parent` before that checkpoint"),
        ),
        indices=(Index(("key",), unique=True),),
    ),
    Table(
        "settings",
        "Named settings of a run: its tags and scalar inputs.",
        (
            RUN,
            Column("kind", "TEXT", "tag (--tag) or input (of the first step)"),
            Column("name", "TEXT", "name, such as lr"),
            Column("value", "", "its value: a number if it is one, otherwise text"),
        ),
        key=("run", "kind", "name"),
        indices=(Index(("name",)),),
    ),
    Table(
        "ops",
        "One row per op in the plans of a run.",
        (
            RUN,
            Column("op", "INTEGER", "number of the op in its run; inputs and named tensors: < 0"),
            Column(
                "name", "TEXT", "name of the op, such as conv2d or while; or input, param, state"
            ),
            Column(
                "site", "TEXT", "its frame and first result, main/features:p/c: same in all runs"
            ),
            Column("plan", "TEXT", "graph of the plan that contains it"),
            Column("graph", "TEXT", "graph that contains its statement"),
            Column("frame", "TEXT", "the calls that lead to it, such as main/features:p"),
            Column("file", "TEXT", "file of its statement, possibly one of the library"),
            Column("line", "INTEGER", "line of its statement, from 1"),
            Column("statement", "TEXT", "text of the statement"),
            Column("operands", "TEXT", "JSON: names and types of its operands"),
            Column(
                "sources",
                "TEXT",
                "JSON: for each operand its [op, result]; 0: a number; null: from another plan",
            ),
            Column("attrs", "TEXT", "JSON: its attributes"),
            Column("stream", "INTEGER", "stream that the plan assigns it to"),
            Column(
                "bytes",
                "INTEGER",
                "bytes read and written by one execution of its kernels; 0 if it is fused",
            ),
            Column(
                "flops",
                "INTEGER",
                "floating-point operations of one execution of its kernels; 0 if it is fused",
            ),
            Column(
                "live_bytes",
                "INTEGER",
                "bytes of temporary tensors while it runs, including its callers'",
            ),
            Column(
                "executions",
                "INTEGER",
                "how often it ran, in recorded steps; this and the next columns are updated once a "
                "second",
            ),
            Column(
                "total_ns",
                "INTEGER",
                "total time of its executions; null: it has no kernels of its own",
            ),
            Column("least_ns", "INTEGER", "time of the fastest execution"),
            Column("most_ns", "INTEGER", "time of the slowest execution"),
            Column(
                "digest",
                "INTEGER",
                "digest of all its statistics, by step and iteration",
            ),
            Column(
                "fused_into",
                "INTEGER",
                "op in whose kernel it runs, where several run as one; null: not in another's",
            ),
        ),
        key=("run", "op"),
        indices=(Index(("run", "site")), Index(("site", "run"))),
        rowid=False,
    ),
    Table(
        "results",
        "One row per result of an op.",
        (
            RUN,
            Column("op", "INTEGER", "number of the op in its run"),
            Column("result", "INTEGER", "index among the op's results, from 0"),
            Column("name", "TEXT", "name in its graph"),
            Column("dtype", "TEXT", "f32, i64, …"),
            Column("shape", "TEXT", "JSON list of dims"),
            Column("nbytes", "INTEGER", "size in bytes"),
        ),
        key=("run", "op", "result"),
        indices=(Index(("run", "name")),),
        rowid=False,
    ),
    Table(
        "buffers",
        "The buffers in memory of a run's plans. Tensors may share a buffer, one after another; it "
        "is named after the first.",
        (
            RUN,
            Column("plan", "INTEGER", "number of the first op of its plan"),
            Column("buffer", "INTEGER", "its number in the plan"),
            Column("caller", "INTEGER", "the op that calls the plan; null for the main plan"),
            Column("kind", "TEXT", "temporary, workspace (of an op), input, param, state or const"),
            Column("name", "TEXT", "path of its tensor, main/features:p/c; null for a workspace"),
            Column("type", "TEXT", "type of that tensor, such as f32[8, 4]"),
            Column("nbytes", "INTEGER", "size in bytes"),
            Column("first_op", "INTEGER", "first op that runs while it is in use"),
            Column("last_op", "INTEGER", "last op that runs while it is in use"),
        ),
        key=("run", "plan", "buffer"),
        rowid=False,
    ),
    Table(
        "steps",
        "One row per finished step.",
        (
            RUN,
            Column("step", "INTEGER", "step of the run, from 0; -1: before the first"),
            Column("start_ns", "INTEGER", "start time, ns on the clock of the run's began_ns"),
            Column("end_ns", "INTEGER", "end time"),
        ),
        key=("run", "step"),
        rowid=False,
    ),
    Table(
        "executions",
        "One row for each execution of an op, and for each look at an input, param or state.",
        (
            RUN,
            Column("execution", "INTEGER", "number in its run; increases with time in a stream"),
            Column("step", "INTEGER", "step of the run, from 0"),
            Column("op", "INTEGER", "number of the op in its run"),
            Column("stream", "INTEGER", "stream that it ran on; -1: the host (control flow)"),
            Column(
                "activation", "INTEGER", "number of its plan's activation, one per iteration; or -1"
            ),
            Column("turn", "INTEGER", "iteration of the loop that it runs in"),
            Column(
                "start_ns",
                "INTEGER",
                "start of its first kernel, which fused ops share; null: it has no kernels",
            ),
            Column("end_ns", "INTEGER", "end of its last kernel"),
        ),
        key=("run", "execution"),
        rowid=False,
    ),
    Table(
        "stats",
        "One row for each tensor that an execution computed, and for each input, param and state "
        "that a step read, as it was before. min to absmax are over the finite elements.",
        (
            RUN,
            Column("execution", "INTEGER", "the execution that computed it"),
            Column("result", "INTEGER", "index among the op's results, from 0"),
            Column("step", "INTEGER", "step of the run, from 0"),
            Column("op", "INTEGER", "number of the op in its run"),
            Column("count", "INTEGER", "number of elements"),
            Column("min", "", "minimum (an INTEGER for integer dtypes)"),
            Column("max", "", "maximum (an INTEGER for integer dtypes)"),
            Column("mean", "REAL", "arithmetic mean"),
            Column("std", "REAL", "population standard deviation"),
            Column("l2", "REAL", "square root of the sum of squares"),
            Column("absmax", "", "largest magnitude (an INTEGER for integer dtypes)"),
            Column("nan", "INTEGER", "number of NaNs"),
            Column("posinf", "INTEGER", "number of +inf"),
            Column("neginf", "INTEGER", "number of -inf"),
            Column("zero", "INTEGER", "number of zeros"),
            Column("subnormal", "INTEGER", "number of subnormal elements"),
            Column("unwritten", "INTEGER", "elements never written; null if unknown"),
            Column("lowest", "INTEGER", "exponent of the histogram's first bin"),
            Column(
                "histogram",
                "TEXT",
                "JSON list: number of elements by floor(log2(abs(x))), from `lowest` up; the bins "
                "of -40 and 23 include all smaller and larger exponents",
            ),
        ),
        key=("run", "step", "op", "execution", "result"),
        indices=(Index(("run", "step"), where=BAD),),
        rowid=False,
    ),
    Table(
        "quantiles",
        "One row for each tensor with quantiles (--stats-also quantiles), over its finite "
        "elements; null if it has none. Quantiles are interpolated linearly between elements.",
        (
            *_TAKEN,
            Column("p1", "REAL", "1 % of the elements are below"),
            Column("p50", "REAL", "the median"),
            Column("p99", "REAL", "99 % of the elements are below"),
            Column("abs_p1", "REAL", "1 % of the magnitudes are below"),
            Column("abs_p50", "REAL", "the median magnitude"),
            Column("abs_p99", "REAL", "99 % of the magnitudes are below"),
        ),
        key=_BY_STEP,
        rowid=False,
    ),
    Table(
        "signed",
        "One row for each tensor with histograms by sign (--stats-also signed). The bins are "
        "those of `stats`.",
        (
            *_TAKEN,
            Column("negative_lowest", "INTEGER", "exponent of the first bin of `negative`"),
            Column("negative", "TEXT", "JSON list: number of elements below 0, by exponent"),
            Column("positive_lowest", "INTEGER", "exponent of the first bin of `positive`"),
            Column("positive", "TEXT", "JSON list: number of elements above 0, by exponent"),
        ),
        key=_BY_STEP,
        rowid=False,
    ),
    Table(
        "channels",
        "One row for each channel of a tensor with two or more axes (--stats-also channels), for "
        "at most 4,096 channels. Computed over the finite elements.",
        (
            *_TAKEN,
            Column("channel", "INTEGER", "index along axis 1, or the axis that `runs.also` names"),
            Column("finite", "INTEGER", "number of finite elements"),
            Column("min", "", "minimum (an INTEGER for integer dtypes)"),
            Column("max", "", "maximum (an INTEGER for integer dtypes)"),
            Column("zero", "INTEGER", "number of zeros"),
        ),
        key=(*_BY_STEP, "channel"),
        rowid=False,
    ),
    Table(
        "tensors",
        "Saved tensors, by name. Their bytes are in `blobs`.",
        (
            Column("id", "INTEGER", "number of the tensor in this file"),
            Column("name", "TEXT", "name of the tensor"),
            Column("run", "INTEGER", "the run that saved it; null: saved by hand", "runs"),
            Column("step", "INTEGER", "the step after which it was saved; -1: before the first"),
            Column("kind", "TEXT", "input, param, state, output or saved"),
            Column("checkpoint", "INTEGER", "the checkpoint that it belongs to", "checkpoints"),
            Column("dtype", "TEXT", "f32, bf16, i64, …"),
            Column("shape", "TEXT", "JSON list of dims"),
            Column("nbytes", "INTEGER", "size in bytes"),
            Column("digest", "TEXT", "BLAKE2b-128 of its bytes: equal tensors are stored once"),
            Column("saved", "TEXT", "time of saving, UTC, ISO 8601"),
        ),
        indices=(Index(("name",)), Index(("run",)), Index(("digest",))),
    ),
    Table(
        "blobs",
        "Bytes of tensors: little-endian, row-major; large tensors in parts.",
        (
            Column("digest", "TEXT", "BLAKE2b-128 of all parts"),
            Column("part", "INTEGER", "number of the part, from 0"),
            Column("data", "BLOB", "up to 64 MiB"),
        ),
        key=("digest", "part"),
    ),
    Table(
        "checkpoints",
        "Snapshots of all named tensors.",
        (
            Column("id", "INTEGER", "number of the checkpoint in this file"),
            RUN,
            Column("step", "INTEGER", "the step after which it was saved; -1: before the first"),
            Column(
                "kind",
                "TEXT",
                "start, kept: the values a rerun from the next step needs; end: the final values; "
                "train: all that training goes on from",
            ),
            Column("saved", "TEXT", "time of saving, UTC, ISO 8601"),
            Column("format", "INTEGER", "of train: version of its format; the next columns, too"),
            Column("epoch", "INTEGER", "epoch of the next batch, from 0"),
            Column("batch", "INTEGER", "number of the next batch in its epoch, from 0"),
            Column("rows", "INTEGER", "rows of a batch"),
            Column("seed", "INTEGER", "seed for the order of the data and for initial values"),
            Column("metric", "TEXT", "the figure of validations that the best is known by"),
            Column("score", "REAL", "its value, where it was the best of the run so far"),
        ),
        indices=(Index(("run",)),),
    ),
    Table(
        "findings",
        "Problems found during a run.",
        (
            Column("id", "INTEGER", "number of the finding in this file"),
            RUN,
            Column("step", "INTEGER", "step of the run, from 0"),
            Column("op", "INTEGER", "number of the op at fault in its run, if any"),
            Column(
                "kind",
                "TEXT",
                "nan, inf (the first op whose result has one; not an infinity that the program "
                "itself writes, such as a mask's, while it does not come out), unwritten, error, "
                "cut (nothing is recorded from this step on); from a hunt: origin, uninitialised, "
                "masked, unrepeated; from opstep train --watch: condition",
            ),
            Column("value", "TEXT", "name of the tensor"),
            Column("file", "TEXT", "file of the statement at fault"),
            Column("line", "INTEGER", "line of the statement at fault"),
            Column("message", "TEXT", "description of the problem"),
        ),
        indices=(Index(("run",)),),
    ),
    Table(
        "metrics",
        "Scalars by step: outputs of rank 0, and `seconds`, the duration of the step. Of training: "
        "`loss`, `epoch` at the end of an epoch, and what a validation gave, `validation.loss`.",
        (
            RUN,
            Column("step", "INTEGER", "step of the run, from 0"),
            Column("name", "TEXT", "name of the output, `seconds`, `epoch` or `validation.NAME`"),
            Column("value", "REAL", "its value; NaN is null, infinities are 9e999 and -9e999"),
        ),
        key=("run", "step", "name"),
        rowid=False,
    ),
)
