import { Link, useRouteError } from "react-router";
import { Failure } from "../parts/Notice.tsx";

/** A page that broke; the rest of the interface still works. */
export function PageFailure() {
  const error = useRouteError();
  return (
    <main className="mx-auto flex max-w-xl flex-col gap-3 p-6">
      <h1 className="text-xl font-semibold">This page failed</h1>
      <Failure error={error} onRetry={() => window.location.reload()} />
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
