import type { TestCase } from "../../api/types.ts";
import { ago, moment } from "../../lib/format.ts";
import { SafeText } from "../../parts/SafeText.tsx";
import { Tags } from "../../parts/Tags.tsx";

interface Props {
  cases: readonly TestCase[];
  selected: readonly string[];
  onSelect: (ids: readonly string[]) => void;
  onOpen: (id: string) => void;
  onTag: (tag: string) => void;
}

export function CaseTable({ cases, selected, onSelect, onOpen, onTag }: Props) {
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
              <td className="num hidden p-2 align-top text-muted lg:table-cell" title={moment(one.modified_at)}>
                {ago(one.modified_at)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
