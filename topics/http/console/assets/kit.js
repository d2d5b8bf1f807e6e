// What views are made of, from one place: calls of the daemon, polls, formats, and parts of pages.

export { html, useCallback, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
export * from "./api.js";
export * from "./format.js";
export * from "./live.js";
export * from "./parts.js";
