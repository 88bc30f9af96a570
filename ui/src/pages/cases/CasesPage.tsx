import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { api } from "../../api/client.ts";
import type { TestCase, TestCasePage } from "../../api/types.ts";
import { useRowNavigation } from "../../app/shortcuts.tsx";
import { Button, LinkButton } from "../../components/Button.tsx";
import { Menu } from "../../components/Menu.tsx";
import { EmptyState, ErrorNotice, Loading } from "../../components/Notice.tsx";
import { Pager } from "../../components/Pager.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { SearchBox } from "../../components/SearchBox.tsx";
import { Tags } from "../../components/Tags.tsx";
import { formatAgo, formatDateTime, pluralize } from "../../lib/format.ts";
import { usePageTitle } from "../../lib/hooks.ts";
import { integer, list, text, useUrlState } from "../../lib/urlState.ts";
import { CaseEditor } from "./CaseEditor.tsx";
import { ImportDialog } from "./ImportDialog.tsx";

const SIZE = 50;
/** `open`: a case id, "new" or "import". */
const STATE = { q: text(), tag: text(), page: integer(1, 1), open: text(), sel: list() };

export function CasesPage() {
  usePageTitle("Test cases");
  useRowNavigation();
  const [state, change] = useUrlState(STATE);
  const query = { q: state.q, tag: state.tag, limit: SIZE, skip: (state.page - 1) * SIZE };
  const cases = useQuery({
    queryKey: ["cases", query],
    queryFn: ({ signal }) => api.cases(query, signal),
    placeholderData: keepPreviousData,
  });
  const close = () => change({ open: "" });
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <h1 className="mr-auto text-xl font-semibold">Test cases</h1>
        <Button onClick={() => change({ open: "import" })}>Import</Button>
        <Menu
          label="Export all test cases"
          items={[
            { label: "JSONL", href: api.exportCasesUrl("jsonl") },
            { label: "CSV", href: api.exportCasesUrl("csv") },
          ]}
        >
          Export
        </Menu>
        <Button variant="primary" onClick={() => change({ open: "new" })}>
          New test case
        </Button>
      </div>
      <div className="flex flex-wrap items-center gap-2">
        <SearchBox label="Search cases" value={state.q} onSearch={(q) => change({ q, page: 1 }, { replace: true })} />
        {state.tag && (
          <Button onClick={() => change({ tag: "", page: 1 })} aria-label={`Remove filter: tag ${state.tag}`}>
            tag: {state.tag} ✕
          </Button>
        )}
        {state.sel.length > 0 && (
          <>
            <LinkButton variant="primary" to={`/new?cases=${state.sel.map(encodeURIComponent).join(",")}`}>
              Evaluate {pluralize(state.sel.length, "case")}
            </LinkButton>
            <Button variant="ghost" onClick={() => change({ sel: [] })}>
              Clear selection
            </Button>
          </>
        )}
      </div>
      {cases.error && <ErrorNotice error={cases.error} onRetry={() => void cases.refetch()} />}
      {cases.isPending && <Loading />}
      {cases.data && (
        <CaseList
          page={cases.data}
          filtered={state.q !== "" || state.tag !== ""}
          selected={state.sel}
          onSelect={(sel) => change({ sel }, { replace: true })}
          onOpen={(open) => change({ open })}
          onTag={(tag) => change({ tag, page: 1 })}
          onClear={() => change({ q: "", tag: "", page: 1 })}
        />
      )}
      {cases.data && cases.data.total > 0 && (
        <Pager page={state.page} size={SIZE} shown={cases.data} onPage={(page) => change({ page })} />
      )}
      <ImportDialog open={state.open === "import"} onClose={close} />
      {state.open !== "" && state.open !== "import" && <CaseEditor id={state.open} onClose={close} />}
    </div>
  );
}

interface ListProps {
  page: TestCasePage;
  filtered: boolean;
  selected: readonly string[];
  onSelect: (ids: readonly string[]) => void;
  onOpen: (open: string) => void;
  onTag: (tag: string) => void;
  onClear: () => void;
}

function CaseList({ page, filtered, onClear, ...rest }: ListProps) {
  if (page.test_cases.length > 0) return <CaseTable cases={page.test_cases} {...rest} />;
  if (filtered) {
    return (
      <EmptyState title="No matching cases" actions={<Button onClick={onClear}>Show all cases</Button>}>
        The search covers input, expected output and description.
      </EmptyState>
    );
  }
  return (
    <EmptyState
      title="No test cases yet"
      actions={
        <>
          <Button variant="primary" onClick={() => rest.onOpen("new")}>
            Create a test case
          </Button>
          <Button onClick={() => rest.onOpen("import")}>Import a file</Button>
        </>
      }
    >
      A test case is an input for your agent and the output you expect. Create test cases here or import a JSONL or CSV
      file, then start an evaluation.
    </EmptyState>
  );
}

interface Props {
  cases: readonly TestCase[];
  selected: readonly string[];
  onSelect: (ids: readonly string[]) => void;
  onOpen: (id: string) => void;
  onTag: (tag: string) => void;
}

function CaseTable({ cases, selected, onSelect, onOpen, onTag }: Props) {
  const chosen = new Set(selected);
  const all = cases.every((one) => chosen.has(one.id));
  const toggleAll = () => {
    const shown = new Set(cases.map((one) => one.id));
    onSelect(all ? selected.filter((id) => !shown.has(id)) : [...new Set([...selected, ...shown])]);
  };
  const toggle = (id: string) => onSelect(chosen.has(id) ? selected.filter((one) => one !== id) : [...selected, id]);
  return (
    <div className="card overflow-x-auto">
      <table className="w-full table-fixed text-sm">
        <thead className="border-b border-line text-muted">
          <tr>
            <th className="w-10 p-2">
              <input type="checkbox" aria-label="Select all cases on this page" checked={all} onChange={toggleAll} />
            </th>
            <th className="p-2">Input</th>
            <th className="p-2">Expected output</th>
            <th className="hidden w-48 p-2 md:table-cell">Tags</th>
            <th className="hidden w-32 p-2 lg:table-cell">Changed</th>
          </tr>
        </thead>
        <tbody>
          {cases.map((one) => (
            <tr key={one.id} className="border-b border-line last:border-0 hover:bg-raised">
              <td className="p-2 align-top">
                <input
                  type="checkbox"
                  aria-label="Select this case"
                  checked={chosen.has(one.id)}
                  onChange={() => toggle(one.id)}
                />
              </td>
              <td className="p-2 align-top">
                <button
                  type="button"
                  data-row
                  className="w-full text-start font-medium text-accent hover:underline"
                  onClick={() => onOpen(one.id)}
                >
                  <SafeText text={one.input} className="line-clamp-2" />
                </button>
                {one.description && <SafeText text={one.description} className="line-clamp-1 text-muted" />}
                <span className="mt-1 block md:hidden">
                  <Tags tags={one.tags} onChoose={onTag} />
                </span>
              </td>
              <td className="p-2 align-top">
                <SafeText text={one.expected_output} className="line-clamp-2" />
              </td>
              <td className="hidden p-2 align-top md:table-cell">
                <Tags tags={one.tags} onChoose={onTag} />
              </td>
              <td className="num hidden p-2 align-top text-muted lg:table-cell" title={formatDateTime(one.modified_at)}>
                {formatAgo(one.modified_at)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
