import type { Checks } from "../../api/types.ts";

/** Parses a file of test cases in the browser for a preview; the server validates it again. */

interface CaseRow {
  line: number;
  input: string;
  expected_output: string;
  description: string | null;
  tags: string[];
  checks: Checks;
}

export interface RowProblem {
  line: number;
  field: string | null;
  message: string;
}

export interface CaseFile {
  rows: CaseRow[];
  problems: RowProblem[];
}

export type CaseFormat = "jsonl" | "csv";

const MAX_TEXT = 10_000;
const MAX_DESCRIPTION = 500;
const MAX_TAGS = 10;
const TAG = /^[A-Za-z0-9_-]{1,50}$/;
const FIELDS = new Set(["input", "expected_output", "description", "tags", "checks"]);
/** Fields of an export that an import ignores. */
const OWN = new Set(["id", "created_at", "modified_at"]);

export function formatOf(name: string): CaseFormat | null {
  if (/\.csv$/i.test(name)) return "csv";
  return /\.(jsonl|ndjson)$/i.test(name) ? "jsonl" : null;
}

export function readCaseFile(text: string, format: CaseFormat): CaseFile {
  const bare = text.replace(/^\ufeff/, "");
  return format === "csv" ? readCsv(bare) : readJsonl(bare);
}

/** The checks in a text; the server validates each of them. */
export function parseChecks(text: string): { checks: Checks; problem: string | null } {
  if (text.trim() === "") return { checks: null, problem: null };
  try {
    const value: unknown = JSON.parse(text);
    if (isChecks(value)) return { checks: value, problem: null };
    return { checks: null, problem: "is not a list of checks in JSON" };
  } catch (error) {
    return { checks: null, problem: `is not valid JSON: ${error instanceof Error ? error.message : ""}` };
  }
}

function isChecks(value: unknown): value is NonNullable<Checks> {
  return (
    Array.isArray(value) && value.every((item) => typeof item === "object" && item !== null && !Array.isArray(item))
  );
}

/** Validates one case by the server's rules, except its checks. */
export function validateCase(fields: Omit<CaseRow, "line" | "checks">): Omit<RowProblem, "line">[] {
  const problems: Omit<RowProblem, "line">[] = [];
  for (const field of ["input", "expected_output"] as const) {
    const length = [...fields[field]].length;
    if (fields[field].trim() === "") problems.push({ field, message: "is required" });
    else if (length > MAX_TEXT) problems.push({ field, message: `has ${length} characters; the maximum is 10,000` });
  }
  if ([...(fields.description ?? "")].length > MAX_DESCRIPTION) {
    problems.push({ field: "description", message: "has more than 500 characters" });
  }
  if (fields.tags.length > MAX_TAGS) problems.push({ field: "tags", message: "at most 10 tags are allowed" });
  for (const tag of fields.tags.filter((tag) => !TAG.test(tag))) {
    problems.push({
      field: "tags",
      message: `${JSON.stringify(tag)} is not a valid tag: use up to 50 letters, digits, - and _`,
    });
  }
  return problems;
}

function readJsonl(text: string): CaseFile {
  const file: CaseFile = { rows: [], problems: [] };
  for (const [index, content] of text.split(/\r\n|\n/).entries()) {
    if (content.trim() === "") continue;
    const line = index + 1;
    try {
      addRow(file, line, JSON.parse(content));
    } catch (error) {
      file.problems.push({
        line,
        field: null,
        message: `is not valid JSON: ${error instanceof Error ? error.message : ""}`,
      });
    }
  }
  return file;
}

function readCsv(text: string): CaseFile {
  const file: CaseFile = { rows: [], problems: [] };
  const [header, ...records] = csvRecords(text);
  const names = header?.cells.map((cell) => cell.trim()) ?? [];
  for (const name of ["input", "expected_output"]) {
    if (!names.includes(name)) file.problems.push({ line: 1, field: name, message: "is missing from the columns" });
  }
  if (file.problems.length > 0) return file;
  for (const { line, cells } of records) {
    const record = Object.fromEntries(names.map((name, index) => [name, withoutFormulaQuote(cells[index] ?? "")]));
    const { tags, description, checks, ...rest } = record;
    const split = (tags ?? "").split(";").map((tag) => tag.trim());
    const parsed = parseChecks(checks ?? "");
    if (parsed.problem !== null) file.problems.push({ line, field: "checks", message: parsed.problem });
    else
      addRow(file, line, {
        ...rest,
        description: description || null,
        tags: split.filter(Boolean),
        checks: parsed.checks,
      });
  }
  return file;
}

/** Exports prefix `'` to cells that a spreadsheet would run as a formula. */
function withoutFormulaQuote(cell: string): string {
  return /^'[=+\-@\t\r]/.test(cell) ? cell.slice(1) : cell;
}

function addRow(file: CaseFile, line: number, value: unknown): void {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    file.problems.push({ line, field: null, message: "is not an object" });
    return;
  }
  const record = value as Record<string, unknown>;
  const problems: Omit<RowProblem, "line">[] = [];
  for (const key of Object.keys(record).filter((key) => !FIELDS.has(key) && !OWN.has(key))) {
    problems.push({ field: key, message: "is not a field of a test case" });
  }
  const row: CaseRow = {
    line,
    input: stringField(record, "input", problems),
    expected_output: stringField(record, "expected_output", problems),
    description: record["description"] == null ? null : stringField(record, "description", problems),
    tags: tagsField(record["tags"], problems),
    checks: checksField(record["checks"], problems),
  };
  const wrong = new Set(problems.map((problem) => problem.field));
  problems.push(...validateCase(row).filter((problem) => !wrong.has(problem.field)));
  file.problems.push(...problems.map((problem) => ({ line, ...problem })));
  if (problems.length === 0) file.rows.push(row);
}

function stringField(record: Record<string, unknown>, field: string, problems: Omit<RowProblem, "line">[]): string {
  const value = record[field];
  if (typeof value === "string") return value;
  if (value !== undefined) problems.push({ field, message: "is not a string" });
  return "";
}

function tagsField(value: unknown, problems: Omit<RowProblem, "line">[]): string[] {
  if (value === undefined || value === null) return [];
  if (Array.isArray(value) && value.every((tag) => typeof tag === "string")) return value;
  problems.push({ field: "tags", message: "is not a list of strings" });
  return [];
}

function checksField(value: unknown, problems: Omit<RowProblem, "line">[]): Checks {
  if (value === undefined || value === null) return null;
  if (isChecks(value)) return value;
  problems.push({ field: "checks", message: "is not a list of checks" });
  return null;
}

interface CsvRecord {
  /** The first physical line of the record. */
  line: number;
  cells: string[];
}

export function csvRecords(text: string): CsvRecord[] {
  const records: CsvRecord[] = [];
  let cells: string[] = [];
  let cell = "";
  let quoted = false;
  let line = 1;
  let recordLine = 1;
  const endRecord = () => {
    if (cells.length > 0 || cell !== "") records.push({ line: recordLine, cells: [...cells, cell] });
    cells = [];
    cell = "";
  };
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at] ?? "";
    if (char === "\n") line += 1;
    if (quoted) {
      if (char !== '"') cell += char;
      else if (text[at + 1] === '"') {
        cell += char;
        at += 1;
      } else quoted = false;
    } else if (char === '"' && cell === "") quoted = true;
    else if (char === ",") {
      cells.push(cell);
      cell = "";
    } else if (char === "\n") {
      endRecord();
      recordLine = line;
    } else if (char !== "\r") cell += char;
  }
  endRecord();
  return records;
}
