import { Dialog } from "../parts/Dialog.tsx";

const KEYS: readonly [string, string][] = [
  ["⌘K or Ctrl K", "go to any page or run"],
  ["/", "search in this page"],
  ["j / k", "next / previous row; in an open result, the next or previous result"],
  ["Enter", "open the row"],
  ["x", "in the list of runs: choose the run, to compare two"],
  ["Esc", "close what is open"],
  ["?", "this list"],
];

export function KeyHelp({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Dialog open={open} onClose={onClose} title="Keys" width="max-w-md">
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-2 text-sm">
        {KEYS.map(([key, does]) => (
          <div key={key} className="contents">
            <dt>
              <kbd className="rounded border border-line bg-raised px-1.5 py-0.5 font-mono text-xs">{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
