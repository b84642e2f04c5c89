import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { environment: "jsdom", include: ["widget/**/*.test.ts", "lab/src/**/*.test.ts"] },
});
