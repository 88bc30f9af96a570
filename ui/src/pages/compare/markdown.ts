import type { Comparison } from "../../api/types.ts";
import { formatScore } from "../../lib/format.ts";
import { visibleText } from "../../lib/visibleText.ts";
import {
  changeFor,
  comparisonSentence,
  DECISION_LABELS,
  filterCases,
  formatSignedInterval,
  graderNotes,
} from "./comparison.ts";

const MAX_CASES = 20;

/** The comparison as Markdown for a pull request. Names are untrusted text and written as code spans. */
export function toMarkdown(
  comparison: Comparison,
  names: { baseline: string; candidate: string },
  link: string,
): string {
  const rows = Object.entries(comparison.graders).map(([grader, result]) =>
    [
      codeSpan(grader, true),
      formatScore(result.baseline),
      formatScore(result.candidate),
      formatSignedInterval(result),
      [`**${DECISION_LABELS[result.decision].label}**`, graderNotes(result)].filter(Boolean).join(". "),
      `${result.improved} / ${result.worse} / ${result.same} / ${result.missing}`,
    ].join(" | "),
  );
  const { comparable, reasons } = comparison.comparability;
  const { warnings } = comparison;
  const worse = filterCases(comparison.cases, "", "").filter((one) => ["worse", "mixed"].includes(changeFor(one, "")));
  return [
    `### ${codeSpan(names.candidate)} against ${codeSpan(names.baseline)}`,
    comparable ? "" : "**These runs are not comparable; the comparison was forced.**",
    rows.length > 0 ? comparisonSentence(comparison) : "No results to compare.",
    rows.length > 0
      ? [
          "| grader | baseline | candidate | difference (95 % interval) | decision | improved / worse / same / missing |",
          "|---|---|---|---|---|---|",
          ...rows.map((row) => `| ${row} |`),
        ].join("\n")
      : "",
    warnings.length > 0 ? `Warnings:\n${warnings.map((warning) => `- ${codeSpan(warning)}`).join("\n")}` : "",
    reasons.length > 0 ? `Other differences:\n${reasons.map((reason) => `- ${codeSpan(reason)}`).join("\n")}` : "",
    worse.length > 0 ? `Worse or mixed: ${caseList(worse.map((one) => one.test_case_id))}` : "",
    `<${link}>`,
  ]
    .filter(Boolean)
    .join("\n\n")
    .concat("\n");
}

function caseList(cases: readonly string[]): string {
  const more = cases.length > MAX_CASES ? ` and ${cases.length - MAX_CASES} more` : "";
  return (
    cases
      .slice(0, MAX_CASES)
      .map((one) => codeSpan(one))
      .join(", ") + more
  );
}

/** Untrusted text on one line as a code span, in which nothing is markup, a link or a mention. */
export function codeSpan(text: string, inTable = false): string {
  const line = visibleText(text).replace(/\s+/g, " ").trim() || "–";
  const longest = Math.max(0, ...(line.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  const inner = line.startsWith("`") || line.endsWith("`") ? ` ${line} ` : line;
  return `${fence}${inTable ? inner.replaceAll("|", "\\|") : inner}${fence}`;
}
