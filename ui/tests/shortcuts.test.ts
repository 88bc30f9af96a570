import { expect, test } from "vitest";
import { isTyping, keyName } from "../src/app/shortcuts.tsx";

const press = (key: string, more = {}) => ({ key, ctrlKey: false, metaKey: false, altKey: false, ...more });

test("keys have names, except those of the browser", () => {
  expect(
    [
      press("j"),
      press("?"),
      press("K", { metaKey: true }),
      press("k", { ctrlKey: true }),
      press("j", { altKey: true }),
    ].map(keyName),
  ).toEqual(["j", "?", "mod+k", "mod+k", null]);
});

test("typing is recognised", () => {
  const element = (html: string) => {
    document.body.innerHTML = html;
    return document.body.firstElementChild;
  };
  expect(
    ["<textarea></textarea>", "<input>", "<select></select>", "<input type=checkbox>", "<button></button>"].map(
      (html) => isTyping(element(html)),
    ),
  ).toEqual([true, true, true, false, false]);
});
