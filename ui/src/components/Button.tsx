import type { ButtonHTMLAttributes, ComponentProps } from "react";
import { Link } from "react-router";

const VARIANTS = {
  secondary: "border border-line bg-surface hover:bg-raised",
  primary: "border border-accent bg-accent text-accent-ink hover:opacity-90",
  danger: "border border-fail text-fail bg-surface hover:bg-fail-soft",
  ghost: "border border-transparent hover:bg-raised",
} as const;

export type ButtonVariant = keyof typeof VARIANTS;

export function buttonClass(variant: ButtonVariant = "secondary"): string {
  return `inline-flex min-h-9 items-center justify-center gap-1.5 rounded-md px-3 py-1 text-sm font-medium whitespace-nowrap disabled:opacity-50 ${VARIANTS[variant]}`;
}

export function Button({
  variant = "secondary",
  className = "",
  ...rest
}: ButtonHTMLAttributes<HTMLButtonElement> & { variant?: ButtonVariant }) {
  return <button type="button" className={`${buttonClass(variant)} ${className}`} {...rest} />;
}

export function LinkButton({
  variant = "secondary",
  className = "",
  ...rest
}: ComponentProps<typeof Link> & { variant?: ButtonVariant }) {
  return <Link className={`${buttonClass(variant)} ${className}`} {...rest} />;
}
