import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { RouterProvider } from "react-router";
import { ApiError } from "./api/error.ts";
import { router } from "./app/routes.tsx";
import { startTheme } from "./app/theme.ts";
import "./styles.css";

const MAX_RETRIES = 3;

/** Retries only errors that may pass, after the delay the service asks for. */
function createQueryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        staleTime: 5_000,
        refetchOnWindowFocus: false,
        retry: (failures, error) => failures < MAX_RETRIES && error instanceof ApiError && error.retryable,
        retryDelay: (failures, error) =>
          error instanceof ApiError && error.retryAfterMs !== null ? error.retryAfterMs : 500 * 2 ** failures,
      },
    },
  });
}

startTheme();
const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={createQueryClient()}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </StrictMode>,
  );
}
