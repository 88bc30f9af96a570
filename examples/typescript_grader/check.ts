// Reads one case per line of standard input and answers each with one line on standard output.
import { createInterface } from "node:readline";

/** The parts of a case that this check reads; `docs/external-graders.md` lists all of them. */
interface Case {
  id: number;
  sample: { id: string; input: string; ground_truth: string | null; metadata: Record<string, unknown> };
  submission: string;
  response: { text: string; latency_ms: number | null } | null;
  config: { max_words?: number };
}

interface Verdict {
  id: number;
  score: number;
  rationale: string;
  metadata?: Record<string, unknown>;
}

function words(text: string): string[] {
  return text.toLowerCase().match(/\p{L}+/gu) ?? [];
}

function grade({ id, sample, submission, config }: Case): Verdict {
  const expected = words(sample.ground_truth ?? "");
  if (expected.length === 0) {
    throw new Error(`case ${sample.id} has no ground_truth`);
  }
  const actual = words(submission);
  const found = expected.filter((word) => actual.includes(word));
  const most = config.max_words ?? Infinity;
  const short = actual.length <= most;
  return {
    id,
    score: short ? found.length / expected.length : 0,
    rationale: short
      ? `${found.length} of ${expected.length} expected words`
      : `${actual.length} words, maximum ${most}`,
    metadata: { missing: expected.filter((word) => !actual.includes(word)) },
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(grade(JSON.parse(line) as Case)));
}
