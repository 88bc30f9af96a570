import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/calls.ts";
import type { Evaluation } from "../../api/types.ts";
import { chosenFrom, type ChosenGrader } from "./draft.ts";
import { useGraders } from "./GraderChooser.tsx";

/** The graders of a run with the options they had; the run itself only names them. */
export function useRunGraders(run: Evaluation | undefined): { chosen: ChosenGrader[] | null } {
  const graders = useGraders();
  const known = graders.data;
  const id = run?.id ?? "";
  const found = useQuery({
    queryKey: ["run graders", id],
    queryFn: async () => {
      // the reader of YAML is loaded when it is needed
      const [{ gradersFrom }, suite] = await Promise.all([import("./suiteText.ts"), api.runSuite(id)]);
      return gradersFrom(suite, known ?? []);
    },
    enabled: run !== undefined && known !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  if (run === undefined || found.isPending) return { chosen: null };
  // a run of the command line may have no suite here
  return { chosen: found.data ?? chosenFrom(run.grader_ids) };
}
