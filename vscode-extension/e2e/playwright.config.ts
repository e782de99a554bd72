import { defineConfig } from "@playwright/test";

import { chromium } from "./lib/paths";

const TRUST = "trust.spec.ts";
/** Pictures and figures are taken where they are asked for. */
const unasked = [
  ...(process.env.OPSTEP_PICTURES ? [] : ["pictures.spec.ts"]),
  ...(process.env.OPSTEP_BENCH ? [] : ["bench.spec.ts"]),
];

/** 1280 x 800 is a laptop's window, and what the pictures of the guides are taken at. */
export default defineConfig({
  testDir: "tests",
  // What asks for a server with other settings comes first: at the end, the other worker would have nothing to do.
  projects: [
    { name: "trust", testMatch: TRUST },
    { name: "workbench", testIgnore: [TRUST, ...unasked] },
  ],
  outputDir: process.env.OPSTEP_E2E_RESULTS ?? "build/results",
  globalSetup: "./lib/prepare.ts",
  globalTeardown: "./lib/conclude.ts",
  workers: Number(process.env.OPSTEP_E2E_WORKERS ?? 2),
  retries: process.env.CI ? 1 : 0, // what passes the second time only is told as flaky
  fullyParallel: true, // the two workers end together
  // What is waited for comes at last, also on a machine that is busy: nobody waits longer than that. Each wait has
  // an end of its own, else one that is in vain would last as long as the test may.
  timeout: 300_000,
  expect: { timeout: 60_000, toPass: { timeout: 90_000, intervals: [100, 250] } },
  reporter: [["list"]],
  use: {
    browserName: "chromium",
    actionTimeout: 60_000,
    navigationTimeout: 60_000,
    viewport: { width: 1280, height: 800 },
    launchOptions: {
      executablePath: chromium(),
      args: [
        "--no-sandbox",
        // A window lives some minutes: compiling its hottest functions once more costs more than it gains.
        "--js-flags=--no-maglev --no-turbofan",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
      ],
    },
    permissions: ["clipboard-read", "clipboard-write"],
    screenshot: "only-on-failure",
    trace: process.env.OPSTEP_E2E_TRACE ? "retain-on-failure" : "off",
  },
});
