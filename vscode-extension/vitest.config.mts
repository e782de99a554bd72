import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["tests/**/*.test.ts"],
    // How long a test takes depends on what else the machine does.
    testTimeout: 0,
  },
});
