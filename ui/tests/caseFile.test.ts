import { expect, test } from "vitest";
import { csvRecords, formatOf, parseChecks, readCaseFile } from "../src/pages/cases/caseFile.ts";

test("the format is detected by the file name", () => {
  expect(["a.CSV", "a.jsonl", "a.ndjson", "a.txt"].map(formatOf)).toEqual(["csv", "jsonl", "jsonl", null]);
});

test("JSONL: valid rows are parsed, every problem has its line", () => {
  const file =
    '\ufeff{"input":"a","expected_output":"b","tags":["x"]}\n\n{"input":""}\nno json\n[1]\n{"input":"a","expected_output":1,"more":2}\n';
  const { rows, problems } = readCaseFile(file, "jsonl");
  expect(rows).toEqual([{ line: 1, input: "a", expected_output: "b", description: null, tags: ["x"], checks: null }]);
  expect(problems.map(({ line, field }) => [line, field])).toEqual([
    [3, "input"],
    [3, "expected_output"],
    [4, null],
    [5, null],
    [6, "more"],
    [6, "expected_output"],
  ]);
});

test("CSV: quotes, line breaks in cells, CRLF and escaped formulas; line numbers are physical", () => {
  const file = 'input,expected_output,description,tags\r\n"a ""b""\nc",d,,x;y\r\n\'=1+1,e,why,\r\n';
  expect(readCaseFile(file, "csv")).toEqual({
    rows: [
      { line: 2, input: 'a "b"\nc', expected_output: "d", description: null, tags: ["x", "y"], checks: null },
      { line: 4, input: "=1+1", expected_output: "e", description: "why", tags: [], checks: null },
    ],
    problems: [],
  });
});

test("checks are read in both formats; what is not a list of them is a problem", () => {
  const checks = [{ condition: "contains", value: 'a,"b"' }];
  const cell = JSON.stringify(checks).replaceAll('"', '""');
  const csv = readCaseFile(`input,expected_output,checks\na,b,"${cell}"\na,b,\na,b,[{\na,b,7\n`, "csv");
  expect(csv.rows.map((row) => row.checks)).toEqual([checks, null]);
  expect(csv.problems.map(({ line, field }) => [line, field])).toEqual([
    [4, "checks"],
    [5, "checks"],
  ]);
  const lines = [checks, null, [7], { condition: "contains" }].map((own) =>
    JSON.stringify({ input: "a", expected_output: "b", checks: own }),
  );
  const jsonl = readCaseFile(lines.join("\n"), "jsonl");
  expect(jsonl.rows.map((row) => row.checks)).toEqual([checks, null]);
  expect(jsonl.problems).toEqual([3, 4].map((line) => ({ line, field: "checks", message: "is not a list of checks" })));
});

test("checks in a text are JSON or nothing", () => {
  expect(parseChecks(" \n")).toEqual({ checks: null, problem: null });
  expect(parseChecks('[{"judge": "is polite"}]')).toEqual({ checks: [{ judge: "is polite" }], problem: null });
  expect(parseChecks('"x"').problem).toBe("is not a list of checks in JSON");
  expect(parseChecks("[{").problem).toMatch(/^is not valid JSON: ./);
});

test("the fields of an export that an import ignores are no problem", () => {
  const line = { id: "i", input: "a", expected_output: "b", checks: null, created_at: "t", modified_at: "t" };
  expect(readCaseFile(JSON.stringify(line), "jsonl").problems).toEqual([]);
});

test("CSV without required columns names them", () => {
  expect(readCaseFile("question,answer\na,b\n", "csv").problems).toEqual([
    { line: 1, field: "input", message: "is missing from the columns" },
    { line: 1, field: "expected_output", message: "is missing from the columns" },
  ]);
});

test("lengths are counted in code points, tags are validated", () => {
  const row = (input: string, tags: string[]) =>
    readCaseFile(JSON.stringify({ input, expected_output: "b", tags }), "jsonl").problems;
  expect(row("😀".repeat(10_000), [])).toEqual([]);
  expect(row("😀".repeat(10_001), []).map((problem) => problem.field)).toEqual(["input"]);
  expect(row("a", ["ok-1_", "not ok", "ü"]).map((problem) => problem.field)).toEqual(["tags", "tags"]);
});

test("an empty file has no records", () => {
  expect(csvRecords("")).toEqual([]);
});
