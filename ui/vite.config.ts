import { fileURLToPath } from "node:url";
import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";
import { firstLoadBudget } from "./build/budget.ts";

const FIRST_LOAD_LIMIT = 200_000;

export default defineConfig({
  // Relative URLs, so that the page also works below a path of a reverse proxy.
  base: "./",
  plugins: [react(), tailwindcss(), firstLoadBudget(FIRST_LOAD_LIMIT)],
  build: {
    outDir: fileURLToPath(new URL("../src/gradeline/web", import.meta.url)),
    emptyOutDir: true,
    // The content security policy allows no data: URLs.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/api": { target: "http://127.0.0.1:8000", changeOrigin: true } } },
  test: { environment: "jsdom", include: ["tests/**/*.test.{ts,tsx}"] },
});
