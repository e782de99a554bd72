"""The schema of a workspace: tables, columns and indices, each with its description.

`docs/workspace.md` and the viewer's texts are generated from this. Every change to the structure
needs a new `VERSION` and a migration (`store.MIGRATIONS`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from opstep.trace.workspace.views import BAD

VERSION = 6
APPLICATION = 0x6F707374  # "opst", PRAGMA application_id: no other SQLite file has it


class Column(NamedTuple):
    name: str
    type: str  # INTEGER, REAL, TEXT, BLOB; "" for numbers that are either INTEGER or REAL
    what: str
    references: str = ""  # the table whose `id` it holds
    required: bool = False  # never null, as keys are


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


_COLUMN = r" *(\w+) ([A-Z]+)(!?)(?: -> (\w+))?: "
_TEXT = re.compile(rf"^{_COLUMN}(.+(?:\n(?!{_COLUMN}).+)*)", re.MULTILINE)


def columns(text: str) -> tuple[Column, ...]:
    """Columns, each as ``name TYPE: what it holds``. NUMBER is a type of INTEGER and REAL. One
    with ``!`` is never null; with ``-> runs`` before the colon it holds an `id` of that table.
    """
    return tuple(
        Column(name, "" if type == "NUMBER" else type, " ".join(what.split()), of, bool(required))
        for name, type, required, of, what, *_ in _TEXT.findall(text)
    )


# The tensor that a row of optional statistics describes.
_TAKEN = columns("""
    run INTEGER -> runs: the run
    step INTEGER: step of the run, from 0; -1: before the first
    op INTEGER: number of the op in its run
    execution INTEGER: the execution that computed it
    result INTEGER: index among the op's results, from 0
