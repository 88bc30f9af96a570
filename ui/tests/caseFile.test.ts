import { expect, test } from "vitest";
import { csvRecords, formatOf, readCaseFile } from "../src/pages/cases/caseFile.ts";

test("the format is detected by the file name", () => {
  expect(["a.CSV", "a.jsonl", "a.ndjson", "a.txt"].map(formatOf)).toEqual(["csv", "jsonl", "jsonl", null]);
});

test("JSONL: valid rows are parsed, every problem has its line", () => {
  const file =
    '\ufeff{"input":"a","expected_output":"b","tags":["x"]}\n\n{"input":""}\nno json\n[1]\n{"input":"a","expected_output":1,"more":2}\n';
  const { rows, problems } = readCaseFile(file, "jsonl");
  expect(rows).toEqual([{ line: 1, input: "a", expected_output: "b", description: null, tags: ["x"] }]);
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
      { line: 2, input: 'a "b"\nc', expected_output: "d", description: null, tags: ["x", "y"] },
      { line: 4, input: "=1+1", expected_output: "e", description: "why", tags: [] },
    ],
    problems: [],
  });
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
