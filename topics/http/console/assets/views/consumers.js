import { html } from "../vendor/htm-preact.js";
import { Page } from "../parts.js";
export const Consumers = () => html`<${Page} title="Consumers" />`;
