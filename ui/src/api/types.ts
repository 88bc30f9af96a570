/**
 * Short names for the generated types of `schema.ts`. Where the OpenAPI document is loose (free JSON, a status as any
 * string), these types are narrower.
 */
import type { components, operations } from "./schema.ts";

type Schemas = components["schemas"];

/** The data in the response of an operation. */
type Data<Operation extends keyof operations> = operations[Operation] extends {
  responses: { 200: { content: { "application/json": { data: infer Found } } } };
}
  ? Found
  : never;

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };
/** A JSON Schema. */
export type Schema = JsonObject;

export type ErrorCode = Schemas["Failure"]["error"]["code"];

export interface Page {
  count: number;
  total: number;
  next_cursor?: string | null;
  /** There are at least `total`: counting stopped there. */
  total_is_capped?: boolean;
}

export type TestCasePage = Data<"list_test_cases">;
export type TestCase = TestCasePage["test_cases"][number];
export type Checks = TestCase["checks"];
export type TestCaseFields = Pick<TestCase, "input" | "expected_output" | "description" | "tags" | "checks">;

/** An invalid row of an imported file. */
export interface RowError {
  line: number;
  field: string | null;
  message: string;
}

export type RunStatus = "pending" | "running" | "completed" | "failed" | "cancelled" | "interrupted";
export type Progress = Schemas["EvaluationProgress"];

/** A grader's id, optionally with a name and options. */
export type GraderChoice = string | { id: string; name?: string; config?: JsonObject };

interface GateVerdict {
  result: string;
  reasons: string[];
}

/** A finished run compared with its baseline, as `gradeline run --json` prints it. */
export interface RunComparison {
  comparable: boolean;
  reasons: string[];
  sentence: string | null;
}

export type Evaluation = Omit<Schemas["Evaluation"], "status" | "target" | "verdict" | "comparison" | "stopped"> & {
  status: RunStatus;
  target: JsonObject;
  /** Of the suite's gate, once the run is completed. */
  verdict?: GateVerdict | null;
  comparison?: RunComparison | null;
  /** Where the run stopped early: at which look, after `n` of the `of` cases in common with its baseline. */
  stopped?: { look: number; n: number; of: number } | null;
};

export type NamedBaseline = Schemas["NamedBaseline"];
export type BaselinePage = Schemas["BaselinePage"];

/** Estimated size of a run in the store, without indexes. */
export interface RunStorage {
  rows: number;
  estimated_bytes: number;
}

export type EvaluationPage = Omit<Schemas["EvaluationPage"], "evaluations"> & { evaluations: Evaluation[] };

export interface NewEvaluation {
  suite?: JsonObject;
  test_case_ids?: string[];
  tag?: string;
  agent_endpoint_url?: string;
  target?: JsonObject;
  grader_ids?: GraderChoice[];
  name?: string;
  repeats?: number;
  concurrency?: number;
  timeout_s?: number;
  baseline_id?: string;
  stop_early?: boolean;
}

export interface TryRequest {
  agent_endpoint_url?: string;
  target?: JsonObject;
  input?: string;
  test_case_id?: string;
  timeout_s?: number;
}

export type TryResult = Schemas["TrialResult"];
export type Exchange = Schemas["ShownExchange"];

export type Outcome = Schemas["Outcome"];
export type Score = Omit<Schemas["Score"], "details"> & { details: JsonObject };
export type Result = Omit<Schemas["Result"], "scores"> & { scores: Score[] };
export type ResponseStatus = Result["response_status"];

export type ToolCall = Schemas["ToolCall"];
export type Message = Schemas["Message"];
export type Trajectory = Schemas["Trajectory"];
export type RetrievedDocument = Schemas["Document"];
export type StoredGrade = Schemas["Grade"];
export type ResultDetail = Omit<Schemas["LabelledResult"], "scores"> & { scores: Score[] };

export type CaseRun = Omit<Schemas["CaseRun"], "result"> & { result: Result };
export type CaseHistory = Omit<Schemas["CaseHistory"], "runs"> & { runs: CaseRun[] };

export type Figure = Schemas["Figure"];
export type Summary = Schemas["EvaluationSummary"];
/** Whether a judge is calibrated, and why. */
export type JudgeState = Schemas["JudgeState"];
/** A rate or mean by a judge, corrected by people's labels, or why it is not. */
export type CorrectedRate = Schemas["CorrectedRate"];
export type Bin = Schemas["Bin"];
export type Histograms = Schemas["RunHistograms"];
export type ResultPage = Omit<Schemas["ResultPage"], "results"> & { results: Result[] };

export type Comparison = Schemas["EvaluationComparison"];

export type Grader = Omit<Schemas["GraderInfo"], "config_schema"> & { config_schema: Schema };
export type GraderCollection = Omit<Schemas["GraderList"], "graders"> & { graders: Grader[] };

/** The part of a grader that a person writes. */
export interface GraderDefinition {
  name: string;
  description: string | null;
  type: string;
  config: JsonObject;
}

/** What a preview grades: a stored result, or text that was typed. */
export type PreviewInput =
  { evaluation_id: string; result_id: string } | { agent_response: string; expected_output?: string; input?: string };

/** A stored grader with changed options, or a definition that is not stored yet. */
export type PreviewGrader = { id: string; config: JsonObject } | { definition: GraderDefinition };

/** A stored secret; the service never returns its value. */
export type Secret = Schemas["SecretInfo"];
export type SecretBody = Schemas["SecretBody"];
export type SecretList = Schemas["SecretList"];

/** A person's verdict on a response, for one grader. */
export type Label = Schemas["Label"];
/** An entry of a label's history; without a verdict the label was removed. */
export type LabelChange = Schemas["LabelChange"];
export type ResultLabels = Schemas["ResultLabels"];
export type NewLabel = Schemas["LabelBody"];
export type LabelVerdict = NewLabel["verdict"];

/** A sample of the results of a run, to be labelled. */
export type DrawnSample = Schemas["DrawnSample"];
export type SampleList = Schemas["SampleList"];
export type NewSample = Schemas["NewSample"];
/** A result to label, without any grade. */
export type SampleItem = Schemas["SampleItem"];
export type BlindLabel = Schemas["BlindLabel"];
export type LabelAgreement = Schemas["LabelAgreement"];
export type QuestionLabels = Schemas["QuestionLabels"];

export type Session = Schemas["SessionState"];

/** Checked at compile time: what is sent must be what the OpenAPI document allows. */
type Sendable<Sent extends Allowed, Allowed> = Sent;
export type SentEvaluation = Sendable<NewEvaluation, Schemas["NewEvaluation"]>;
export type SentTry = Sendable<TryRequest, Schemas["TryAgent"]>;
export type SentCase = Sendable<TestCaseFields, Schemas["NewTestCase"]>;
