// @vitest-environment node
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import openapiTS, { astToString } from "openapi-typescript";
import { expect, test } from "vitest";
import { firstLoad } from "../build/budget.ts";

test("the first load is the entry and what it imports, each once; what is loaded later does not count", () => {
  const part = (fileName: string, isEntry: boolean, imports: string[]) => ({
    fileName,
    code: fileName.repeat(50),
    isEntry,
    imports,
  });
  const parts = [
    part("main.js", true, ["a.js", "b.js"]),
    part("a.js", false, ["b.js"]),
    part("b.js", false, ["a.js"]),
    part("page.js", false, ["a.js"]),
  ];
  const size = (name: string) => gzipSync(name.repeat(50)).length;
  expect(firstLoad(parts)).toBe(size("main.js") + size("a.js") + size("b.js"));
});

test("the types are those of openapi.json; if not, run: npm run types", async () => {
  const document = JSON.parse(readFileSync(new URL("../openapi.json", import.meta.url), "utf8"));
  const ast = await openapiTS(document, { emptyObjectsUnknown: true, defaultNonNullable: false });
  const stored = readFileSync(new URL("../src/api/schema.ts", import.meta.url), "utf8");
  const body = (text: string) => text.replace(/^\/\*\*[\s\S]*?\*\/\s*/, "").trim();
  expect(body(stored)).toBe(body(astToString(ast)));
}, 30_000);
