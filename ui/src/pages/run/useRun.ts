import { type QueryClient, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { api } from "../../api/client.ts";
import { type Connection, followEvents } from "../../api/events.ts";
import { apiUrl } from "../../api/request.ts";
import type { Evaluation, Result } from "../../api/types.ts";
import { applyEvent, isInProgress } from "../../lib/run.ts";
import { filterQuery, type RunState } from "./state.ts";

/** Small, so that the first results of a filter appear quickly. */
const FIRST_PAGE = 100;
const PAGE = 500;
const REFRESH_MS = 1_500;
const FIRST_PAGES = 2;
/** Less often than the summary, because the service reads all rows for the histograms. */
const HISTOGRAMS_MS = 15_000;
const NO_ROWS: readonly Result[] = [];

export function useRun(id: string) {
  return useQuery({ queryKey: ["run", id], queryFn: ({ signal }) => api.run(id, signal) });
}

/** The summary of the whole run, regardless of filters. */
export function useSummary(id: string) {
  return useQuery({
    queryKey: ["summary", id],
    queryFn: async ({ signal }) => (await api.results(id, { limit: 1 }, signal)).summary,
  });
}

/** The run's size in the store. Not while it is in progress, because the service reads all its rows. */
export function useRunStorage(run: Evaluation) {
  return useQuery({
    queryKey: ["storage", run.id, run.completed_at],
    queryFn: ({ signal }) => api.runStorage(run.id, signal),
    enabled: !isInProgress(run.status),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** Histograms of the whole run, regardless of filters. */
export function useHistograms(id: string, inProgress: boolean) {
  return useQuery({
    queryKey: ["histograms", id],
    queryFn: ({ signal }) => api.histograms(id, signal),
    refetchInterval: inProgress ? HISTOGRAMS_MS : false,
  });
}

export interface ResultRows {
  rows: readonly Result[];
  more: boolean;
  loading: boolean;
  error: Error | null;
  loadMore: () => void;
}

/** The results that match the filter, loaded page by page. */
export function useResults(id: string, state: RunState): ResultRows {
  const filter = filterQuery(state);
  const query = useInfiniteQuery({
    queryKey: ["results", id, filter],
    queryFn: ({ pageParam, signal }) =>
      api.results(id, { ...filter, limit: pageParam === "" ? FIRST_PAGE : PAGE, cursor: pageParam }, signal),
    initialPageParam: "",
    getNextPageParam: (last) => last.next_cursor ?? undefined,
  });
  const { data, error, hasNextPage, isFetching, fetchNextPage } = query;
  const rows = useMemo(() => data?.pages.flatMap((page) => page.results) ?? NO_ROWS, [data]);
  // the service examines a limited number of rows per page: an empty page does not mean that there are no matches
  const searchOn = rows.length === 0 && hasNextPage && !isFetching && error === null;
  useEffect(() => {
    if (searchOn) void fetchNextPage();
  }, [searchOn, fetchNextPage]);
  return {
    rows,
    more: hasNextPage,
    loading: isFetching || searchOn,
    error,
    loadMore: () => {
      if (hasNextPage && !isFetching) void fetchNextPage();
    },
  };
}

/** Keeps a run in progress up to date, by its event stream or else by polling. */
export function useLiveUpdates(run: Evaluation | undefined): Connection {
  const queries = useQueryClient();
  const [connection, setConnection] = useState<Connection>("ended");
  const id = run?.id;
  const inProgress = run !== undefined && isInProgress(run.status);
  useEffect(() => {
    if (id === undefined || !inProgress) return;
    const abort = new AbortController();
    const refresh = throttle(() => refreshResults(queries, id), REFRESH_MS, abort.signal);
    void followEvents({
      url: apiUrl(`evaluations/${encodeURIComponent(id)}/events`),
      signal: abort.signal,
      onConnection: setConnection,
      onPoll: () => {
        void queries.invalidateQueries({ queryKey: ["run", id] });
        refresh();
      },
      onEvent: (event) => {
        queries.setQueryData<Evaluation>(["run", id], (now) => now && applyEvent(now, event));
        if (event.event === "done" || event.event === "status")
          void queries.invalidateQueries({ queryKey: ["run", id] });
        refresh();
      },
    });
    return () => {
      abort.abort();
      // the last events may not have been refreshed yet, and events have only a part of the run
      refreshResults(queries, id);
      void queries.invalidateQueries({ queryKey: ["run", id] });
      void queries.invalidateQueries({ queryKey: ["histograms", id] });
      void queries.invalidateQueries({ queryKey: ["comparison"] });
      void queries.invalidateQueries({ queryKey: ["runs"] });
    };
  }, [id, inProgress, queries]);
  return inProgress ? connection : "ended";
}

/** Refreshes the summary, and the rows only if few pages are loaded, because all of them are fetched again. */
function refreshResults(queries: QueryClient, id: string): void {
  void queries.invalidateQueries({ queryKey: ["summary", id] });
  void queries.invalidateQueries({
    queryKey: ["results", id],
    predicate: ({ state: { data } }) => pageCount(data) <= FIRST_PAGES,
  });
}

function pageCount(data: unknown): number {
  if (typeof data !== "object" || data === null || !("pages" in data)) return 0;
  return Array.isArray(data.pages) ? data.pages.length : 0;
}

function throttle(act: () => void, ms: number, signal: AbortSignal): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    setTimeout(() => {
      waiting = false;
      if (!signal.aborted) act();
    }, ms);
  };
}
