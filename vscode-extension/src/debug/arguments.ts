/** The arguments of a run: inputs from files beside the program, sizes of symbolic dims, weights. */

import { type GraphHead, type Input, type Program, symbolsOf } from "./graphs";

/** As in a launch configuration. */
type Inputs = string | string[] | Record<string, unknown>;

export interface RunArguments {
  inputs?: Inputs;
  /** `{"N": 32}`, or `["N=32"]`. */
  symbols?: Record<string, number | string> | string[];
  params?: string;
}

/** A file beside the program; archives with the names of their arrays. */
export interface DataFile {
  name: string;
  keys?: string[];
}

/** The inputs of a graph from files beside it, random where there is none; undefined where it takes none. */
export function findInputs(graph: GraphHead, stem: string, files: DataFile[]): Inputs | undefined {
  if (graph.inputs.length === 0) {
    return undefined;
  }
  const found: Record<string, string> = {};
  for (const input of graph.inputs) {
    const source = sourceOf(input, stem, files);
    if (source) {
      found[input.name] = source;
    }
  }
  if (Object.keys(found).length === 0) {
    return "random";
  }
  return Object.fromEntries(graph.inputs.map((i) => [i.name, found[i.name] ?? "random"]));
}

/** `x.npy`, `model.x.npy`, `model.npz:x`, any archive with `x`, then any with `…_x`. */
function sourceOf(input: Input, stem: string, files: DataFile[]): string | undefined {
  const named = [`${stem}.${input.name}.npy`, `${stem}_${input.name}.npy`, `${input.name}.npy`];
  const single = named.find((name) => files.some((file) => file.name === name));
  if (single) {
    return single;
  }
  const archives = files
    .filter((file) => file.keys)
    .sort((a, b) => Number(b.name === `${stem}.npz`) - Number(a.name === `${stem}.npz`));
  const whole = archives.find((file) => file.keys?.includes(input.name));
  if (whole) {
    return `${whole.name}:${input.name}`;
  }
  for (const archive of archives) {
    const key = archive.keys?.find((k) => k.endsWith(`_${input.name}`));
    if (key) {
      return `${archive.name}:${key}`;
    }
  }
  return undefined;
}

/** Weights of the program's own name. */
export function findParams(program: Program, stem: string, files: DataFile[]): string | undefined {
  const name = `${stem}.safetensors`;
  return program.hasParams && files.some((file) => file.name === name) ? name : undefined;
}

/** Sizes by name, however they are written; a word that is none is left to the debugger to refuse. */
export function sizesOf(symbols: RunArguments["symbols"]): Record<string, number | string> {
  if (!Array.isArray(symbols)) {
    return symbols ?? {};
  }
  return Object.fromEntries(
    symbols.map((word) => {
      const [name = "", size = ""] = String(word)
        .split("=")
        .map((part) => part.trim());
      return [name, /^\d+$/.test(size) ? Number(size) : size];
    }),
  );
}

/** Symbols whose sizes neither the configuration nor the shape of a given array tells. */
export function unboundSymbols(graph: GraphHead, args: RunArguments): string[] {
  const bound = new Set(Object.keys(sizesOf(args.symbols)));
  for (const input of graph.inputs) {
    if (hasShape(sourceFor(input.name, args.inputs))) {
      for (const symbol of symbolsOf([input])) {
        bound.add(symbol);
      }
    }
  }
  return symbolsOf(graph.inputs).filter((symbol) => !bound.has(symbol));
}

/** `: N of x: f32[N, 3]`, where the graph's inputs name a symbol as it is. */
export function exampleOf({ inputs }: GraphHead, symbols: readonly string[]): string {
  for (const symbol of symbols) {
    const input = inputs.find(({ dims }) => dims.includes(symbol));
    if (input) {
      return `: ${symbol} of ${input.name}: ${input.dtype}[${input.dims.join(", ")}]`;
    }
  }
  return "";
}

function sourceFor(name: string, inputs: Inputs | undefined): unknown {
  if (inputs === undefined || typeof inputs === "string") {
    return inputs?.startsWith(`${name}=`) ? inputs.slice(name.length + 1) : undefined;
  }
  if (Array.isArray(inputs)) {
    const word = inputs.find((i) => i.startsWith(`${name}=`));
    return word?.slice(name.length + 1);
  }
  return inputs[name];
}

/** A list, or a file: what has a shape of its own. */
function hasShape(source: unknown): boolean {
  return (
    Array.isArray(source) ||
    (typeof source === "string" && /\.(npy|npz|safetensors)(:|$)/.test(source))
  );
}

/** `N=4, K=5`, or `4` where one is asked for. Throws an Error that says what is wrong. */
export function parseSizes(text: string, symbols: string[]): Record<string, number> {
  const sizes: Record<string, number> = {};
  const parts = text.split(/[\s,;]+(?![^=]*=\s*$)/).filter(Boolean);
  for (const part of parts) {
    const match = /^(?:([A-Za-z_]\w*)=)?(\d+)$/.exec(part);
    const name = match?.[1] ?? (symbols.length === 1 ? symbols[0] : undefined);
    if (!match || !name) {
      throw new Error(`${part}: write ${example(symbols)}`);
    }
    if (!symbols.includes(name)) {
      throw new Error(`the graph has no dimension ${name}; wanted: ${symbols.join(", ")}`);
    }
    sizes[name] = Number(match[2]);
  }
  const missing = symbols.filter((name) => !(name in sizes));
  if (missing.length > 0) {
    throw new Error(`no size for ${missing.join(", ")}`);
  }
  return sizes;
}

function example(symbols: string[]): string {
  return symbols.map((name, i) => `${name}=${4 + i}`).join(", ");
}

/** The same in the words of the command line. */
export function toOptions(args: RunArguments): string[] {
  const options: string[] = [];
  const { inputs } = args;
  if (typeof inputs === "string") {
    options.push("--input", inputs);
  } else if (Array.isArray(inputs)) {
    options.push(...inputs.flatMap((word) => ["--input", word]));
  } else if (inputs) {
    options.push(...Object.entries(inputs).flatMap(([n, source]) => ["--input", `${n}=${source}`]));
  }
  for (const [name, size] of Object.entries(sizesOf(args.symbols))) {
    options.push("--symbol", `${name}=${size}`);
  }
  if (args.params) {
    options.push("--params", args.params);
  }
  return options;
}
