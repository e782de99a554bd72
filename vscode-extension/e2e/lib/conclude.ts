/** After the suite: every DAP message that was exchanged is held against the protocol's schema. */

import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";

import { BUILD, HERE, python } from "./paths";

export default function conclude(): void {
  const folder = join(BUILD, "messages");
  if (existsSync(folder)) {
    execFileSync(python(), [join(HERE, "check_messages.py"), folder], { stdio: "inherit" });
  }
}
