import { createHashRouter, Link, Navigate, useRouteError } from "react-router";
import { ErrorNotice } from "../components/Notice.tsx";
import { Shell } from "./Shell.tsx";

/*
 * The address stands after `#`: the service serves one page without a key, and everything else of it needs one.
 * Every page is a chunk of its own.
 */
export const router = createHashRouter([
  {
    path: "/",
    element: <Shell />,
    errorElement: <RouteError />,
    hydrateFallbackElement: <p>Loading…</p>,
    children: [
      { index: true, element: <Navigate to="/runs" replace /> },
      { path: "runs", lazy: async () => ({ Component: (await import("../pages/runs/RunsPage.tsx")).RunsPage }) },
      { path: "runs/:id", lazy: async () => ({ Component: (await import("../pages/run/RunPage.tsx")).RunPage }) },
      { path: "cases", lazy: async () => ({ Component: (await import("../pages/cases/CasesPage.tsx")).CasesPage }) },
      {
        path: "new",
        lazy: async () => ({ Component: (await import("../pages/evaluate/EvaluatePage.tsx")).EvaluatePage }),
      },
      {
        path: "compare",
        lazy: async () => ({ Component: (await import("../pages/compare/ComparePage.tsx")).ComparePage }),
      },
      {
        path: "graders",
        lazy: async () => ({ Component: (await import("../pages/graders/GradersPage.tsx")).GradersPage }),
      },
      {
        path: "graders/new",
        lazy: async () => ({ Component: (await import("../pages/graders/GraderEditorPage.tsx")).GraderEditorPage }),
      },
      {
        path: "graders/:id",
        lazy: async () => ({ Component: (await import("../pages/graders/GraderPage.tsx")).GraderPage }),
      },
      {
        path: "graders/:id/edit",
        lazy: async () => ({ Component: (await import("../pages/graders/GraderEditorPage.tsx")).GraderEditorPage }),
      },
      {
        path: "secrets",
        lazy: async () => ({ Component: (await import("../pages/secrets/SecretsPage.tsx")).SecretsPage }),
      },
      { path: "*", element: <NotFound /> },
    ],
  },
]);

/** A page that broke; the rest of the interface still works. */
export function RouteError() {
  const error = useRouteError();
  return (
    <main className="mx-auto flex max-w-xl flex-col gap-3 p-6">
      <h1 className="text-xl font-semibold">This page failed</h1>
      <ErrorNotice error={error} onRetry={() => window.location.reload()} />
      <Link to="/runs" className="text-accent underline">
        To the runs
      </Link>
    </main>
  );
}

export function NotFound() {
  return (
    <div className="flex flex-col gap-3 p-6">
      <h1 className="text-xl font-semibold">There is no such page</h1>
      <Link to="/runs" className="text-accent underline">
        To the runs
      </Link>
    </div>
  );
}
