// Bundles the extension (Node), its web entry, and one script and style sheet for each webview.
import { existsSync, readdirSync, rmSync } from "node:fs";
import { resolve } from "node:path";
import esbuild from "esbuild";
import { writeNotices } from "./notices.mjs";

const production = process.argv.includes("--production");
const watch = process.argv.includes("--watch");

/** `import text from "./some.ts?source"`: a script bundled into a text, to make a worker of. */
const sources = {
  name: "sources",
  setup(build) {
    build.onResolve({ filter: /\?source$/ }, ({ path, resolveDir }) => ({
      path: resolve(resolveDir, path.replace(/\?source$/, "")),
      namespace: "source",
    }));
    build.onLoad({ filter: /.*/, namespace: "source" }, async ({ path }) => {
      const made = await esbuild.build({
        entryPoints: [path],
        bundle: true,
        write: false,
        metafile: true,
        minify: production,
        format: "iife",
        target: common.target,
        logLevel: "silent",
      });
      return {
        contents: made.outputFiles[0].text,
        loader: "text",
        watchFiles: Object.keys(made.metafile.inputs).map((file) => resolve(file)),
      };
    });
  },
};

const common = {
  plugins: [sources],
  loader: { ".opg": "text" },
  bundle: true,
  minify: production,
  sourcemap: production ? false : "linked",
  logLevel: "info",
  target: "es2022",
};

/** Webviews are the folders of webview/ that have a main.ts; its style is main.css beside it. */
function webviews() {
  const entries = {};
  for (const folder of readdirSync("webview", { withFileTypes: true })) {
    const base = `webview/${folder.name}/main`;
    if (folder.isDirectory() && existsSync(`${base}.ts`)) {
      entries[folder.name] = `${base}.ts`;
    }
  }
  return entries;
}

/** Style sheets that no script imports are entries of their own. */
function styles() {
  const entries = {};
  for (const name of Object.keys(webviews())) {
    if (existsSync(`webview/${name}/main.css`)) {
      entries[name] = `webview/${name}/main.css`;
    }
  }
  return entries;
}

const host = {
  ...common,
  entryPoints: ["src/extension.ts"],
  outfile: "dist/extension.js",
  platform: "node",
  format: "cjs",
  external: ["vscode"],
  // ES modules of dependencies first: their CommonJS twins hide requires from the bundler.
  mainFields: ["module", "main"],
};

const builds = [
  host,
  { ...host, entryPoints: ["src/web.ts"], outfile: "dist/web.js", platform: "browser" },
  {
    ...common,
    entryPoints: webviews(),
    outdir: "dist/webview",
    platform: "browser",
    format: "iife",
  },
  { ...common, entryPoints: styles(), outdir: "dist/webview" },
].filter((options) => Object.keys(options.entryPoints).length > 0);

if (production) {
  rmSync("dist", { recursive: true, force: true });
}
if (watch) {
  await Promise.all(builds.map(async (options) => (await esbuild.context(options)).watch()));
} else {
  const built = await Promise.all(
    builds.map((options) => esbuild.build({ ...options, metafile: true })),
  );
  writeNotices(
    built.map(({ metafile }) => metafile),
    "dist/THIRD-PARTY-NOTICES.txt",
  );
}
