"""Matrix products as they were written: exporters give ``x @ w.T`` as a transpose, which our
language computes, and a product; here they become one node again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto

MICROSOFT = "com.microsoft"
FLAGS = ("transA", "transB")


def with_folded_transposes(nodes: Sequence[NodeProto], results: Collection[str]) -> list[NodeProto]:
    """The nodes with transposes taken into the products that they are for; those that nobody else
    reads are gone.
    """
    from onnx import NodeProto, helper

    sources = {n.output[0]: n.input[0] for n in nodes if _swaps(n)}
    if not sources:
        return list(nodes)
    folded: list[NodeProto] = []
    for node in nodes:
        if (node.op_type, node.domain) == ("MatMul", "") and sources.keys() & set(node.input):
            product = NodeProto()
            product.CopyFrom(node)
            product.op_type, product.domain = "FusedMatMul", MICROSOFT
            for k, name in enumerate(node.input):
                if name in sources:
                    product.input[k] = sources[name]
                    product.attribute.append(helper.make_attribute(FLAGS[k], 1))
            node = product
        folded.append(node)
    read = {*results, *_read(folded)}
    return [n for n in folded if not (_swaps(n) and n.output[0] not in read)]


def _swaps(node: NodeProto) -> bool:
    """Whether it transposes the last two axes."""
    if (node.op_type, node.domain) != ("Transpose", "") or len(node.input) != 1:
        return False
    perm = [list(a.ints) for a in node.attribute if a.name == "perm"]
    rank = len(perm[0]) if perm else 0
    return rank > 1 and perm[0] == [*range(rank - 2), rank - 1, rank - 2]


def _read(nodes: Sequence[NodeProto]) -> Iterator[str]:
    """Names that nodes read, and those in graphs of theirs."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                yield from (o.name for o in graph.output)
                yield from _read(graph.node)
