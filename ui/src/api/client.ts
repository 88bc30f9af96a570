import { ApiError } from "./error.ts";
import { apiUrl, request, requestText, type Query } from "./request.ts";
import { session } from "./session.ts";
import type {
  BaselinePage,
  BlindLabel,
  CaseHistory,
  Comparison,
  DrawnSample,
  Evaluation,
  EvaluationPage,
  Grader,
  GraderChoice,
  GraderDefinition,
  GraderCollection,
  Histograms,
  Label,
  LabelAgreement,
  NamedBaseline,
  NewEvaluation,
  NewLabel,
  NewSample,
  PreviewGrader,
  PreviewInput,
  ResultDetail,
  ResultLabels,
  ResultPage,
  RunStorage,
  SampleItem,
  SampleList,
  Score,
  Secret,
  SecretBody,
  SecretList,
  Session,
  TestCase,
  TestCaseFields,
  TestCasePage,
  TryRequest,
  TryResult,
} from "./types.ts";

/** The REST API calls that the pages make. */
export const api = {
  session: async (signal?: AbortSignal) => {
    const current = await get<Session>("session", {}, signal);
    session.start(current);
    return current;
  },
  signIn: async (key: string) => {
    session.start(await request<Session>("POST", "session", { body: { key } }));
  },
  signOut: async () => {
    await request<void>("DELETE", "session");
    session.end();
  },

  cases: (query: Query, signal?: AbortSignal) => get<TestCasePage>("test-cases", query, signal),
  case: (id: string, signal?: AbortSignal) => get<TestCase>(`test-cases/${encode(id)}`, {}, signal),
  createCase: (fields: TestCaseFields) => request<TestCase>("POST", "test-cases", { body: withoutNulls(fields) }),
  updateCase: (id: string, fields: Partial<TestCaseFields>) =>
    request<TestCase>("PUT", `test-cases/${encode(id)}`, { body: fields }),
  deleteCase: (id: string) => request<void>("DELETE", `test-cases/${encode(id)}`),
  importCases: (file: Blob, format: "jsonl" | "csv") =>
    request<{ imported: number }>("POST", "test-cases/import", {
      query: { format },
      body: new Blob([file], { type: format === "csv" ? "text/csv" : "application/x-ndjson" }),
    }),
  exportCasesUrl: (format: "jsonl" | "csv") => apiUrl("test-cases/export", { format }),

  graders: (signal?: AbortSignal) => get<GraderCollection>("graders", {}, signal),
  grader: (id: string, signal?: AbortSignal) => get<Grader>(`graders/${encode(id)}`, {}, signal),

  runs: (query: Query, signal?: AbortSignal) => get<EvaluationPage>("evaluations", query, signal),
  run: (id: string, signal?: AbortSignal) => get<Evaluation>(`evaluations/${encode(id)}`, {}, signal),
  runStorage: (id: string, signal?: AbortSignal) => get<RunStorage>(`evaluations/${encode(id)}/storage`, {}, signal),
  startRun: (body: NewEvaluation, idempotencyKey: string) =>
    request<Evaluation>("POST", "evaluations", { body, headers: { "Idempotency-Key": idempotencyKey } }),
  tryAgent: (body: TryRequest, signal?: AbortSignal) =>
    request<TryResult>("POST", "evaluations/try", signal ? { body, signal } : { body }),
  actOnRun: (id: string, action: "cancel" | "resume" | "retry-failed") =>
    request<Evaluation>("POST", `evaluations/${encode(id)}/${action}`),
  runRemainingCases: (id: string) =>
    request<Evaluation>("POST", `evaluations/${encode(id)}/resume`, { body: { all: true } }),
  regrade: (id: string, graders: GraderChoice[]) =>
    request<Evaluation>("POST", `evaluations/${encode(id)}/regrade`, { body: { grader_ids: graders } }),
  deleteRun: (id: string) => request<void>("DELETE", `evaluations/${encode(id)}`),
  baselines: (signal?: AbortSignal) => get<BaselinePage>("baselines", { limit: 1000 }, signal),
  setBaseline: (name: string, run: string) =>
    request<NamedBaseline>("PUT", `baselines/${encode(name)}`, { body: { evaluation_id: run } }),
  clearBaseline: ({ name, suite }: NamedBaseline) =>
    request<void>("DELETE", `baselines/${encode(name)}`, { query: { suite } }),
  runSuite: (id: string) => requestText(`evaluations/${encode(id)}/suite`),
  results: (id: string, query: Query, signal?: AbortSignal) =>
    get<ResultPage>(`evaluations/${encode(id)}/results`, query, signal),
  result: (id: string, result: string, signal?: AbortSignal) =>
    get<ResultDetail>(`evaluations/${encode(id)}/results/${encode(result)}`, {}, signal),
  caseHistory: (id: string, result: string, limit: number, signal?: AbortSignal) =>
    get<CaseHistory>(`evaluations/${encode(id)}/results/${encode(result)}/case-history`, { limit }, signal),
  histograms: (id: string, signal?: AbortSignal) => get<Histograms>(`evaluations/${encode(id)}/histograms`, {}, signal),
  exportRunUrl: (id: string, format: string) => apiUrl(`evaluations/${encode(id)}/export`, { format }),
};