""")
DETAILS = ("quantiles", "signed", "channels")  # tables of optional statistics
_BY_STEP = ("run", "step", "op", "execution", "result")

TABLES = (
    Table(
        "runs",
        "One row per run: what ran, how, and how it ended.",
        columns("""
        id INTEGER: number of the run in this file
        key TEXT!: identifies the run, also in timelines: 8 hexadecimal digits
        began TEXT!: start time, UTC, ISO 8601
        began_ns INTEGER!: the same time on the clock of start_ns and end_ns
        ended TEXT: end time, UTC; null while it runs, or if it was killed
        seconds REAL: duration; while it runs, up to the end of the last step
        status TEXT!: running, done, incomplete (done, but the disk filled up), failed or
            interrupted
        error TEXT: the error message it failed with
        file TEXT: path of the program's file
        program TEXT!: text of the program
        graph TEXT!: the graph that ran
        device TEXT!: the name of its device, such as cuda:1
        streams INTEGER!: number of streams that the plan could use
        alloc TEXT!: reuse or fresh
        fill TEXT!: none or nan
        sync TEXT!: none or op
        threads INTEGER: threads per op; null: all cores
        seed INTEGER!: seed for the initial values of params
        steps INTEGER!: number of finished and recorded steps
        repeatable INTEGER!: how many steps, from the first, ran on the saved inputs
        selection TEXT!: tensors whose statistics were computed (--stats)
        every INTEGER!: interval of steps between statistics (--stats-every)
        arena_bytes INTEGER: memory for the temporary tensors of the main plan
        param_bytes INTEGER: memory for params and states
        trace TEXT: path of the timeline recorded with it, or null
        version TEXT!: version of opstep
        host TEXT!: name of the machine
        pid INTEGER!: process that ran it
        kernels TEXT: kernels on a GPU: auto, numba or vendor (--kernels)
        name TEXT: name given to the run (--name), or null
        command TEXT: command line of its process
        digest TEXT!: SHA-256 of the program's text
        keep_inputs INTEGER: interval of steps between saves of what a rerun needs (--keep-inputs);
            0: none
        also TEXT: optional statistics (--stats-also)
        parent INTEGER: id of the run whose checkpoint it went on from
        parent_step INTEGER: number of steps of `parent` before that checkpoint
        """),
        indices=(Index(("key",), unique=True),),
    ),
    Table(
        "settings",
        "Named settings of a run: its tags and scalar inputs.",
        columns("""
        run INTEGER -> runs: the run
        kind TEXT!: tag (--tag) or input (of the first step)
        name TEXT!: name, such as lr
        value NUMBER: its value: a number if it is one, otherwise text
        """),
        key=("run", "kind", "name"),
        indices=(Index(("name",)),),
    ),
    Table(
        "ops",
        "One row per op in the plans of a run.",
        columns("""
        run INTEGER -> runs: the run
        op INTEGER: number of the op in its run; inputs and named tensors: < 0
        name TEXT!: name of the op, such as conv2d or while; or input, param, state
        site TEXT!: its frame and first result, main/features:p/c: same in all runs
        plan TEXT!: graph of the plan that contains it
        graph TEXT!: graph that contains its statement
        frame TEXT: the calls that lead to it, such as main/features:p
        file TEXT: file of its statement, possibly one of the library
        line INTEGER: line of its statement, from 1
        statement TEXT: text of the statement
        operands TEXT!: JSON: names and types of its operands
        sources TEXT!: JSON: for each operand its [op, result]; 0: a number; null: from another plan
        attrs TEXT!: JSON: its attributes
        stream INTEGER!: stream that the plan assigns it to
        bytes INTEGER: bytes read and written by one execution of its kernels; 0 if it is fused
        flops INTEGER: floating-point operations of one execution of its kernels; 0 if it is fused
        live_bytes INTEGER: bytes of temporary tensors while it runs, including its callers'
        executions INTEGER: how often it ran, in recorded steps; this and the next columns are
            updated once a second
        total_ns INTEGER: total time of its executions; null: it has no kernels of its own
        least_ns INTEGER: time of the fastest execution
        most_ns INTEGER: time of the slowest execution
        digest INTEGER: digest of all its statistics, by step and iteration
        fused_into INTEGER: op in whose kernel it runs, where several run as one; null: not in
            another's
        """),
        key=("run", "op"),
        indices=(Index(("run", "site")), Index(("site", "run"))),
        rowid=False,
    ),
    Table(
        "results",
        "One row per result of an op.",
        columns("""
        run INTEGER -> runs: the run
        op INTEGER: number of the op in its run
        result INTEGER: index among the op's results, from 0
        name TEXT!: name in its graph
        dtype TEXT!: f32, i64, …
        shape TEXT!: JSON list of dims
        nbytes INTEGER!: size in bytes
        """),
        key=("run", "op", "result"),
        indices=(Index(("run", "name")),),
        rowid=False,
    ),
    Table(
        "buffers",
        "The buffers in memory of a run's plans. Tensors may share a buffer, one after another; it "
        "is named after the first.",
        columns("""
        run INTEGER -> runs: the run
        plan INTEGER: number of the first op of its plan
        buffer INTEGER: its number in the plan
        caller INTEGER: the op that calls the plan; null for the main plan
        kind TEXT!: temporary, workspace (of an op), input, param, state or const
        name TEXT: path of its tensor, main/features:p/c; null for a workspace
        type TEXT: type of that tensor, such as f32[8, 4]
        nbytes INTEGER!: size in bytes
        first_op INTEGER!: first op that runs while it is in use
        last_op INTEGER!: last op that runs while it is in use
        """),
        key=("run", "plan", "buffer"),
        rowid=False,
    ),
    Table(
        "steps",
        "One row per finished step.",
        columns("""
        run INTEGER -> runs: the run
        step INTEGER: step of the run, from 0; -1: before the first
        start_ns INTEGER!: start time, ns on the clock of the run's began_ns
        end_ns INTEGER!: end time
        """),
        key=("run", "step"),
        rowid=False,
    ),
    Table(
        "executions",
        "One row for each execution of an op, and for each look at an input, param or state.",
        columns("""
        run INTEGER -> runs: the run
        execution INTEGER: number in its run; increases with time in a stream
        step INTEGER!: step of the run, from 0
        op INTEGER!: number of the op in its run
        stream INTEGER!: stream that it ran on; -1: the host (control flow)
        activation INTEGER: number of its plan's activation, one per iteration; or -1
        turn INTEGER: iteration of the loop that it runs in
        start_ns INTEGER: start of its first kernel, which fused ops share; null: it has no kernels
        end_ns INTEGER: end of its last kernel
        """),
        key=("run", "execution"),
        rowid=False,
    ),
    Table(
        "stats",
        "One row for each tensor that an execution computed, and for each input, param and state "
        "that a step read, as it was before. min to absmax are over the finite elements.",
        columns("""
        run INTEGER -> runs: the run
        execution INTEGER: the execution that computed it
        result INTEGER: index among the op's results, from 0
        step INTEGER: step of the run, from 0
        op INTEGER: number of the op in its run
        count INTEGER!: number of elements
        min NUMBER: minimum (an INTEGER for integer dtypes)
        max NUMBER: maximum (an INTEGER for integer dtypes)
        mean REAL: arithmetic mean
        std REAL: population standard deviation
        l2 REAL: square root of the sum of squares
        absmax NUMBER: largest magnitude (an INTEGER for integer dtypes)
        nan INTEGER!: number of NaNs
        posinf INTEGER!: number of +inf
        neginf INTEGER!: number of -inf
        zero INTEGER!: number of zeros
        subnormal INTEGER!: number of subnormal elements
        unwritten INTEGER: elements never written; null if unknown
        lowest INTEGER: exponent of the histogram's first bin
        histogram TEXT: JSON list: number of elements by floor(log2(abs(x))), from `lowest` up; the
            bins of -40 and 23 include all smaller and larger exponents
        """),
        key=("run", "step", "op", "execution", "result"),
        indices=(Index(("run", "step"), where=BAD),),
        rowid=False,
    ),
    Table(
        "quantiles",
        "One row for each tensor with quantiles (--stats-also quantiles), over its finite "
        "elements; null if it has none. Quantiles are interpolated linearly between elements.",
        _TAKEN
        + columns("""
        p1 REAL: 1 % of the elements are below
        p50 REAL: the median
        p99 REAL: 99 % of the elements are below
        abs_p1 REAL: 1 % of the magnitudes are below
        abs_p50 REAL: the median magnitude
        abs_p99 REAL: 99 % of the magnitudes are below
        """),
        key=_BY_STEP,
        rowid=False,
    ),
    Table(
        "signed",
        "One row for each tensor with histograms by sign (--stats-also signed). The bins are "
        "those of `stats`.",
        _TAKEN
        + columns("""
        negative_lowest INTEGER: exponent of the first bin of `negative`
        negative TEXT: JSON list: number of elements below 0, by exponent
        positive_lowest INTEGER: exponent of the first bin of `positive`
        positive TEXT: JSON list: number of elements above 0, by exponent
        """),
        key=_BY_STEP,
        rowid=False,
    ),
    Table(
        "channels",
        "One row for each channel of a tensor with two or more axes (--stats-also channels), for "
        "at most 4,096 channels. Computed over the finite elements.",
        _TAKEN
        + columns("""
        channel INTEGER: index along axis 1, or the axis that `runs.also` names
        finite INTEGER!: number of finite elements
        min NUMBER: minimum (an INTEGER for integer dtypes)
        max NUMBER: maximum (an INTEGER for integer dtypes)
        zero INTEGER!: number of zeros
        """),
        key=(*_BY_STEP, "channel"),
        rowid=False,
    ),
    Table(
        "tensors",
        "Saved tensors, by name. Their bytes are in `blobs`.",
        columns("""
        id INTEGER: number of the tensor in this file
        name TEXT!: name of the tensor
        run INTEGER -> runs: the run that saved it; null: saved by hand
        step INTEGER: the step after which it was saved; -1: before the first
        kind TEXT!: input, param, state, output or saved
        checkpoint INTEGER -> checkpoints: the checkpoint that it belongs to
        dtype TEXT!: f32, bf16, i64, …
        shape TEXT!: JSON list of dims
        nbytes INTEGER!: size in bytes
        digest TEXT!: BLAKE2b-128 of its bytes: equal tensors are stored once
        saved TEXT!: time of saving, UTC, ISO 8601
        """),
        indices=(Index(("name",)), Index(("run",)), Index(("digest",))),
    ),
    Table(
        "blobs",
        "Bytes of tensors: little-endian, row-major; large tensors in parts.",
        columns("""
        digest TEXT: BLAKE2b-128 of all parts
        part INTEGER: number of the part, from 0
        data BLOB!: up to 64 MiB
        """),
        key=("digest", "part"),
    ),
    Table(
        "checkpoints",
        "Snapshots of all named tensors.",
        columns("""
        id INTEGER: number of the checkpoint in this file
        run INTEGER! -> runs: the run
        step INTEGER!: the step after which it was saved; -1: before the first
        kind TEXT!: start, kept: the values a rerun from the next step needs; end: the final values;
            train: all that training goes on from
        saved TEXT!: time of saving, UTC, ISO 8601
        format INTEGER: of train: version of its format; the next columns, too
        epoch INTEGER: epoch of the next batch, from 0
        batch INTEGER: number of the next batch in its epoch, from 0
        rows INTEGER: rows of a batch
        seed INTEGER: seed for the order of the data and for initial values
        metric TEXT: the figure of validations that the best is known by
        score REAL: its value, where it was the best of the run so far
        """),
        indices=(Index(("run",)),),
    ),
    Table(
        "findings",
        "Problems found during a run.",
        columns("""
        id INTEGER: number of the finding in this file
        run INTEGER! -> runs: the run
        step INTEGER!: step of the run, from 0
        op INTEGER: number of the op at fault in its run, if any
        kind TEXT!: nan, inf (the first op whose result has one; not an infinity that the program
            itself writes, such as a mask's, while it does not come out), unwritten, error, cut
            (nothing is recorded from this step on); from a hunt: origin, uninitialised, masked,
            unrepeated; from opstep train --watch: condition
        value TEXT: name of the tensor
        file TEXT: file of the statement at fault
        line INTEGER: line of the statement at fault
        message TEXT!: description of the problem
        """),
        indices=(Index(("run",)),),
    ),
    Table(
        "metrics",
        "Scalars by step: outputs of rank 0, and `seconds`, the duration of the step. Of training: "
        "`loss`, `epoch` at the end of an epoch, and what a validation gave, `validation.loss`.",
        columns("""
        run INTEGER -> runs: the run
        step INTEGER: step of the run, from 0
        name TEXT!: name of the output, `seconds`, `epoch` or `validation.NAME`
        value REAL: its value; NaN is null, infinities are 9e999 and -9e999
        """),
        key=("run", "step", "name"),
        rowid=False,
    ),
)
