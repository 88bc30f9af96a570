import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/calls.ts";
import { count, counted } from "../../lib/format.ts";
import { useCaseSample } from "./CaseChooser.tsx";
import type { Draft } from "./draft.ts";

const JUDGES = new Set(["model_judge", "panel", "pairwise"]);

/** What will run, before it does. */
export function Plan({ draft }: { draft: Draft }) {
  const sample = useCaseSample();
  const tagged = useQuery({
    queryKey: ["cases", { tag: draft.tag, limit: 1000 }],
    queryFn: async ({ signal }) => {
      const page = await api.cases({ tag: draft.tag, limit: 1000 }, signal);
      // the list looks for a part of a tag, a run for the whole of it
      const exact = page.test_cases.filter((one) => one.tags.includes(draft.tag)).length;
      return { exact, complete: page.next_cursor === null };
    },
    enabled: draft.by === "tag" && draft.tag !== "",
  });
  const cases = draft.by === "all" ? sample.data?.total : draft.by === "ids" ? draft.ids.length : tagged.data?.exact;
  const more = draft.by === "tag" && tagged.data?.complete === false ? "+" : "";
  const repeats = draft.repeats ?? 1;
  const judges = draft.graders.filter((grader) => JUDGES.has(grader.id)).length;
  return (
    <section aria-label="What will run" className="rounded-md border border-line bg-accent-soft p-3 text-sm">
      <p className="font-semibold">What will run</p>
      {cases === undefined ? (
        <p className="text-muted">Choose cases to see it.</p>
      ) : (
        <ul className="num list-inside list-disc">
          <li>
            {count(cases)}
            {more} cases{repeats > 1 && ` × ${repeats} repeats`} = {counted(cases * repeats, "call")}
            {more && " or more"} to the agent{draft.timeout !== null && `, each within ${draft.timeout} s`}
          </li>
          <li>
            {counted(draft.graders.length, "grader")}, so {count(cases * repeats * draft.graders.length)} grades
          </li>
          {judges > 0 && (
            <li>
              about {counted(cases * repeats * judges, "call")} or more to judge models; their provider charges for them
            </li>
          )}
          <li>What an HTTP agent costs is not known here.</li>
        </ul>
      )}
    </section>
  );
}
