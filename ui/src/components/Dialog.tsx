import * as Radix from "@radix-ui/react-dialog";
import { type ReactNode, useRef } from "react";
import { Button, type ButtonVariant } from "./Button.tsx";

interface Props {
  open: boolean;
  onClose: () => void;
  title: string;
  description?: string;
  children: ReactNode;
  /** A drawer at the right edge instead of a window in the middle. */
  side?: boolean;
  width?: string;
}

/*
 * The backdrop is not Radix's overlay: that one inserts a style element to lock scrolling, which a strict content
 * security policy refuses.
 */
export function Dialog({ open, onClose, title, description, children, side = false, width }: Props) {
  const position = side
    ? `inset-y-0 right-0 w-full ${width ?? "lg:w-[60%] lg:min-w-[640px]"} border-l`
    : `left-1/2 top-[8vh] max-h-[84vh] w-[calc(100%-1.5rem)] -translate-x-1/2 rounded-xl border ${width ?? "max-w-xl"}`;
  const content = useRef<HTMLDivElement>(null);
  return (
    <Radix.Root open={open} onOpenChange={(next) => !next && onClose()}>
      <Radix.Portal>
        <div aria-hidden className="fixed inset-0 z-30 bg-black/40" />
        <Radix.Content
          ref={content}
          // focus the element marked data-first, else the whole dialog, so that screen readers start at its beginning
          onOpenAutoFocus={(event) => {
            event.preventDefault();
            (content.current?.querySelector<HTMLElement>("[data-first]") ?? content.current)?.focus();
          }}
          className={`fixed z-40 flex flex-col border-line bg-surface shadow-2xl outline-none ${position}`}
          {...(description ? {} : { "aria-describedby": undefined })}
        >
          <header className="flex items-start justify-between gap-3 border-b border-line px-4 py-3">
            <div className="min-w-0">
              <Radix.Title className="truncate text-base font-semibold">{title}</Radix.Title>
              {description && <Radix.Description className="text-sm text-muted">{description}</Radix.Description>}
            </div>
            <Radix.Close asChild>
              <Button variant="ghost" aria-label="Close" title="Close (Esc)">
                ✕
              </Button>
            </Radix.Close>
          </header>
          <div className="min-h-0 flex-1 overflow-auto p-4">{children}</div>
        </Radix.Content>
      </Radix.Portal>
    </Radix.Root>
  );
}

/** A titled part of a drawer. */
export function DialogSection({ title, aside, children }: { title: string; aside?: ReactNode; children: ReactNode }) {
  return (
    <section className="min-w-0">
      <h3 className="mb-1 flex flex-wrap items-center justify-between gap-2 text-sm font-semibold">
        {title}
        {aside}
      </h3>
      {children}
    </section>
  );
}

/** A dialog that asks for confirmation. */
export function ConfirmDialog(props: {
  open: boolean;
  onClose: () => void;
  title: string;
  action: string;
  variant?: ButtonVariant;
  cancelLabel?: string;
  onConfirm: () => void;
  children: ReactNode;
}) {
  return (
    <Dialog open={props.open} onClose={props.onClose} title={props.title} width="max-w-md">
      <div className="flex flex-col gap-4">
        <div>{props.children}</div>
        <div className="flex justify-end gap-2">
          <Button onClick={props.onClose}>{props.cancelLabel ?? "Cancel"}</Button>
          <Button variant={props.variant ?? "danger"} onClick={props.onConfirm}>
            {props.action}
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
