/** The language of plots taken apart, as far as pickers go: `stats.absmax where op=relu, run=*`. */

export interface PlotText {
  /** `stats.absmax`, `executions.seconds`, `metrics.loss`; "" where the text cannot be read. */
  figure: string;
  /** What stands behind `where`, as it is written: `op` to `conv2d|linear`. */
  where: Map<string, string>;
}

const TABLES = ["stats", "executions", "metrics"];
/** By which keys each table is narrowed down; as the language has them. */
const KEYS: Record<string, string[]> = {
  stats: ["op", "value", "run"],
  executions: ["op", "run"],
  metrics: ["run"],
};

export function parsePlot(text: string): PlotText {
  const found = /^\s*([\w.]+)\s*(?:where\s+(.*))?$/s.exec(text);
  const where = new Map<string, string>();
  for (const part of (found?.[2] ?? "").split(",")) {
    const [key = "", value] = part.split("=", 2);
    if (value !== undefined) {
      where.set(key.trim(), value.trim());
    }
  }
  const named = found?.[1] ?? "";
  const isTable = TABLES.includes(named.split(".", 1)[0] ?? "");
  return { figure: named === "" || isTable ? named : `metrics.${named}`, where };
}

export function formatPlot({ figure, where }: PlotText): string {
  const parts = [...where].filter(([, value]) => value !== "");
  const narrowed = parts.map(([key, value]) => `${key}=${value}`).join(", ");
  return narrowed === "" ? figure : `${figure} where ${narrowed}`;
}

/** The keys that pickers choose for a figure. */
export function keysOf(figure: string): string[] {
  return KEYS[figure.split(".", 1)[0] ?? ""] ?? [];
}

/** Another figure: what does not narrow its table down is dropped. */
export function withFigure({ figure, where }: PlotText, next: string): PlotText {
  const [before, after] = [keysOf(figure), keysOf(next)];
  const kept = [...where].filter(([key]) => after.includes(key) || !before.includes(key));
  const sameTable = figure.split(".", 1)[0] === next.split(".", 1)[0];
  return { figure: next, where: new Map(sameTable ? [...where] : kept) };
}

export function withValue({ figure, where }: PlotText, key: string, value: string): PlotText {
  return { figure, where: new Map([...where, [key, value]]) };
}

/** What is drawn before anything was asked for: the loss of a training run, else the largest magnitudes. */
export function firstPlot(metrics: readonly string[]): string {
  const metric = metrics.find((name) => name === "loss") ?? metrics.find((m) => m !== "seconds");
  return metric === undefined ? "stats.absmax" : `metrics.${metric}`;
}

/** What a panel is called by what was asked: `loss`, `absmax of conv2d`; "" where that has no name. */
export function plotName(text: string): string {
  const { figure, where } = parsePlot(text);
  const name = figure.replace(/^\w+\./, "");
  const of = where.get("value") ?? where.get("op");
  return name && of && of !== "*" ? `${name} of ${of}` : name;
}
