import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api } from "../../api/calls.ts";
import type { Evaluation, Result } from "../../api/types.ts";

const RUNS = 50;
const SAMPLES = 50;
const NO_RUNS: readonly Evaluation[] = [];
const NO_RESULTS: readonly Result[] = [];

/** Real results to try a grader on: of the run that is named, else of the latest that has any. */
export function useSamples(run: string) {
  const runs = useQuery({
    queryKey: ["runs", "latest", RUNS],
    queryFn: ({ signal }) => api.runs({ limit: RUNS }, signal),
  });
  const listed = runs.data?.evaluations ?? NO_RUNS;
  const chosen = run || (listed.find((one) => one.result_count > 0)?.id ?? "");
  const results = useQuery({
    queryKey: ["samples", chosen],
    queryFn: async ({ signal }) => (await api.results(chosen, { limit: SAMPLES, status: "success" }, signal)).results,
    enabled: chosen !== "",
    staleTime: 60_000,
  });
  return {
    runs: listed,
    run: chosen,
    samples: results.data ?? NO_RESULTS,
    loading: runs.isPending || (chosen !== "" && results.isPending),
    error: runs.error ?? results.error,
  };
}

/** The value once it has stayed the same for a moment. */
export function useSettled<T>(value: T, ms = 350): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
