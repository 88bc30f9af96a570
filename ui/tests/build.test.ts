// @vitest-environment node
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import openapiTS, { astToString } from "openapi-typescript";
import { expect, test } from "vitest";
import { firstLoad } from "../build/budget.ts";

test("the first load counts the entry and its imports once, without lazily loaded chunks", () => {
  const chunk = (fileName: string, isEntry: boolean, imports: string[]) => ({
    fileName,
    code: fileName.repeat(50),
    isEntry,
    imports,
  });
  const chunks = [
    chunk("main.js", true, ["a.js", "b.js"]),
    chunk("a.js", false, ["b.js"]),
    chunk("b.js", false, ["a.js"]),
    chunk("page.js", false, ["a.js"]),
  ];
  const size = (name: string) => gzipSync(name.repeat(50)).length;
  expect(firstLoad(chunks)).toBe(size("main.js") + size("a.js") + size("b.js"));
});

test("schema.ts is up to date with openapi.json (run: npm run types)", async () => {
  const document = JSON.parse(readFileSync(new URL("../openapi.json", import.meta.url), "utf8"));
  const ast = await openapiTS(document, { emptyObjectsUnknown: true, defaultNonNullable: false });
  const stored = readFileSync(new URL("../src/api/schema.ts", import.meta.url), "utf8");
  const body = (text: string) => text.replace(/^\/\*\*[\s\S]*?\*\/\s*/, "").trim();
  expect(body(stored)).toBe(body(astToString(ast)));
}, 30_000);
