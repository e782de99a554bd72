"""What a workspace holds: tables, columns and indices, each with its description.

`docs/workspace.md` and the viewer's texts are made from this. A change of it is a new `VERSION` and
a migration (`migrations`).
"""

from __future__ import annotations

from typing import NamedTuple

from opstep.trace.workspace.views import BAD

VERSION = 4
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
_TAKEN = (  # where a row of `stats` and what is taken beside it come from
    RUN,
    Column("step", "INTEGER", "step of the run, from 0; -1: before the first"),
    Column("op", "INTEGER", "number of the op in its run"),
    Column("execution", "INTEGER", "the execution that gave it"),
    Column("result", "INTEGER", "which of the op's results, from 0"),
)
_BY_STEP = ("run", "step", "op", "execution", "result")

TABLES = (
    Table(
        "runs",
        "One row per run: what ran, how, and how it ended.",
        (
            Column("id", "INTEGER", "number of the run in this file"),
            Column("key", "TEXT", "name of the run, in timelines too: 8 hexadecimal digits"),
            Column("began", "TEXT", "when, UTC, ISO 8601"),
            Column("began_ns", "INTEGER", "the same moment on the clock of start_ns and end_ns"),
            Column("ended", "TEXT", "when, UTC; null while it runs, and where it was killed"),
            Column(
                "seconds", "REAL", "from its beginning to its end; until then, to its last step's"
            ),
            Column(
                "status",
                "TEXT",
                "running, done, incomplete (done, and the file had no room for all of it), failed "
                "or interrupted",
            ),
            Column("error", "TEXT", "what it failed with, as it was shown"),
            Column("file", "TEXT", "path of the program's file"),
            Column("program", "TEXT", "the program's text"),
            Column("graph", "TEXT", "the graph that ran"),
            Column("device", "TEXT", "the name of its device, such as cuda:1"),
            Column("streams", "INTEGER", "streams that the plan could use"),
            Column("alloc", "TEXT", "reuse or fresh"),
            Column("fill", "TEXT", "none or nan"),
            Column("sync", "TEXT", "none or op"),
            Column("threads", "INTEGER", "threads that share an op's work; null: all cores"),
            Column("seed", "INTEGER", "of the params that initialisers draw"),
            Column("steps", "INTEGER", "steps that were finished, and are recorded"),
            Column(
                "repeatable",
                "INTEGER",
                "the first so many steps ran on the inputs that are kept, the others on their own",
            ),
            Column("selection", "TEXT", "whose statistics were taken (--stats)"),
            Column("every", "INTEGER", "statistics of each so many steps (--stats-every)"),
            Column("arena_bytes", "INTEGER", "memory of all temporary tensors of its main plan"),
            Column("param_bytes", "INTEGER", "memory of its params and states"),
            Column("trace", "TEXT", "path of the timeline written beside it, or null"),
            Column("version", "TEXT", "of opstep"),
            Column("host", "TEXT", "name of the machine"),
            Column("pid", "INTEGER", "process that ran it"),
            Column("kernels", "TEXT", "on a GPU, whose: auto, numba or vendor (--kernels)"),
            Column("name", "TEXT", "what it was called (--name), or null"),
            Column("command", "TEXT", "the command line of its process"),
            Column("digest", "TEXT", "SHA-256 of the program's text: equal programs have one"),
            Column(
                "keep_inputs",
                "INTEGER",
                "of each so many steps all that a repeat needs is kept (--keep-inputs); 0: of none",
            ),
            Column("also", "TEXT", "what was taken beyond statistics (--stats-also)"),
        ),
        indices=(Index(("key",), unique=True),),
    ),
    Table(
        "settings",
        "What a run was given by name: its tags, and its inputs that are scalars.",
        (
            RUN,
            Column("kind", "TEXT", "tag (--tag) or input (of the first step)"),
            Column("name", "TEXT", "such as lr"),
            Column("value", "", "a number where it is one, else a text"),
        ),
        key=("run", "kind", "name"),
        indices=(Index(("name",)),),
    ),
    Table(
        "ops",
        "One row for each op of a run's plans, as it was planned.",
        (
            RUN,
            Column("op", "INTEGER", "number of the op in its run; inputs and named tensors: < 0"),
            Column(
                "name", "TEXT", "what it is: conv2d, relu, while, update; or input, param, state"
            ),
            Column(
                "site", "TEXT", "its frame and first result, main/features:p/c: same in all runs"
            ),
            Column("plan", "TEXT", "graph of the plan that holds it"),
            Column("graph", "TEXT", "graph whose text holds its statement"),
            Column("frame", "TEXT", "the calls that lead to it: main/features:p"),
            Column("file", "TEXT", "file of its statement; the library's have their own"),
            Column("line", "INTEGER", "line of its statement, from 1"),
            Column("statement", "TEXT", "the statement, printed"),
            Column("operands", "TEXT", "JSON: names and types of its operands"),
            Column(
                "sources",
                "TEXT",
                "JSON: for each operand [op, result] that gave it; 0: a number; null: another plan",
            ),
            Column("attrs", "TEXT", "JSON: its attributes"),
            Column("stream", "INTEGER", "stream that it was planned for"),
            Column("bytes", "INTEGER", "bytes read and written by one execution"),
            Column("flops", "INTEGER", "floating-point operations of one execution"),
            Column(
                "live_bytes",
                "INTEGER",
                "bytes of temporary tensors while it runs, its callers' too",
            ),
            Column(
                "executions",
                "INTEGER",
                "how often it ran; while it runs, this and what follows are written once a second",
            ),
            Column("total_ns", "INTEGER", "time of all its executions; null: it has no kernels"),
            Column("least_ns", "INTEGER", "time of the quickest"),
            Column("most_ns", "INTEGER", "time of the slowest"),
            Column(
                "digest",
                "INTEGER",
                "of all its statistics with their steps and turns: equal where all are equal",
            ),
        ),
        key=("run", "op"),
        indices=(Index(("run", "site")), Index(("site", "run"))),
        rowid=False,
    ),
    Table(
        "results",
        "The tensors that an op gives, by name.",
        (
            RUN,
            Column("op", "INTEGER", "number of the op in its run"),
            Column("result", "INTEGER", "which of its results, from 0"),
            Column("name", "TEXT", "name in its graph"),
            Column("dtype", "TEXT", "f32, i64, …"),
            Column("shape", "TEXT", "JSON list of dims"),
            Column("nbytes", "INTEGER", "its size"),
        ),
        key=("run", "op", "result"),
        indices=(Index(("run", "name")),),
        rowid=False,
    ),
    Table(
        "buffers",
        "What a run's plans hold in memory. Tensors that follow one another may share a buffer; it "
        "is named after the first.",
        (
            RUN,
            Column("plan", "INTEGER", "number of the first op of its plan"),
            Column("buffer", "INTEGER", "its number in the plan"),
            Column("caller", "INTEGER", "the op that calls the plan; null for the run's own"),
            Column("kind", "TEXT", "temporary, workspace (of an op), input, param, state or const"),
            Column("name", "TEXT", "path of its tensor, main/features:p/c; null for a workspace"),
            Column("type", "TEXT", "of that tensor, f32[8, 4]"),
            Column("nbytes", "INTEGER", "its size"),
            Column("first_op", "INTEGER", "the first op that runs while it is held"),
            Column("last_op", "INTEGER", "the last one"),
        ),
        key=("run", "plan", "buffer"),
        rowid=False,
    ),
    Table(
        "steps",
        "One row per step that has ended.",
        (
            RUN,
            Column("step", "INTEGER", "step of the run, from 0; -1: before the first"),
            Column("start_ns", "INTEGER", "when it began, ns of the clock of the run's began_ns"),
            Column("end_ns", "INTEGER", "when it ended"),
        ),
        key=("run", "step"),
        rowid=False,
    ),
    Table(
        "executions",
        "One row each time that an op ran.",
        (
            RUN,
            Column("execution", "INTEGER", "number in its run; in a stream they go up with time"),
            Column("step", "INTEGER", "step of the run, from 0"),
            Column("op", "INTEGER", "number of the op in its run"),
            Column("stream", "INTEGER", "stream that it ran on; -1: the host (control flow)"),
            Column(
                "activation", "INTEGER", "run of its plan, different for each turn of a loop; or -1"
            ),
            Column("turn", "INTEGER", "turn of the loop that its plan is the body or test of"),
            Column("start_ns", "INTEGER", "when its first kernel began; null: it has no kernels"),
            Column("end_ns", "INTEGER", "when its last kernel ended"),
        ),
        key=("run", "execution"),
        rowid=False,
    ),
    Table(
        "stats",
        "One row for each tensor that an execution gave. The figures are those of the finite "
        "elements.",
        (
            RUN,
            Column("execution", "INTEGER", "the execution that gave it"),
            Column("result", "INTEGER", "which of the op's results, from 0"),
            Column("step", "INTEGER", "step of the run, from 0"),
            Column("op", "INTEGER", "number of the op in its run"),
            Column("count", "INTEGER", "elements"),
            Column("min", "", "least (an INTEGER for integer dtypes)"),
            Column("max", "", "greatest (an INTEGER for integer dtypes)"),
            Column("mean", "REAL", "arithmetic mean"),
            Column("std", "REAL", "standard deviation of the population"),
            Column("l2", "REAL", "square root of the sum of squares"),
            Column("absmax", "", "greatest magnitude (an INTEGER for integer dtypes)"),
            Column("nan", "INTEGER", "NaNs"),
            Column("posinf", "INTEGER", "+inf"),
            Column("neginf", "INTEGER", "-inf"),
            Column("zero", "INTEGER", "zeros"),
            Column("subnormal", "INTEGER", "not 0, but below the dtype's smallest normal number"),
            Column("unwritten", "INTEGER", "never written; null where that is unknown"),
            Column("lowest", "INTEGER", "exponent of the histogram's first bin"),
            Column(
                "histogram",
                "TEXT",
                "JSON list: elements by floor(log2(abs(x))), from `lowest` up; the exponents -40 "
                "and 23 also count what is beyond",
            ),
        ),
        key=("run", "step", "op", "execution", "result"),
        indices=(Index(("run", "step"), where=BAD),),
        rowid=False,
    ),
    Table(
        "quantiles",
        "One row for each tensor whose quantiles were taken (--stats-also quantiles), of its "
        "finite elements; null where it has none. A quantile lies between two elements in "
        "proportion.",
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
        "One row for each tensor whose histogram was taken by sign (--stats-also signed): bins are "
        "those of `stats`.",
        (
            *_TAKEN,
            Column("negative_lowest", "INTEGER", "exponent of the first bin of `negative`"),
            Column("negative", "TEXT", "JSON list: negative elements by floor(log2(abs(x)))"),
            Column("positive_lowest", "INTEGER", "exponent of the first bin of `positive`"),
            Column("positive", "TEXT", "JSON list: likewise, of elements above 0"),
        ),
        key=_BY_STEP,
        rowid=False,
    ),
    Table(
        "channels",
        "One row for each channel of a tensor of two axes or more, where they are wanted "
        "(--stats-also channels), and of at most 4,096 of them. Figures are those of the finite "
        "elements.",
        (
            *_TAKEN,
            Column("channel", "INTEGER", "place along axis 1, or the axis that `runs.also` names"),
            Column("finite", "INTEGER", "elements that are neither NaN nor infinite"),
            Column("min", "", "least (an INTEGER for integer dtypes)"),
            Column("max", "", "greatest (an INTEGER for integer dtypes)"),
            Column("zero", "INTEGER", "zeros"),
        ),
        key=(*_BY_STEP, "channel"),
        rowid=False,
    ),
    Table(
        "tensors",
        "Tensors that are kept, by name. Their bytes are in `blobs`.",
        (
            Column("id", "INTEGER", "number of the tensor in this file"),
            Column("name", "TEXT", "its name; the file is a workspace of named tensors"),
            Column("run", "INTEGER", "the run that it is from; null: saved by hand", "runs"),
            Column("step", "INTEGER", "the step after which it was kept; -1: before the first"),
            Column("kind", "TEXT", "input, param, state, output or saved"),
            Column("checkpoint", "INTEGER", "the checkpoint that it belongs to", "checkpoints"),
            Column("dtype", "TEXT", "f32, bf16, i64, …"),
            Column("shape", "TEXT", "JSON list of dims"),
            Column("nbytes", "INTEGER", "its size"),
            Column("digest", "TEXT", "BLAKE2b-128 of its bytes: equal tensors are stored once"),
            Column("saved", "TEXT", "when, UTC, ISO 8601"),
        ),
        indices=(Index(("name",)), Index(("run",)), Index(("digest",))),
    ),
    Table(
        "blobs",
        "Bytes of tensors: little-endian, row-major; large ones in parts.",
        (
            Column("digest", "TEXT", "BLAKE2b-128 of all parts"),
            Column("part", "INTEGER", "which part, from 0"),
            Column("data", "BLOB", "up to 64 MiB"),
        ),
        key=("digest", "part"),
    ),
    Table(
        "checkpoints",
        "Named tensors as they were together.",
        (
            Column("id", "INTEGER", "number of the checkpoint in this file"),
            RUN,
            Column("step", "INTEGER", "the step after which it was taken; -1: before the first"),
            Column(
                "kind",
                "TEXT",
                "start, kept: what a repeat from the next step on needs; end: what the run left "
                "behind",
            ),
            Column("saved", "TEXT", "when, UTC, ISO 8601"),
        ),
        indices=(Index(("run",)),),
    ),
    Table(
        "findings",
        "What is wrong with a run, found while it ran.",
        (
            Column("id", "INTEGER", "number of the finding in this file"),
            RUN,
            Column("step", "INTEGER", "step of the run, from 0"),
            Column("op", "INTEGER", "number of the op in its run, where one is at fault"),
            Column(
                "kind",
                "TEXT",
                "nan, inf (the first op whose result has one), unwritten, error, cut (from this "
                "step on nothing is recorded); of a hunt: origin, uninitialised, masked, "
                "unrepeated",
            ),
            Column("value", "TEXT", "name of the tensor"),
            Column("file", "TEXT", "file of the statement at fault"),
            Column("line", "INTEGER", "line of the statement at fault"),
            Column("message", "TEXT", "what was found"),
        ),
        indices=(Index(("run",)),),
    ),
    Table(
        "metrics",
        "Scalars by step: outputs of rank 0, and `seconds`, what the step took.",
        (
            RUN,
            Column("step", "INTEGER", "step of the run, from 0"),
            Column("name", "TEXT", "name of the output, or `seconds`"),
            Column("value", "REAL", "its value; NaN and infinities as null, 9e999 and -9e999"),
        ),
        key=("run", "step", "name"),
        rowid=False,
    ),
)