function get<T>(path: string, query: Query, signal?: AbortSignal): Promise<T> {
  return request<T>("GET", path, signal ? { query, signal } : { query });
}

function encode(segment: string): string {
  return encodeURIComponent(segment);
}

/** In a new case a missing description and missing checks are left out; null would clear existing ones. */
function withoutNulls(fields: TestCaseFields): Partial<TestCaseFields> {
  const { description, checks, ...rest } = fields;
  return { ...rest, ...(description !== null && { description }), ...(checks !== null && { checks }) };
}

export function compareRuns(
  baseline: string,
  candidate: string,
  force: boolean,
  signal: AbortSignal,
): Promise<Comparison> {
  return request<Comparison>("GET", "evaluations/compare", { query: { baseline, candidate, force }, signal });
}

/** One result of a run, or null if the run does not have it. */
export async function resultIn(run: string, result: string, signal: AbortSignal): Promise<ResultDetail | null> {
  try {
    return await api.result(run, result, signal);
  } catch (error) {
    if (error instanceof ApiError && error.code === "NOT_FOUND") return null;
    throw error;
  }
}

/** The id that the service gives to the result of a case and repeat. */
export function resultId(testCase: string, repeat: number): string {
  const encoded = encodeURIComponent(testCase).replace(
    /[!'()*]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return `${encoded}~${repeat}`;
}

export const graderApi = {
  all: async (signal?: AbortSignal) => (await api.graders(signal)).graders,
  version: (id: string, version: number, signal?: AbortSignal) =>
    request<Grader>("GET", `graders/${encode(id)}`, { query: { version }, ...(signal ? { signal } : {}) }),
  create: (id: string, definition: GraderDefinition) =>
    request<Grader>("POST", "graders", { body: id === "" ? definition : { id, ...definition } }),
  update: (id: string, definition: Partial<GraderDefinition>) =>
    request<Grader>("PUT", `graders/${encode(id)}`, { body: definition }),
  remove: (id: string) => request<void>("DELETE", `graders/${encode(id)}`),
  preview: (grader: PreviewGrader, input: PreviewInput, signal?: AbortSignal) => {
    const [id, fields] =
      "definition" in grader ? ["new", { definition: grader.definition }] : [grader.id, { config: grader.config }];
    return request<Score>("POST", `graders/${encode(id)}/preview`, {
      body: { ...fields, ...input },
      ...(signal ? { signal } : {}),
    });
  },
};

export const secretApi = {
  all: async (signal?: AbortSignal) => (await request<SecretList>("GET", "secrets", signal ? { signal } : {})).secrets,
  put: (name: string, body: SecretBody) => request<Secret>("PUT", `secrets/${encode(name)}`, { body }),
  remove: (name: string) => request<void>("DELETE", `secrets/${encode(name)}`),
};

export const labelApi = {
  of: (run: string, result: string, signal?: AbortSignal) =>
    request<ResultLabels>("GET", labelsPath(run, result), signal ? { signal } : {}),
  put: (run: string, result: string, grader: string, body: NewLabel) =>
    request<Label>("PUT", `${labelsPath(run, result)}/${encode(grader)}`, { body }),
  remove: (run: string, result: string, grader: string) =>
    request<void>("DELETE", `${labelsPath(run, result)}/${encode(grader)}`),
};

export const sampleApi = {
  all: (run: string, signal?: AbortSignal) => get<SampleList>(samplesPath(run), {}, signal),
  draw: (run: string, body: NewSample) => request<DrawnSample>("POST", samplesPath(run), { body }),
  /** The result at a place; null: the first one without a label of the user. */
  item: (run: string, sample: string, place: number | null, signal?: AbortSignal) =>
    get<SampleItem>(`${samplesPath(run)}/${encode(sample)}/${place === null ? "next" : `items/${place}`}`, {}, signal),
  put: (run: string, sample: string, place: number, body: BlindLabel) =>
    request<SampleItem>("PUT", `${samplesPath(run)}/${encode(sample)}/items/${place}`, { body }),
  remove: (run: string, sample: string, place: number) =>
    request<SampleItem>("DELETE", `${samplesPath(run)}/${encode(sample)}/items/${place}`),
  agreement: (run: string, signal?: AbortSignal) =>
    get<LabelAgreement>(`evaluations/${encode(run)}/label-agreement`, {}, signal),
};

function samplesPath(run: string): string {
  return `evaluations/${encode(run)}/label-samples`;
}

function labelsPath(run: string, result: string): string {
  return `evaluations/${encode(run)}/results/${encode(result)}/labels`;
}
