/** Files of environment variables (.env), as the Python extension reads them. */

const LINE = /^\s*(?:export\s+)?([A-Za-z_][\w.]*)\s*=\s*(.*?)\s*$/;
const QUOTED = /^(['"])([\s\S]*)\1(?:\s+#.*)?$/;

/** The variables of a file; `${NAME}` in a value is one above it, or of `around`. */
export function parseEnvFile(
  text: string,
  around: Record<string, string | undefined>,
): Record<string, string> {
  const found: Record<string, string> = {};
  for (const line of text.replace(/^\uFEFF/, "").split(/\r?\n/)) {
    const [, name, written = ""] = LINE.exec(line) ?? [];
    if (name) {
      found[name] = read(written, { ...around, ...found });
    }
  }
  return found;
}

function read(written: string, known: Record<string, string | undefined>): string {
  const [, quote, inside] = QUOTED.exec(written) ?? [];
  if (quote === "'") {
    return inside ?? "";
  }
  const text = quote ? (inside ?? "").replace(/\\n/g, "\n") : written.replace(/(^|\s+)#.*$/, "");
  return text.replace(/(\\?)\$\{(\w+)\}/g, (whole, escaped: string, name: string) =>
    escaped ? whole.slice(1) : (known[name] ?? ""),
  );
}
