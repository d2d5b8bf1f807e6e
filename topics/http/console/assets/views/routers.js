import { html } from "../vendor/htm-preact.js";
import { Page } from "../parts.js";
export const Routers = () => html`<${Page} title="Routers" />`;
