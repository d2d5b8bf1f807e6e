import { html } from "../vendor/htm-preact.js";
import { Page } from "../parts.js";
export const Clients = () => html`<${Page} title="Clients" />`;
