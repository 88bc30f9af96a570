import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";

export interface BundleChunk {
  fileName: string;
  code: string;
  isEntry: boolean;
  /** Chunks fetched together with it. */
  imports: readonly string[];
}

/** Gzipped size in bytes of the JavaScript that a first visit fetches. */
export function firstLoad(parts: readonly BundleChunk[]): number {
  const byName = new Map(parts.map((part) => [part.fileName, part]));
  const needed = new Set<string>();
  const queue = parts.filter((part) => part.isEntry).map((part) => part.fileName);
  for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
    if (needed.has(name)) continue;
    needed.add(name);
    queue.push(...(byName.get(name)?.imports ?? []));
  }
  return [...needed].reduce((sum, name) => sum + gzipSync(byName.get(name)?.code ?? "").length, 0);
}

/** Fails the build if the first load exceeds `limit` bytes. */
export function firstLoadBudget(limit: number): Plugin {
  return {
    name: "first-load-budget",
    apply: "build",
    writeBundle(_, bundle) {
      const size = firstLoad(Object.values(bundle).filter((part) => part.type === "chunk"));
      const shown = `${(size / 1000).toFixed(1)} KB gz of ${(limit / 1000).toFixed(0)} KB`;
      if (size > limit) {
        throw new Error(`The first load is ${shown} of JavaScript: load a page or a component lazily`);
      }
      console.log(`first load: ${shown}`);
    },
  };
}
