import { expect, test } from "vitest";
import { visible, visibleText } from "../src/lib/visibleText.ts";

test("plain text, line breaks, tabs and emoji are unchanged", () => {
  const text = "Grüße\n\tone\r\ntwo 👩‍🚀 日本語 שלום";
  expect(visible(text)).toEqual([{ kind: "text", text }]);
});

test.each([
  ["\u202eevil", "⟦RLO⟧evil"],
  ["a\u2066b\u2069c", "a⟦LRI⟧b⟦PDI⟧c"],
  ["\x1b[31mred", "⟦ESC⟧[31mred"],
  ["zero\u200bwidth", "zero⟦ZWSP⟧width"],
  ["\u0000\u0007", "⟦NUL⟧⟦BEL⟧"],
  ["a\rb", "a⟦CR⟧b"],
  ["tag\u{e0041}", "tag⟦U+E0041⟧"],
  ["\ud800", "⟦lone surrogate⟧"],
  ["\u0085", "⟦NEL⟧"],
])("%j is shown by name", (text, shown) => {
  expect(visibleText(text)).toBe(shown);
});

test("the title of a name contains the code point", () => {
  expect(visible("a\u202eb")).toEqual([
    { kind: "text", text: "a" },
    { kind: "mark", name: "RLO", title: "U+202E, an invisible character shown by name" },
    { kind: "text", text: "b" },
  ]);
});
