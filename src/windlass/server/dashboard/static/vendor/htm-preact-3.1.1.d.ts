// What the pages use of htm with Preact.

export type Node = any;
export function html(strings: TemplateStringsArray, ...values: any[]): Node;
export function render(node: Node, parent: Element): void;
export function useState<T>(first: T | (() => T)): [T, (next: T | ((old: T) => T)) => void];
export function useEffect(run: () => void | (() => void), on?: readonly any[]): void;
export function useLayoutEffect(run: () => void | (() => void), on?: readonly any[]): void;
export function useMemo<T>(make: () => T, on: readonly any[]): T;
export function useCallback<T>(call: T, on: readonly any[]): T;
export function useRef<T>(first: T): { current: T };
