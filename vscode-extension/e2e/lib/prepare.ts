/** Before the suite: what is missing is said, kernels are compiled, messages of the last time go. */

import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { join } from "node:path";

import { BUILD, chromium, codeServer, HERE, python, vsix } from "./places";

export default function prepare(): void {
  chromium();
  codeServer();
  vsix();
  rmSync(join(BUILD, "messages"), { recursive: true, force: true });
  rmSync(join(BUILD, "code-server.log"), { force: true });
  const cache = process.env.OPSTEP_CACHE ?? join(BUILD, "kernels");
  for (const name of ["entropy.opg"]) {
    const sizes = ["--input", "random", "--symbol", "N=4", "--symbol", "K=5"];
    execFileSync(python(), ["-m", "opstep", "run", join(HERE, "fixtures", name), ...sizes], {
      env: { ...process.env, OPSTEP_CACHE: cache },
      stdio: "ignore",
    });
  }
}
