import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { api } from "../../api/client.ts";
import { ApiError } from "../../api/error.ts";
import { Button } from "../../components/Button.tsx";
import { Dialog } from "../../components/Dialog.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { Tags } from "../../components/Tags.tsx";
import { toast } from "../../components/toast.tsx";
import { formatCount, pluralize } from "../../lib/format.ts";
import { type CaseFile, type CaseFormat, formatOf, readCaseFile, type RowProblem } from "./caseFile.ts";

interface Chosen {
  file: File;
  format: CaseFormat;
  /** Null if the file is too large for a preview. */
  preview: CaseFile | null;
}

const LARGEST_PREVIEW = 5_000_000;
const SHOWN = 10;
const FAULTS_SHOWN = 50;

export function ImportDialog({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Dialog
      open={open}
      onClose={onClose}
      title="Import test cases"
      description="Either all rows of the file are imported, or none."
      width="max-w-3xl"
    >
      <Import onClose={onClose} />
    </Dialog>
  );
}

function Import({ onClose }: { onClose: () => void }) {
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const queries = useQueryClient();
  const send = useMutation({
    mutationFn: ({ file, format }: Chosen) => api.importCases(file, format),
    onSuccess: async ({ imported }) => {
      await queries.invalidateQueries({ queryKey: ["cases"] });
      toast(`${pluralize(imported, "test case")} imported`);
      onClose();
    },
  });
  const choose = async (file: File | undefined) => {
    send.reset();
    if (file === undefined) return setChosen(null);
    const format = formatOf(file.name) ?? "jsonl";
    return setChosen({ file, format, preview: await previewOf(file, format) });
  };
  const problems = chosen?.preview?.problems ?? [];
  const invalidRows = send.error instanceof ApiError ? send.error.rows : [];
  return (
    <div className="flex flex-col gap-4">
      <Field
        label="File"
        help="JSONL: one object per line with input, expected_output, description, tags and checks. CSV: columns with these names, tags separated by semicolons, checks as JSON."
      >
        <input
          data-first
          type="file"
          className="field"
          accept=".jsonl,.ndjson,.csv"
          onChange={(event) => void choose(event.target.files?.[0])}
        />
      </Field>
      {chosen && (
        <Field label="Format">
          <select
            className="field max-w-40"
            value={chosen.format}
            onChange={async (event) => {
              const format = event.target.value === "csv" ? "csv" : "jsonl";
              send.reset();
              setChosen({ ...chosen, format, preview: await previewOf(chosen.file, format) });
            }}
          >
            <option value="jsonl">JSONL</option>
            <option value="csv">CSV</option>
          </select>
        </Field>
      )}
      {chosen && chosen.preview === null && (
        <p className="text-sm text-muted">Too large for a preview; the service checks every row.</p>
      )}
      {chosen?.preview && <Preview file={chosen.preview} />}
      {problems.length > 0 && (
        <Problems title={`${pluralize(problems.length, "problem")} in this file`} problems={problems} />
      )}
      {send.error &&
        (invalidRows.length > 0 ? (
          <Problems title="Invalid rows; nothing was imported" problems={invalidRows} />
        ) : (
          <ErrorNotice error={send.error} />
        ))}
      <div className="flex justify-end gap-2">
        <Button onClick={onClose}>Cancel</Button>
        <Button
          variant="primary"
          disabled={chosen === null || problems.length > 0 || chosen.preview?.rows.length === 0 || send.isPending}
          onClick={() => chosen && send.mutate(chosen)}
        >
          {send.isPending
            ? "Importing…"
            : chosen?.preview && problems.length === 0
              ? `Import ${pluralize(chosen.preview.rows.length, "case")}`
              : "Import"}
        </Button>
      </div>
    </div>
  );
}

async function previewOf(file: File, format: CaseFormat): Promise<CaseFile | null> {
  return file.size > LARGEST_PREVIEW ? null : readCaseFile(await file.text(), format);
}

function Preview({ file }: { file: CaseFile }) {
  if (file.rows.length === 0) return <p className="text-sm text-muted">This file has no valid test cases.</p>;
  return (
    <section aria-label="Rows">
      <p className="mb-1 text-sm text-muted">
        {pluralize(file.rows.length, "valid row")}
        {file.rows.length > SHOWN && `, showing the first ${SHOWN}`}
      </p>
      <div className="max-h-72 overflow-auto rounded-md border border-line">
        <table className="w-full text-sm">
          <thead className="text-muted">
            <tr>
              <th className="p-2">Line</th>
              <th className="p-2">Input</th>
              <th className="p-2">Expected output</th>
              <th className="p-2">Tags</th>
            </tr>
          </thead>
          <tbody>
            {file.rows.slice(0, SHOWN).map((row) => (
              <tr key={row.line} className="border-t border-line align-top">
                <td className="num p-2 text-muted">{row.line}</td>
                <Cell>
                  <SafeText text={row.input} className="line-clamp-2" />
                </Cell>
                <Cell>
                  <SafeText text={row.expected_output} className="line-clamp-2" />
                </Cell>
                <Cell>
                  <Tags tags={row.tags} />
                </Cell>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Cell({ children }: { children: ReactNode }) {
  return <td className="p-2">{children}</td>;
}

function Problems({ title, problems }: { title: string; problems: readonly RowProblem[] }) {
  return (
    <div role="alert" className="rounded-md border border-fail bg-fail-soft p-3 text-sm">
      <p className="font-semibold text-fail">{title}</p>
      <ul className="mt-1 max-h-52 overflow-auto">
        {problems.slice(0, FAULTS_SHOWN).map((problem) => (
          <li key={`${problem.line} ${problem.field} ${problem.message}`} className="num">
            line {formatCount(problem.line)}
            {problem.field && (
              <>
                , <SafeText text={problem.field} className="font-mono" />
              </>
            )}
            : <SafeText text={problem.message} />
          </li>
        ))}
      </ul>
      {problems.length > FAULTS_SHOWN && <p>and {formatCount(problems.length - FAULTS_SHOWN)} more</p>}
    </div>
  );
}
