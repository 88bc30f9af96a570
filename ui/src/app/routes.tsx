import { createHashRouter, Navigate } from "react-router";
import { NotFound, PageFailure } from "./PageFailure.tsx";
import { Shell } from "./Shell.tsx";

/*
 * The address stands after `#`: the service serves one page without a key, and everything else of it needs one.
 * Every page is a chunk of its own.
 */
export const router = createHashRouter([
  {
    path: "/",
    element: <Shell />,
    errorElement: <PageFailure />,
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
