import { describe, expect, it } from "vitest";
import {
  firstPlot,
  formatPlot,
  keysOf,
  parsePlot,
  plotName,
  withFigure,
  withValue,
} from "../../shared/query/plotText";

describe("a plot's text", () => {
  it.each([
    "stats.absmax",
    "metrics.loss where run=*",
    "stats.absmax where op=conv2d|linear, run=last, step=0..99",
    "executions.seconds where op=matmul",
    "metrics.validation.loss where run=3f2a",
  ])("%s is the same after it was taken apart", (text) => {
    expect(formatPlot(parsePlot(text))).toBe(text);
  });

  it("names a metric without its table", () => {
    expect(parsePlot("loss where run=*").figure).toBe("metrics.loss");
    expect(parsePlot("validation.loss").figure).toBe("metrics.validation.loss");
  });

  it.each([
    ["metrics.loss where run=*", "loss"],
    ["validation.loss", "validation.loss"],
    ["stats.absmax where op=conv2d, run=last", "absmax of conv2d"],
    ["stats.mean where op=relu, value=y", "mean of y"],
    ["executions.seconds where op=*", "seconds"],
    ["", ""],
  ])("%s is called %s", (text, name) => {
    expect(plotName(text)).toBe(name);
  });

  it("that is not finished is read as far as it goes", () => {
    expect(parsePlot("")).toEqual({ figure: "", where: new Map() });
    expect(parsePlot("stats.mean where op=relu, ru").where).toEqual(new Map([["op", "relu"]]));
  });
});

describe("what is picked", () => {
  const plot = parsePlot("stats.absmax where op=relu, value=y, run=*, step=0..9");

  it("replaces what was written, and keeps the rest", () => {
    expect(formatPlot(withValue(plot, "op", "conv2d"))).toBe(
      "stats.absmax where op=conv2d, value=y, run=*, step=0..9",
    );
    expect(formatPlot(withValue(plot, "op", ""))).toBe(
      "stats.absmax where value=y, run=*, step=0..9",
    );
  });

  it("drops what another table is not narrowed down by", () => {
    expect(formatPlot(withFigure(plot, "stats.nan"))).toContain("op=relu, value=y");
    expect(formatPlot(withFigure(plot, "executions.seconds"))).toBe(
      "executions.seconds where op=relu, run=*, step=0..9",
    );
    expect(formatPlot(withFigure(plot, "metrics.loss"))).toBe(
      "metrics.loss where run=*, step=0..9",
    );
  });

  it("is offered where the table has it", () => {
    expect(keysOf("stats.mean")).toEqual(["op", "value", "run"]);
    expect(keysOf("metrics.loss")).toEqual(["run"]);
    expect(keysOf("")).toEqual([]);
  });

  it("begins with the loss", () => {
    expect(firstPlot(["accuracy", "loss", "seconds"])).toBe("metrics.loss");
    expect(firstPlot(["seconds", "accuracy"])).toBe("metrics.accuracy");
    expect(firstPlot(["seconds"])).toBe("stats.absmax");
  });
});
