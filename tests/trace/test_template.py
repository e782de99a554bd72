"""Packets that are filled in: only marks are replaced, whatever other bytes look like."""

from __future__ import annotations

import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from opstep.trace.perfetto import encode
from opstep.trace.template import Template, digits


def filled(packet: pb.TracePacket, number: int = 0) -> pb.TracePacket:
    template = Template(encode([packet]), [])
    data = template.fill(np.zeros((1, 0), np.int64), np.array([[number]], np.int64))
    return pb.Trace.FromString(data.tobytes()).packet[0]


@pytest.mark.parametrize("value", [23808, 1 << 14 | 186, 0x01010101])
def test_a_counter_is_not_taken_for_a_name(value):
    """23808 ends with the tag of a name, which the tag of what follows makes a name of digits."""
    event = pb.TrackEvent(extra_counter_values=[value], extra_counter_track_uuids=[4])
    packet = pb.TracePacket(track_event=event)
    assert filled(packet) == packet


def test_digits_of_a_name():
    packet = pb.TracePacket(track_event=pb.TrackEvent(name=f"step {digits(3)}"))
    assert filled(packet, 42).track_event.name == "step 042"
