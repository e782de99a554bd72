"""The ops that a program's text applies, where plans run the graphs of composites."""

from __future__ import annotations

from opstep.runtime.debugger.activation import Node, Producer


def producer_of(node: Node) -> Producer | None:
    """The execution of the op of the text that a value is a result of: of a composite, where its
    graph was run. Values within a composite are those of the ops there.
    """
    producer = node.producer
    if producer is None or node.home is None:
        return producer
    activation, value = node.home
    plan = activation.plan
    around = plan.composite(producer.step.frame) if producer.plan is plan else -1
    step = plan.frames[around].step if around >= 0 else None
    if step is None or value not in step.results:
        return producer
    operands = [None if v is None else activation.operand(v, step.frame) for v in step.operands]
    results = [found[1] for v in step.results if (found := activation.env.get(v))]
    if len(results) < len(step.results):
        return producer  # it has not come to its end
    whole = Producer(plan, step, tuple(operands))
    whole.results = tuple(results)
    return whole


def index_of(node: Node, producer: Producer) -> int:
    """The number of a value among the results of what `producer_of` gives."""
    return next(k for k, result in enumerate(producer.results) if result is node)
