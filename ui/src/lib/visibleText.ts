/** Makes invisible and direction-changing characters of untrusted text visible by name. */

type Piece = { kind: "text"; text: string } | { kind: "mark"; name: string; title: string };

const CONTROLS =
  "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(
    " ",
  );

const NAMES: Record<number, string> = {
  0x7f: "DEL",
  0x85: "NEL",
  0xad: "SHY",
  0x61c: "ALM",
  0x180e: "MVS",
  0x200b: "ZWSP",
  0x200e: "LRM",
  0x200f: "RLM",
  0x2028: "LSEP",
  0x2029: "PSEP",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x2060: "WJ",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0xfeff: "BOM",
};

// Line breaks and tabs stay as they are; so do the joiners of emoji and of many scripts.
const HIDDEN =
  // oxlint-disable-next-line no-control-regex
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\r(?!\n)|[\ud800-\udfff]/gu;

function nameOf(code: number): string {
  if (code >= 0xd800 && code <= 0xdfff) return "lone surrogate";
  return CONTROLS[code] ?? NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Splits a text into visible text and names of invisible characters. */
export function visible(text: string): Piece[] {
  const pieces: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    const code = match[0].codePointAt(0) ?? 0;
    if (match.index > from) pieces.push({ kind: "text", text: text.slice(from, match.index) });
    const title = `U+${code.toString(16).toUpperCase().padStart(4, "0")}, an invisible character shown by name`;
    pieces.push({ kind: "mark", name: nameOf(code), title });
    from = match.index + match[0].length;
  }
  if (from < text.length) pieces.push({ kind: "text", text: text.slice(from) });
  return pieces;
}

/** The same as one string, for titles and labels. */
export function visibleText(text: string): string {
  return visible(text)
    .map((piece) => (piece.kind === "text" ? piece.text : `⟦${piece.name}⟧`))
    .join("");
}
