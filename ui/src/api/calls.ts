import { address, request, requestText, type Query } from "./request.ts";
import { session } from "./session.ts";
import type {
  Evaluation,
  EvaluationPage,
  Grader,
  GraderChoice,
  GraderPage,
  Histograms,
  NewEvaluation,
  CaseHistory,
  ResultDetail,
  ResultPage,
  RunStorage,
  Session,
  TestCase,
  TestCaseFields,
  TestCasePage,
  Tried,
  TryAgent,
} from "./types.ts";

/** Every call of the service that the pages make. */
export const api = {
  session: async (signal?: AbortSignal) => {
    const current = await get<Session>("session", {}, signal);
    session.opened(current);
    return current;
  },
  signIn: async (key: string) => {
    session.opened(await request<Session>("POST", "session", { body: { key } }));
  },
  signOut: async () => {
    await request<void>("DELETE", "session");
    session.lost();
  },

  cases: (query: Query, signal?: AbortSignal) => get<TestCasePage>("test-cases", query, signal),
  case: (id: string, signal?: AbortSignal) => get<TestCase>(`test-cases/${part(id)}`, {}, signal),
  createCase: (fields: TestCaseFields) => request<TestCase>("POST", "test-cases", { body: given(fields) }),
  updateCase: (id: string, fields: Partial<TestCaseFields>) =>
    request<TestCase>("PUT", `test-cases/${part(id)}`, { body: fields }),
  deleteCase: (id: string) => request<void>("DELETE", `test-cases/${part(id)}`),
  importCases: (file: Blob, format: "jsonl" | "csv") =>
    request<{ imported: number }>("POST", "test-cases/import", {
      query: { format },
      body: new Blob([file], { type: format === "csv" ? "text/csv" : "application/x-ndjson" }),
    }),
  exportCasesAddress: (format: "jsonl" | "csv") => address("test-cases/export", { format }),

  graders: (signal?: AbortSignal) => get<GraderPage>("graders", {}, signal),
  grader: (id: string, signal?: AbortSignal) => get<Grader>(`graders/${part(id)}`, {}, signal),

  runs: (query: Query, signal?: AbortSignal) => get<EvaluationPage>("evaluations", query, signal),
  run: (id: string, signal?: AbortSignal) => get<Evaluation>(`evaluations/${part(id)}`, {}, signal),
  runStorage: (id: string, signal?: AbortSignal) => get<RunStorage>(`evaluations/${part(id)}/storage`, {}, signal),
  startRun: (body: NewEvaluation, idempotencyKey: string) =>
    request<Evaluation>("POST", "evaluations", { body, headers: { "Idempotency-Key": idempotencyKey } }),
  tryAgent: (body: TryAgent, signal?: AbortSignal) =>
    request<Tried>("POST", "evaluations/try", signal ? { body, signal } : { body }),
  actOnRun: (id: string, action: "cancel" | "resume" | "retry-failed") =>
    request<Evaluation>("POST", `evaluations/${part(id)}/${action}`),
  askOtherCases: (id: string) => request<Evaluation>("POST", `evaluations/${part(id)}/resume`, { body: { all: true } }),
  regrade: (id: string, graders: GraderChoice[]) =>
    request<Evaluation>("POST", `evaluations/${part(id)}/regrade`, { body: { grader_ids: graders } }),
  deleteRun: (id: string) => request<void>("DELETE", `evaluations/${part(id)}`),
  runSuite: (id: string) => requestText(`evaluations/${part(id)}/suite`),
  results: (id: string, query: Query, signal?: AbortSignal) =>
    get<ResultPage>(`evaluations/${part(id)}/results`, query, signal),
  result: (id: string, result: string, signal?: AbortSignal) =>
    get<ResultDetail>(`evaluations/${part(id)}/results/${part(result)}`, {}, signal),
  caseHistory: (id: string, result: string, limit: number, signal?: AbortSignal) =>
    get<CaseHistory>(`evaluations/${part(id)}/results/${part(result)}/case-history`, { limit }, signal),
  histograms: (id: string, signal?: AbortSignal) => get<Histograms>(`evaluations/${part(id)}/histograms`, {}, signal),
  exportRunAddress: (id: string, format: string) => address(`evaluations/${part(id)}/export`, { format }),
};

function get<T>(path: string, query: Query, signal?: AbortSignal): Promise<T> {
  return request<T>("GET", path, signal ? { query, signal } : { query });
}

function part(id: string): string {
  return encodeURIComponent(id);
}

/** A description that is not there is left out: null is for clearing one. */
function given(fields: TestCaseFields): Partial<TestCaseFields> {
  const { description, ...rest } = fields;
  return description === null ? rest : { ...rest, description };
}
