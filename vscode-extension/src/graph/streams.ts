/** Which stream each line of a graph runs on, from the text of a plan (docs/plan.md). */

interface Frame {
  graph: string;
  parent: number;
  /** Of the call in the parent, from 1. */
  line: number;
}

const FRAME = /^ {2}f(\d+)\s+(\S+)\s+(?:-|f(\d+)\s+(?:\S+ )?line (\d+))\s*$/;
const STEP = /^ {2}(?:run|call)\s+s(\d+)\s+@\d+\s.*\|\s+f(\d+) (?:\S+ )?line (\d+)\s*$/;

/**
 * Streams by line, from 0. Of a graph that is called several times, those of its first call; a
 * call has the stream of what is in it, if that is one. Undefined where the plan has no such graph.
 */
export function streamsOf(text: string, graph: string): Record<number, number> | undefined {
  const frames: Frame[] = [];
  let chosen: number | undefined;
  const found = new Map<number, Set<number>>();
  const add = (line: number, stream: number) => {
    const at = found.get(line - 1) ?? new Set<number>();
    found.set(line - 1, at.add(stream));
  };
  for (const line of text.split("\n")) {
    // A plan of a graph that control flow calls follows: with frames of its own.
    if (line.startsWith("plan ")) {
      if (chosen !== undefined) {
        break;
      }
      frames.length = 0;
    }
    const frame = FRAME.exec(line);
    if (frame) {
      const [, number, name = "", parent, at] = frame;
      frames[Number(number)] = { graph: name, parent: Number(parent ?? -1), line: Number(at ?? 0) };
      chosen ??= name === graph ? Number(number) : undefined;
      continue;
    }
    const step = STEP.exec(line);
    if (step && chosen !== undefined) {
      const stream = Number(step[1]);
      let within = Number(step[2]);
      let at = Number(step[3]);
      while (within !== chosen && frames[within] !== undefined) {
        const around = frames[within] as Frame;
        at = around.line;
        within = around.parent;
      }
      if (within === chosen) {
        add(at, stream);
      }
    }
  }
  if (chosen === undefined) {
    return undefined;
  }
  const single = [...found].filter(([, streams]) => streams.size === 1);
  return Object.fromEntries(single.map(([line, streams]) => [line, [...streams][0] as number]));
}
