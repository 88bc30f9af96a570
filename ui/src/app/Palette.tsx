import { useQuery } from "@tanstack/react-query";
import { useId, useMemo, useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../api/client.ts";
import { useSession } from "../api/session.ts";
import { Dialog } from "../components/Dialog.tsx";
import { runTitle } from "../lib/run.ts";
import { navItemsFor } from "./navigation.ts";
import { chooseTheme } from "./theme.ts";

interface Command {
  id: string;
  title: string;
  keywords: string;
  run: () => void;
}

/** ⌘K: search for a page, a recent run or an action. */
export function CommandPalette({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Dialog open={open} onClose={onClose} title="Go to">
      <CommandList onClose={onClose} />
    </Dialog>
  );
}

function CommandList({ onClose }: { onClose: () => void }) {
  const [query, setSought] = useState("");
  const [at, setAt] = useState(0);
  const listId = useId();
  const commands = useCommands();
  const results = commands.filter((command) => matches(command, query)).slice(0, 12);
  const current = results[Math.min(at, results.length - 1)];
  const run = (command: Command | undefined) => {
    if (command === undefined) return;
    onClose();
    command.run();
  };
  return (
    <div>
      <input
        data-first
        className="field"
        role="combobox"
        aria-label="Search pages and runs"
        aria-expanded="true"
        aria-controls={listId}
        aria-activedescendant={current ? `${listId}-${current.id}` : undefined}
        placeholder="Page, run or action"
        value={query}
        onChange={(event) => {
          setSought(event.target.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(results.length - 1, at + 1));
          else if (event.key === "ArrowUp") setAt(Math.max(0, at - 1));
          else if (event.key === "Enter") run(current);
          else return;
          event.preventDefault();
        }}
      />
      <ul id={listId} role="listbox" aria-label="Matches" className="mt-2">
        {results.map((command) => (
          // oxlint-disable-next-line jsx-a11y/click-events-have-key-events -- the keys are the input's
          <li
            key={command.id}
            id={`${listId}-${command.id}`}
            role="option"
            aria-selected={command === current}
            onClick={() => run(command)}
            className={`cursor-pointer truncate rounded px-3 py-2 text-sm ${command === current ? "bg-accent-soft text-accent" : "hover:bg-raised"}`}
          >
            {command.title}
          </li>
        ))}
      </ul>
      {results.length === 0 && <p className="p-3 text-sm text-muted">No matches.</p>}
    </div>
  );
}

function useCommands(): Command[] {
  const navigate = useNavigate();
  const scope = useSession().current?.scope ?? null;
  const runs = useQuery({
    queryKey: ["runs", "recent"],
    queryFn: ({ signal }) => api.runs({ limit: 50 }, signal),
    staleTime: 10_000,
  });
  return useMemo(() => {
    const places = navItemsFor(scope).map((item) => ({
      id: item.path,
      title: item.title,
      keywords: item.keywords,
      run: () => navigate(item.path),
    }));
    const recent = (runs.data?.evaluations ?? []).map((run) => ({
      id: run.id,
      title: `Run: ${runTitle(run)} (${run.status})`,
      keywords: run.id,
      run: () => navigate(`/runs/${encodeURIComponent(run.id)}`),
    }));
    const others: Command[] = [
      { id: "new-case", title: "New test case", keywords: "create add", run: () => navigate("/cases?open=new") },
      {
        id: "import",
        title: "Import test cases",
        keywords: "jsonl csv file",
        run: () => navigate("/cases?open=import"),
      },
      { id: "dark", title: "Use dark theme", keywords: "colours night", run: () => chooseTheme("dark") },
      { id: "light", title: "Use light theme", keywords: "colours day", run: () => chooseTheme("light") },
    ];
    return [...places, ...others, ...recent];
  }, [navigate, runs.data, scope]);
}

function matches(command: Command, query: string): boolean {
  const text = `${command.title} ${command.keywords}`.toLowerCase();
  return query
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
