import { expect, it } from "vitest";
import { graphInSight } from "../src/sight";

const open = ["/f/last.opg", "/f/other.opg"];

it("takes the graph that has the focus, whatever is debugged", () => {
  const sight = { focused: "/f/a.opg", debugged: "/f/b.opg", open };
  expect(graphInSight(sight)).toBe("/f/a.opg");
});

it("takes what is debugged where a kernel's source or a page of ours has the focus", () => {
  expect(graphInSight({ focused: "/f/relu.py", debugged: "/f/b.opg", open })).toBe("/f/b.opg");
  expect(graphInSight({ debugged: "/f/b.opg", open })).toBe("/f/b.opg");
});

it("takes the one that was used last among those in sight", () => {
  expect(graphInSight({ focused: "/f/train.py", debugged: "/f/train.py", open })).toBe(open[0]);
  expect(graphInSight({ open })).toBe(open[0]);
  expect(graphInSight({ focused: "/f/train.py", open: ["/f/notes.md"] })).toBeUndefined();
});
