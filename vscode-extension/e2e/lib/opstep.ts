/** The command line, for what a test needs to be there already. */

import { execFileSync } from "node:child_process";
import { join } from "node:path";

import { BUILD, python } from "./paths";

/** Where compiled kernels are kept between runs and servers, else each would compile them again. */
export const CACHE = process.env.OPSTEP_CACHE ?? join(BUILD, "kernels");

/** Runs `opstep ARGS`; what it writes to standard output. */
export function opstep(...args: string[]): string {
  return execFileSync(python(), ["-m", "opstep", ...args], {
    env: { ...process.env, OPSTEP_CACHE: CACHE },
    stdio: ["ignore", "pipe", "ignore"],
    encoding: "utf8",
  });
}
