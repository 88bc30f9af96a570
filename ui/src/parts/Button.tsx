import type { ButtonHTMLAttributes, ComponentProps } from "react";
import { Link } from "react-router";

const LOOKS = {
  plain: "border border-line bg-surface hover:bg-raised",
  main: "border border-accent bg-accent text-accent-ink hover:opacity-90",
  danger: "border border-fail text-fail bg-surface hover:bg-fail-soft",
  quiet: "border border-transparent hover:bg-raised",
} as const;

export type Look = keyof typeof LOOKS;

export function buttonClass(look: Look = "plain"): string {
  return `inline-flex min-h-9 items-center justify-center gap-1.5 rounded-md px-3 py-1 text-sm font-medium whitespace-nowrap disabled:opacity-50 ${LOOKS[look]}`;
}

export function Button({
  look = "plain",
  className = "",
  ...rest
}: ButtonHTMLAttributes<HTMLButtonElement> & { look?: Look }) {
  return <button type="button" className={`${buttonClass(look)} ${className}`} {...rest} />;
}

export function LinkButton({ look = "plain", className = "", ...rest }: ComponentProps<typeof Link> & { look?: Look }) {
  return <Link className={`${buttonClass(look)} ${className}`} {...rest} />;
}
