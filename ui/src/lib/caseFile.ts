/** Reads a file of test cases in the browser, for a look at it before it is sent. The server decides. */

export interface Row {
  line: number;
  input: string;
  expected_output: string;
  description: string | null;
  tags: string[];
}

export interface RowFault {
  line: number;
  field: string | null;
  message: string;
}

export interface CaseFile {
  rows: Row[];
  faults: RowFault[];
}

export type CaseFormat = "jsonl" | "csv";

const LONGEST_TEXT = 10_000;
const LONGEST_DESCRIPTION = 500;
const MOST_TAGS = 10;
const TAG = /^[A-Za-z0-9_-]{1,50}$/;
const FIELDS = new Set(["input", "expected_output", "description", "tags"]);

export function formatOf(name: string): CaseFormat | null {
  if (/\.csv$/i.test(name)) return "csv";
  return /\.(jsonl|ndjson)$/i.test(name) ? "jsonl" : null;
}

export function readCaseFile(text: string, format: CaseFormat): CaseFile {
  const bare = text.replace(/^\ufeff/, "");
  return format === "csv" ? readCsv(bare) : readJsonl(bare);
}

/** What is wrong with the fields of one case; the same rules as the server's. */
export function faultsOf(fields: Omit<Row, "line">): Omit<RowFault, "line">[] {
  const faults: Omit<RowFault, "line">[] = [];
  for (const field of ["input", "expected_output"] as const) {
    const length = [...fields[field]].length;
    if (fields[field].trim() === "") faults.push({ field, message: "is required" });
    else if (length > LONGEST_TEXT) faults.push({ field, message: `has ${length} characters; at most 10,000 fit` });
  }
  if ([...(fields.description ?? "")].length > LONGEST_DESCRIPTION) {
    faults.push({ field: "description", message: "has more than 500 characters" });
  }
  if (fields.tags.length > MOST_TAGS) faults.push({ field: "tags", message: "has more than 10 tags" });
  for (const tag of fields.tags.filter((tag) => !TAG.test(tag))) {
    faults.push({ field: "tags", message: `${JSON.stringify(tag)} is no tag: letters, digits, - and _, at most 50` });
  }
  return faults;
}

function readJsonl(text: string): CaseFile {
  const file: CaseFile = { rows: [], faults: [] };
  for (const [index, content] of text.split(/\r\n|\n/).entries()) {
    if (content.trim() === "") continue;
    const line = index + 1;
    try {
      add(file, line, JSON.parse(content));
    } catch (error) {
      file.faults.push({ line, field: null, message: `is not JSON: ${error instanceof Error ? error.message : ""}` });
    }
  }
  return file;
}

function readCsv(text: string): CaseFile {
  const file: CaseFile = { rows: [], faults: [] };
  const [header, ...records] = csvRecords(text);
  const names = header?.cells.map((cell) => cell.trim()) ?? [];
  for (const name of ["input", "expected_output"]) {
    if (!names.includes(name)) file.faults.push({ line: 1, field: name, message: "is not among the columns" });
  }
  if (file.faults.length > 0) return file;
  for (const { line, cells } of records) {
    const given = Object.fromEntries(names.map((name, index) => [name, undefused(cells[index] ?? "")]));
    const { tags, description, ...rest } = given;
    const split = (tags ?? "").split(";").map((tag) => tag.trim());
    add(file, line, { ...rest, description: description || null, tags: split.filter(Boolean) });
  }
  return file;
}

/** An export puts one `'` before what a spreadsheet would run. */
function undefused(cell: string): string {
  return /^'[=+\-@\t\r]/.test(cell) ? cell.slice(1) : cell;
}

function add(file: CaseFile, line: number, value: unknown): void {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    file.faults.push({ line, field: null, message: "is not an object" });
    return;
  }
  const given = value as Record<string, unknown>;
  const faults: Omit<RowFault, "line">[] = [];
  for (const key of Object.keys(given).filter((key) => !FIELDS.has(key))) {
    faults.push({ field: key, message: "is not a field of a test case" });
  }
  const row: Row = {
    line,
    input: textOf(given, "input", faults),
    expected_output: textOf(given, "expected_output", faults),
    description: given["description"] == null ? null : textOf(given, "description", faults),
    tags: tagsOf(given["tags"], faults),
  };
  const wrong = new Set(faults.map((fault) => fault.field));
  faults.push(...faultsOf(row).filter((fault) => !wrong.has(fault.field)));
  file.faults.push(...faults.map((fault) => ({ line, ...fault })));
  if (faults.length === 0) file.rows.push(row);
}

function textOf(given: Record<string, unknown>, field: string, faults: Omit<RowFault, "line">[]): string {
  const value = given[field];
  if (typeof value === "string") return value;
  if (value !== undefined) faults.push({ field, message: "is not a text" });
  return "";
}

function tagsOf(value: unknown, faults: Omit<RowFault, "line">[]): string[] {
  if (value === undefined || value === null) return [];
  if (Array.isArray(value) && value.every((tag) => typeof tag === "string")) return value;
  faults.push({ field: "tags", message: "is not a list of texts" });
  return [];
}

interface CsvRecord {
  /** The physical line it begins on. */
  line: number;
  cells: string[];
}

export function csvRecords(text: string): CsvRecord[] {
  const records: CsvRecord[] = [];
  let cells: string[] = [];
  let cell = "";
  let quoted = false;
  let line = 1;
  let began = 1;
  const endRecord = () => {
    if (cells.length > 0 || cell !== "") records.push({ line: began, cells: [...cells, cell] });
    cells = [];
    cell = "";
  };
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at] ?? "";
    if (sign === "\n") line += 1;
    if (quoted) {
      if (sign !== '"') cell += sign;
      else if (text[at + 1] === '"') {
        cell += sign;
        at += 1;
      } else quoted = false;
    } else if (sign === '"' && cell === "") quoted = true;
    else if (sign === ",") {
      cells.push(cell);
      cell = "";
    } else if (sign === "\n") {
      endRecord();
      began = line;
    } else if (sign !== "\r") cell += sign;
  }
  endRecord();
  return records;
}
