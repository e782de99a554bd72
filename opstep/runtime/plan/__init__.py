"""From a verified graph to a schedule: streams, events, memory, and the check for hazards."""
