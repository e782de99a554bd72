"""Timelines: what writing one costs a run, how large it is, and how fast it is written and read."""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
from bench_runtime import EXAMPLES, bound, chain
from harness import SCRATCH, Measured, Timed, at_least, at_most, bench, times_peer

import opstep
from opstep.runtime.recording import (
    Activation,
    HostRecord,
    Launch,
    Layout,
    RunInfo,
    StreamRecord,
)
from opstep.trace.sink import Run, SinkReport, StepDone
from opstep.trace.timeline import TimelineSink

sys.path.append(str(Path(__file__).parent.parent / "tests" / "shared"))

OPS, STEPS = 1000, 1000
WHERE = "a trace of 1,000,000 ops"


def alexnet():
    program = opstep.load(EXAMPLES / "alexnet.opg")
    x = np.random.default_rng(0).standard_normal((32, 1, 224, 224), np.float32)
    return program, x


@bench("timeline of every op, AlexNet batch 32", peer="bare run", bars=[times_peer(1.03)])
def timeline_of_every_op():
    program, x = alexnet()
    recording = opstep.Recording(trace=SCRATCH / "alexnet.pftrace")
    recorded = bound(program, "main", {"x": x}, recording=recording)
    return Timed(recorded, bound(program, "main", {"x": x}), unit="ms", rounds=15)


@bench("torch.profiler with chrome export, AlexNet batch 32", peer="PyTorch eager, bare")
def torch_profiler():
    """Four steps and one export, as a person would take them."""
    import peers
    import torch
    from torch.profiler import ProfilerActivity, profile

    program, x = alexnet()
    weights = {k: torch.from_numpy(v.copy()) for k, v in program.params.items()}
    given, steps = torch.from_numpy(x), 4

    @torch.inference_mode()
    def bare():
        for _ in range(steps):
            peers.alexnet(given, weights)

    def profiled():
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as taken:
            bare()
        taken.export_chrome_trace(str(SCRATCH / "torch.json"))

    return Timed(profiled, bare, per=steps, unit="ms", rounds=7)


# --- a large trace --------------------------------------------------------------------------------


@cache
def written() -> tuple[SinkReport, float]:
    """A trace of a million ops, and the seconds that it took: a chain of relus, step by step, with
    arguments, flows and memory, flushed by step.
    """
    program = opstep.loads(chain(OPS, 8, op="relu(x{})"))
    plan = program.plan(symbols={"N": 8}, policy=opstep.policy(streams=1))
    layout = Layout(plan, [list(range(OPS))], [[]], [Launch(0, 0, OPS)])
    info = RunInfo(program, "chain", {}, plan.policy, "cpu", None, 0, STEPS)
    run = Run("0123abcd", info, time.time(), time.monotonic_ns(), "none", 1, {}, {})
    rng, none = np.random.default_rng(0), np.zeros((0, 2), np.int64)
    gaps = rng.integers(100, 50_000, (STEPS, 2 * OPS))  # no time is like another
    times = time.monotonic_ns() + np.cumsum(gaps).reshape(STEPS, OPS, 2)
    sink = TimelineSink(SCRATCH / "million.pftrace")
    began = time.perf_counter()
    sink.begin_run(run)
    for step, ops in enumerate(times):
        activation = Activation(step, step, layout)
        begin, end = int(ops[0, 0]), int(ops[-1, 1])
        launched = np.array([[begin - 50, begin - 20]])
        sink.add_record(run, HostRecord(activation, launched, none, none))
        sink.add_record(run, StreamRecord(activation, 0, ops, none, None))
        sink.end_step(run, StepDone(step, begin - 60, end, {}))
        sink.flush()
    told = sink.close()
    return told, time.perf_counter() - began


@bench(f"{WHERE}, written", peer="perfetto's StreamingTraceProtoBuilder, bare slices",
       bars=[at_least(150_000, "slices/s")])  # fmt: skip
def rate():
    told, seconds = written()
    return Measured(dict(told.counts)["slice"] / seconds, builder_rate(), unit="slices/s")


def builder_rate(slices: int = 20_000) -> float:
    """Slices a second without arguments and flows."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    began = time.perf_counter()
    with open(SCRATCH / "builder.pftrace", "wb") as file:
        builder = StreamingTraceProtoBuilder(file)
        kinds = [TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END]
        for ts in range(slices):
            for kind in kinds:
                packet = builder.create_packet()
                packet.timestamp = ts
                packet.trusted_packet_sequence_id = 1
                packet.track_event.type = kind
                packet.track_event.track_uuid = 1
                if kind == TrackEvent.TYPE_SLICE_BEGIN:
                    packet.track_event.name = "relu"
                builder.write_packet(packet)
    return slices / (time.perf_counter() - began)


@bench(f"{WHERE}, a slice with its arguments and flow", bars=[at_most(120, "bytes")])
def size():
    told, _ = written()
    return Measured(told.nbytes / dict(told.counts)["slice"], unit="bytes")


@bench(f"{WHERE}, loaded by Perfetto's engine: what it finds wrong", bars=[at_most(0, "errors")])
def errors():
    from opstep.trace.viewer.engine import Engine

    told, _ = written()
    wrong = "select count() from stats where severity != 'info' and value != 0"
    with Engine(told.path, timeout=300) as engine:
        found = {t: engine.query(f"select count() from {t}").rows[0][0] for t in ("slice", "flow")}
        (figures,) = engine.query(wrong).rows
    if found != {"slice": dict(told.counts)["slice"], "flow": dict(told.counts)["flow"]}:
        raise ValueError(f"the engine found {found}, of {told.counts}")
    return Measured(figures[0], unit="errors")
