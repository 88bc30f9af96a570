import { createHashRouter, Link, Navigate, useRouteError } from "react-router";
import { ErrorNotice } from "../components/Notice.tsx";
import { Shell } from "./Shell.tsx";

/*
 * Routes are after the `#`: the service serves only this one page without a key. Every page is a separate chunk.
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
      {
        path: "runs/:id/label",
        lazy: async () => ({ Component: (await import("../pages/label/LabelPage.tsx")).LabelPage }),
      },
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

/** Shown when a page throws; the other pages still work. */
function RouteError() {
  const error = useRouteError();
  return (
    <main className="mx-auto flex max-w-xl flex-col gap-3 p-6">
      <h1 className="text-xl font-semibold">Something went wrong on this page</h1>
      <ErrorNotice error={error} onRetry={() => window.location.reload()} />
      <Link to="/runs" className="text-accent underline">
        Go to runs
      </Link>
    </main>
  );
}

function NotFound() {
  return (
    <div className="flex flex-col gap-3 p-6">
      <h1 className="text-xl font-semibold">Page not found</h1>
      <Link to="/runs" className="text-accent underline">
        Go to runs
      </Link>
    </div>
  );
}
