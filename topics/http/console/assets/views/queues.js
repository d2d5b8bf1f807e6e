import { html } from "../vendor/htm-preact.js";
import { Page } from "../parts.js";
export const Queues = () => html`<${Page} title="Queues" />`;
