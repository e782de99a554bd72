/** Before the suite: what is missing is said, kernels are compiled, messages of the last time go. */

import { rmSync } from "node:fs";
import { join } from "node:path";

import { opstep } from "./opstep";
import { BUILD, chromium, codeServer, HERE, vsix } from "./paths";

export default function prepare(): void {
  chromium();
  codeServer();
  vsix();
  rmSync(join(BUILD, "messages"), { recursive: true, force: true });
  rmSync(join(BUILD, "code-server.log"), { force: true });
  const sizes = ["--input", "random", "--symbol", "N=4", "--symbol", "K=5"];
  opstep("run", join(HERE, "fixtures/entropy.opg"), ...sizes);
  for (const name of ["roots.opg", "small.opg"]) {
    opstep("run", join(HERE, "fixtures", name), "--input", "random");
  }
}
