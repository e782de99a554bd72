/** A folder of a window's own, with what `fixtures/` has. */

import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

import { HERE } from "./paths";

const FIXTURES = join(HERE, "fixtures");

export class Folder {
  private named = 0;

  private constructor(
    private readonly root: string,
    readonly path: string,
  ) {}

  static async make(): Promise<Folder> {
    const root = await mkdtemp(join(tmpdir(), "opstep-"));
    const folder = new Folder(root, join(root, "graphs"));
    await cp(FIXTURES, folder.path, { recursive: true });
    return folder;
  }

  /** Makes it again as it was made; files that still are remain. */
  async restore(): Promise<void> {
    for (const name of await readdir(this.path)) {
      const [now, made] = [this.at(name), join(FIXTURES, name)].map((path) =>
        readFile(path).catch(() => undefined),
      );
      if (!(await now)?.equals((await made) ?? Buffer.of()))
        await rm(this.at(name), { recursive: true, force: true, maxRetries: 5 });
    }
    await cp(FIXTURES, this.path, { recursive: true, force: false });
  }

  at(name: string): string {
    return join(this.path, name);
  }

  async write(name: string, text: string): Promise<void> {
    await mkdir(dirname(this.at(name)), { recursive: true });
    await writeFile(this.at(name), text);
  }

  /** A name that no window remembers sizes for: a window remembers them by file and graph. */
  unused(name: string): string {
    return name.replace(".", `-${++this.named}.`);
  }

  read(name: string): Promise<string> {
    return readFile(this.at(name), "utf8");
  }

  async delete(name: string): Promise<void> {
    await rm(this.at(name));
  }

  /** Settings of this folder alone. */
  settings(values: Record<string, unknown>): Promise<void> {
    return this.write(".vscode/settings.json", JSON.stringify(values));
  }

  launch(...configurations: Record<string, unknown>[]): Promise<void> {
    const named = configurations.map((c) => ({
      type: "opstep",
      request: "launch",
      name: "graph",
      ...c,
    }));
    return this.write(
      ".vscode/launch.json",
      JSON.stringify({ version: "0.2.0", configurations: named }),
    );
  }

  remove(): Promise<void> {
    return rm(this.root, { recursive: true, force: true, maxRetries: 5 });
  }
}
