import { QueryClient } from "@tanstack/react-query";
import { ApiFailure } from "../api/failure.ts";

const MOST_RETRIES = 3;

/** Asks again only where that may help, and as late as the service says. */
export function makeQueryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        staleTime: 5_000,
        refetchOnWindowFocus: false,
        retry: (failures, error) => failures < MOST_RETRIES && error instanceof ApiFailure && error.passing,
        retryDelay: (failures, error) =>
          error instanceof ApiFailure && error.retryAfterMs !== null ? error.retryAfterMs : 500 * 2 ** failures,
      },
    },
  });
}
