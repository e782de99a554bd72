"""Random programs of smooth ops with calls, branches, loops and updates, for tests of gradients."""

from __future__ import annotations

import random

HEAD = """param w: f64[3] = normal(std=0.5, seed=1)
param v: f64[3] = normal(std=0.5, seed=2)
state s: f64[3] = normal(std=0.5, seed=3)
state t: f64[3] = normal(std=0.5, seed=4)
"""
TENSORS = ("w", "v", "s", "t")
STATES = ("s", "t")


class Writer:
    """Graphs ``g0``, ``g1``, …, which take and return two vectors each, and ``loss`` of them."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.graphs: list[str] = []
        self.bodies: list[str] = []

    def text(self) -> str:
        for _ in range(self.random.randint(2, 5)):
            self._graph()
        lines, values = self._lines(["x", "y"], calls=3)
        total = self._line(lines, "total", f"mul({values[-1]}, {values[-2]})")
        lines += [f"l = sum({total})", "return l"]
        body = "".join(f"  {line}\n" for line in lines)
        self.graphs.append(f"graph loss(x: f64[3], y: f64[3]) -> f64[] {{\n{body}}}\n")
        return HEAD + "\n" + "\n".join(self.graphs)

    def _graph(self) -> None:
        name = f"g{len(self.bodies)}"
        lines, values = self._lines(["x", "y"], calls=self.random.randint(0, 2))
        lines.append(f"return {self.random.choice(values)}, {self.random.choice(values)}")
        body = "".join(f"  {line}\n" for line in lines)
        head = f"graph {name}(x: f64[3], y: f64[3]) -> f64[3], f64[3] {{\n"
        self.graphs.append(f"{head}{body}}}\n")
        self.bodies.append(name)

    def _line(self, lines: list[str], stem: str, text: str) -> str:
        name = f"{stem}{len(lines)}"
        lines.append(f"{name} = {text}")
        return name

    def _lines(self, values: list[str], calls: int) -> tuple[list[str], list[str]]:
        choose, lines = self.random.choice, []
        values = list(values)
        kinds = ["op"] * self.random.randint(2, 4) + ["call"] * (calls if self.bodies else 0)
        self.random.shuffle(kinds)
        for kind in kinds:
            a, b = choose([*values, *TENSORS]), choose([*values, *TENSORS])
            if kind == "call":
                values += self._call(lines, a, b)
            else:
                forms = [f"sin({a})", f"tanh({a})", f"mul({a}, {b})", f"add({a}, {b})"]
                raw = self._line(lines, "r", choose([*forms, f"sub({a}, {b})"]))
                values.append(self._line(lines, "h", f"mul({raw}, 0.7)"))
        for state in STATES:
            if self.random.random() < 0.35:
                lines.append(f"{state} <- {choose(values)}")
        return lines, values

    def _call(self, lines: list[str], a: str, b: str) -> list[str]:
        choose, k = self.random.choice, len(lines)
        results, graph = [f"p{k}", f"q{k}"], choose(self.bodies)
        head = ", ".join(results)
        kind = choose(["plain", "cond", "switch", "while", "while"])
        if kind == "plain":
            lines.append(f"{head} = {graph}({a}, {b})")
        elif kind == "while":
            lines.append(f"{head}, n{k} = while({a}, {b}, 0, {self._loop(graph)})")
        else:
            total = self._line(lines, "total", f"sum({choose([a, b])})")
            positive = self._line(lines, "positive", f"greater({total}, 0.1)")
            if kind == "cond":
                chosen = f"cond({positive}, {a}, {b}, then={graph}, else={choose(self.bodies)})"
            else:
                index = self._line(lines, "index", f"cast({positive}, dtype=i32)")
                cases = ", ".join([choose(self.bodies), graph])
                chosen = f"switch({index}, {a}, {b}, cases=[{cases}])"
            lines.append(f"{head} = {chosen}")
        return results

    def _loop(self, graph: str) -> str:
        """A loop of some turns, or one that may end before because of its values."""
        number = len(self.graphs)
        turns = self.random.choice([0, 1, 2, 3])
        types = "x: f64[3], y: f64[3], k: i32[]"
        test = f"  few = less(k, {turns})\n"
        if self.random.random() < 0.5:
            test += (
                "  total = sum(x)\n  small = less(total, 0.8)\n  more = logical_and(few, small)\n"
            )
        else:
            test += "  more = logical_and(few, few)\n"
        self.graphs += [
            f"graph more{number}({types}) -> bool[] {{\n{test}  return more\n}}\n",
            f"graph turn{number}({types}) -> f64[3], f64[3], i32[] {{\n"
            f"  a, b = {graph}(x, y)\n  n = add(k, 1)\n  return a, b, n\n}}\n",
        ]
        limit = self.random.choice([10, 1000])
        return f"test=more{number}, body=turn{number}, limit={limit}"
