import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { api } from "../../api/calls.ts";
import type { TestCasePage } from "../../api/types.ts";
import { useRowKeys } from "../../app/rows.ts";
import { useTitle } from "../../app/useTitle.ts";
import { counted } from "../../lib/format.ts";
import { integer, list, text } from "../../lib/urlState.ts";
import { useUrlState } from "../../lib/useUrlState.ts";
import { Button, LinkButton } from "../../parts/Button.tsx";
import { Menu } from "../../parts/Menu.tsx";
import { Empty, Failure, Loading } from "../../parts/Notice.tsx";
import { Pager } from "../../parts/Pager.tsx";
import { SearchBox } from "../../parts/SearchBox.tsx";
import { CaseEditor } from "./CaseEditor.tsx";
import { CaseTable } from "./CaseTable.tsx";
import { ImportDialog } from "./ImportDialog.tsx";

const SIZE = 50;
/** `open` is an id, "new" or "import". */
const STATE = { q: text(), tag: text(), page: integer(1, 1), open: text(), sel: list() };

export function CasesPage() {
  useTitle("Test cases");
  useRowKeys();
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
            { label: "JSONL", href: api.exportCasesAddress("jsonl") },
            { label: "CSV", href: api.exportCasesAddress("csv") },
          ]}
        >
          Export
        </Menu>
        <Button look="main" onClick={() => change({ open: "new" })}>
          New test case
        </Button>
      </div>
      <div className="flex flex-wrap items-center gap-2">
        <SearchBox label="Search cases" value={state.q} onSearch={(q) => change({ q, page: 1 }, { replace: true })} />
        {state.tag && (
          <Button onClick={() => change({ tag: "", page: 1 })} aria-label={`No longer only tag ${state.tag}`}>
            tag: {state.tag} ✕
          </Button>
        )}
        {state.sel.length > 0 && (
          <>
            <LinkButton look="main" to={`/new?cases=${state.sel.map(encodeURIComponent).join(",")}`}>
              Evaluate {counted(state.sel.length, "case")}
            </LinkButton>
            <Button look="quiet" onClick={() => change({ sel: [] })}>
              Clear selection
            </Button>
          </>
        )}
      </div>
      {cases.error && <Failure error={cases.error} onRetry={() => void cases.refetch()} />}
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
      <Empty title="No case fits this search" actions={<Button onClick={onClear}>Show all cases</Button>}>
        Search looks at the input, the expected output and the description.
      </Empty>
    );
  }
  return (
    <Empty
      title="No test cases yet"
      actions={
        <>
          <Button look="main" onClick={() => rest.onOpen("new")}>
            Write the first one
          </Button>
          <Button onClick={() => rest.onOpen("import")}>Import a file</Button>
        </>
      }
    >
      A test case is a question to your agent and the answer you expect. Write some here, or import a JSONL or CSV file;
      then start an evaluation.
    </Empty>
  );
}
